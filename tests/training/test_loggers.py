"""Log lines reach TensorBoard, MLflow and Weights & Biases; a resumed run goes on there; failures do not stop it."""

import importlib.machinery
import math
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from densecal.errors import InputError
from densecal.training import loggers
from densecal.training.logs import Log
from densecal.training.loop import train
from tests.training.common import log_lines, small_config

SHORT = ("data.scenes.train=8", "data.scenes.validation=4", "optim.epochs=2")


class FakeRun:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.lines, self.ended = options, [], None

    def log(self, figures: dict[str, float], step: int) -> None:
        self.lines.append((step, figures))

    def finish(self, exit_code: int) -> None:
        self.ended = exit_code


class FakeClient:
    """The part of `MlflowClient` that is used, with its signatures; a server of one process."""

    experiments: ClassVar[dict[str, str]] = {}
    runs: ClassVar[dict[str, dict[str, Any]]] = {}
    broken = False

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, f"experiment {len(self.experiments)}")

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        run_id = f"run {len(self.runs)}"
        self.runs[run_id] = {"of": experiment_id, "name": run_name, "status": "RUNNING", "params": {}, "metrics": []}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def log_param(self, run_id: str, key: str, value: Any) -> None:
        self.runs[run_id]["params"][key] = value

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        if self.broken:
            raise ConnectionError("the server is away")
        self.runs[run_id]["metrics"] += metrics

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status


def module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(members)
    return made


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """Runs that were begun at a Weights & Biases that records what it is told."""
    begun: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        assert Path(options["dir"]).is_dir()
        begun.append(FakeRun(options))
        return begun[-1]

    monkeypatch.setitem(sys.modules, "wandb", module("wandb", init=init))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return begun


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    """The client of an MLflow that records what it is told."""
    fresh = type("Client", (FakeClient,), {"experiments": {}, "runs": {}})
    entities = types.SimpleNamespace(Metric=lambda key, value, timestamp, step: (step, key, value))
    monkeypatch.setitem(sys.modules, "mlflow", module("mlflow", MlflowClient=fresh, entities=entities))
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fresh


def test_nested_figures_go_by_path():
    line = {"epoch": 3, "loss": 0.5, "validation": {"ece_ew": 0.1, "ci": {"low": 0}}, "name": "x", "none": None}
    assert loggers.figures(line) == {"epoch": 3.0, "loss": 0.5, "validation/ece_ew": 0.1, "validation/ci/low": 0.0}


def test_tensorboard_gets_the_figures_and_hides_repeated_epochs(tmp_path: Path):
    for first, values in ((0, (0.4, 0.3, 0.2)), (1, (0.25, 0.1))):
        logger = loggers.create("tensorboard", tmp_path, {}, first)
        for epoch, value in enumerate(values, first + 1):
            logger.write({"epoch": epoch, "validation": {"ece_ew": value}})
        logger.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, round(e.value, 4)) for e in board.Scalars("validation/ece_ew")] == [(1, 0.4), (2, 0.25), (3, 0.1)]


def test_mlflow_gets_parameters_once_and_one_run(tmp_path: Path, mlflow: type[FakeClient]):
    settings = {"optim": {"lr": 0.1, "lrs": {}}, "name": "demo"}
    for epoch, status in ((1, "FAILED"), (2, "FINISHED")):
        logger = loggers.create("mlflow", tmp_path / "first run", settings, epoch - 1)
        assert [run["status"] for run in mlflow.runs.values()] == ["RUNNING"]
        logger.write({"epoch": epoch, "loss": 0.5 / epoch, "validation": {"nll": math.inf}})
        logger.close(failed=status == "FAILED")
        (run,) = mlflow.runs.values()
        assert run["status"] == status
    assert mlflow.experiments == {"densecal": run["of"]}
    assert run["name"] == "first run"
    assert run["params"] == {"optim.lr": 0.1, "name": "demo"}
    assert [m for m in run["metrics"] if m[1] == "loss"] == [(1, "loss", 0.5), (2, "loss", 0.25)]
    assert (1, "validation/nll", math.inf) in run["metrics"]
    loggers.create("mlflow", tmp_path / "other")
    assert len(mlflow.runs) == 2
    assert len(mlflow.experiments) == 1


