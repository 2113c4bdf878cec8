"""Search the settings of a recipe with Optuna: the lowest validation ECE among runs that keep their accuracy.

Search on validation images and report on others: run `densecal evaluate` on the best run's predictions of a test set.
"""

import sys
import tempfile
from pathlib import Path

import optuna

from densecal.training.config import load_config
from densecal.training.loop import train

SMALL = ["data.size=32", "data.scenes={train: 24, validation: 16}", "optim.epochs=3", "optim.batch=4"]
"""Overrides with which the demo recipe takes seconds. A real search has none of them, and more trials."""


def search(folder: Path, trials: int, recipe: str = "demo", overrides: list[str] = SMALL) -> optuna.Study:
    plain = train(load_config(recipe, [*overrides, "method.name=bce"]), folder / "plain")
    assert plain is not None
    least_accuracy = plain.accuracy - 0.02

    def objective(trial: optuna.Trial) -> float:
        settings = {
            "optim.lr": trial.suggest_float("optim.lr", 5e-4, 5e-3, log=True),
            "method.technique": trial.suggest_categorical("method.technique", ["hi", "si", "m"]),
            "method.lam": trial.suggest_float("method.lam", 50, 800, log=True),
            "method.warmup": trial.suggest_int("method.warmup", 0, 2),
        }
        config = load_config(recipe, [*overrides, *(f"{key}={value}" for key, value in settings.items())])
        result = train(config, folder / f"trial-{trial.number:03}")
        assert result is not None
        trial.set_constraint("accuracy", least_accuracy - result.accuracy)  # met if it is at most 0
        trial.set_user_attr("accuracy", result.accuracy)
        return result.ece_ew

    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    best = search(out, trials=3).best_trial
    print(f"best: {out}/trial-{best.number:03}, ECE {best.value:.4f}, accuracy {best.user_attrs['accuracy']:.4f}")
    print(" ".join(f"{key}={value}" for key, value in best.params.items()))
