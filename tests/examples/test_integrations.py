"""The examples with other libraries run unchanged, learn something, and are short."""

import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from densecal.metrics import calibration_errors
from tests.training.common import log_lines

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("lightning_callback", "torchmetrics_collection", "hugging_face_trainer", "smp_training", "optuna_search")


@pytest.fixture(autouse=True)
def _run_in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["example"])
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))


def run(name: str, run_name: str = "__main__") -> dict[str, Any]:
    with warnings.catch_warnings(action="ignore"):
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=run_name)


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern + r"\D{0,4}(\d+\.\d+)", text)]


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_short(name: str):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 60


def test_lightning_takes_few_lines_of_densecal():
    lines = (EXAMPLES / "lightning_callback.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.endswith("# densecal")]) == 5


def test_lightning_learns_and_restores_a_probability_per_image(capsys: pytest.CaptureFixture[str]):
    run("lightning_callback")
    out = capsys.readouterr().out
    assert numbers("'accuracy'", out)[-1] > 0.7
    assert 0 < numbers("mean perturbation probability", out)[-1] < 0.1
    assert list(Path().glob("**/*.ckpt"))


def test_the_collection_measures_overconfidence(capsys: pytest.CaptureFixture[str]):
    measured = run("torchmetrics_collection")["measure"]()
    assert capsys.readouterr().out.startswith("brier 0.")
    scenes = runpy.run_path(str(EXAMPLES / "torchmetrics_collection.py"))["generate"](32, size=64)
    probability = torch.from_numpy(scenes.probability).clamp(1e-4, 1 - 1e-4)
    masks = torch.from_numpy(scenes.masks) > 127
    sure, true = (
        calibration_errors((factor * probability.logit()).sigmoid(), masks.long(), bins=15) for factor in (3, 1)
    )
    assert measured["ece"] == pytest.approx(sure.ece_ew, abs=1e-9)
    assert measured["brier"] == pytest.approx(sure.brier, abs=1e-9)
    foreground = 3 * probability.logit() > 0
    assert measured["iou"] == pytest.approx(float((foreground & masks).sum() / (foreground | masks).sum()), abs=1e-6)
    assert measured["ece"] > 2 * true.ece_ew


def test_the_hugging_face_trainer_learns_and_saves_the_method(tmp_path: Path):
    run("hugging_face_trainer")
    checkpoints = sorted(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((checkpoints[-1] / "trainer_state.json").read_text(encoding="utf-8"))
    evaluations = [entry for entry in state["log_history"] if "eval_ece" in entry]
    assert len(evaluations) == len(checkpoints) == 6
    assert evaluations[-1]["eval_loss"] < 0.9 * evaluations[0]["eval_loss"]
    alpha = load_file(checkpoints[-1] / "model.safetensors")["method.values"][:-1]
    assert alpha.mean().item() == pytest.approx(evaluations[-1]["eval_alpha"], rel=1e-5)
    assert [entry["eval_alpha"] > 0 for entry in evaluations] == [False, False, True, True, True, True]  # warm-up


def test_a_network_of_smp_becomes_calibrated(capsys: pytest.CaptureFixture[str]):
    run("smp_training")
    out = capsys.readouterr().out
    eces = numbers("ECE", out)
    assert len(eces) == 6
    assert min(eces[3:]) < 0.7 * max(eces[:3])
    assert numbers("accuracy", out)[-1] > 0.8


def test_the_search_keeps_its_runs_and_returns_the_best_accurate_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run("optuna_search")
    out = capsys.readouterr().out
    last = {path.name: log_lines(path)[-1]["validation"] for path in tmp_path.iterdir() if path.is_dir()}
    least = last.pop("plain")["accuracy"] - 0.02
    assert sorted(last) == [f"trial-{i:03}" for i in range(3)]
    accurate = {name: figures["ece_ew"] for name, figures in last.items() if figures["accuracy"] >= least}
    best = min(accurate, key=lambda name: accurate[name])
    assert f"{best}, ECE {accurate[best]:.4f}" in out