def test_wandb_gets_settings_and_goes_on_with_the_run(tmp_path: Path, wandb: list[FakeRun]):
    settings = {"optim": {"lr": 0.1}}
    for epoch in (1, 2):
        logger = loggers.create("wandb", tmp_path / "run", settings)
        logger.write({"epoch": epoch, "validation": {"ece_ew": 0.1}})
        logger.close(failed=epoch == 1)
    loggers.create("wandb", tmp_path / "other")
    first, second, other = wandb
    assert first.options == second.options
    assert first.options["config"] == settings
    assert (first.options["project"], first.options["name"], first.options["resume"]) == ("densecal", "run", "allow")
    assert first.options["id"] != other.options["id"]
    assert first.lines == [(1, {"epoch": 1.0, "validation/ece_ew": 0.1})]
    assert [run.ended for run in wandb] == [1, 0, None]


def test_projects_are_chosen_by_the_tools_own_variables(
    tmp_path: Path, wandb: list[FakeRun], mlflow: type[FakeClient], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "my experiment")
    for name in ("wandb", "mlflow"):
        loggers.create(name, tmp_path)
    assert wandb[0].options["project"] == "mine"
    assert list(mlflow.experiments) == ["my experiment"]


def test_a_training_is_logged_where_its_settings_say(tmp_path: Path, wandb: list[FakeRun], mlflow: type[FakeClient]):
    config = small_config(*SHORT, "engine.loggers=[wandb, mlflow]")
    train(config, tmp_path / "run")
    (run,) = wandb
    assert run.ended == 0
    assert run.options["config"] == config.model_dump(mode="json")
    for (epoch, figures), line in zip(run.lines, log_lines(tmp_path / "run"), strict=True):
        assert epoch == line["epoch"]
        assert figures["validation/ece_ew"] == pytest.approx(line["validation"]["ece_ew"], rel=1e-8)
        assert figures["method/alpha_mean"] == pytest.approx(line["method"]["alpha_mean"], rel=1e-8)
    (run,) = mlflow.runs.values()
    assert run["status"] == "FINISHED"
    assert [step for step, name, _ in run["metrics"] if name == "loss"] == [1, 2]
    assert run["params"]["data.scenes.train"] == 8
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_training_that_fails_is_marked_so(tmp_path: Path, mlflow: type[FakeClient]):
    with pytest.raises(InputError, match="finite loss"):
        train(small_config(*SHORT, "optim.lr=1e30", "engine.loggers=[mlflow]"), tmp_path / "run")
    assert [run["status"] for run in mlflow.runs.values()] == ["FAILED"]


def test_tensorboard_is_written_unless_something_else_is_asked_for(tmp_path: Path):
    for name, options in {"default": {}, "none": {"loggers": []}}.items():
        with Log(tmp_path / name, **options) as log:
            log.keep(0)
            log.write({"epoch": 1, "loss": 0.5})
        assert (tmp_path / name / "tensorboard").exists() == (name == "default")


def test_a_server_that_is_away_stops_nothing(tmp_path: Path, mlflow: type[FakeClient]):
    with Log(tmp_path, ["mlflow"]) as log:
        log.keep(0)
        mlflow.broken = True
        with pytest.warns(UserWarning, match=r"mlflow: epoch 1 was not logged \(the server is away\)"):
            log.write({"epoch": 1, "loss": 0.5})
        mlflow.broken = False
        log.write({"epoch": 2, "loss": 0.4})
    assert [line["epoch"] for line in log_lines(tmp_path)] == [1, 2]
    assert [step for step, *_ in mlflow.runs["run 0"]["metrics"]] == [2, 2]


def test_what_cannot_be_logged_to_is_named_before_training(
    tmp_path: Path, mlflow: type[FakeClient], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"engine.loggers: wandb, which is not installed.*pip install wandb"):
        Log(tmp_path, ["wandb"])
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mlflow", module("mlflow", MlflowClient=mlflow, entities=types.SimpleNamespace()))
    with pytest.raises(InputError, match=r"engine.loggers: mlflow cannot be used \(.*Metric"):
        Log(tmp_path, ["mlflow"]).keep(0)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="the MLflow logger needs mlflow: pip install mlflow"):
        loggers.create("mlflow", tmp_path)
    with pytest.raises(ValueError, match="found 'x'; expected tensorboard, mlflow or wandb"):
        loggers.create("x", tmp_path)
    with pytest.raises(InputError, match=r"engine.loggers.0: 'x'; expected 'tensorboard', 'mlflow' or 'wandb'"):
        small_config("engine.loggers=[x]")
