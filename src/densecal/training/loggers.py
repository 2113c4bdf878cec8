"""Send the log lines of a training loop to TensorBoard, MLflow or Weights & Biases.

A line is a dictionary with ``epoch`` and figures, which may be nested, as the lines of `log.jsonl` are. Where runs go
is up to each tool's own settings: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, ``WANDB_PROJECT`` and
``WANDB_MODE``. A resumed run goes on with the same run there, whose identifiers are in `loggers.json` of its folder.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from densecal.io.atomic import write_text
from densecal.runtime.extras import require

IDENTIFIERS = "loggers.json"
PROJECT = "densecal"
"""Experiment or project of runs whose user has chosen none."""


class Logger(Protocol):
    """Takes the lines of one run."""

    def write(self, line: dict[str, Any]) -> None:
        """Send the figures of an epoch."""

    def close(self, failed: bool = False) -> None:
        """Send what is still held back and end the run."""


class TensorBoardLogger:
    """Writes event files into the folder ``tensorboard`` of a run.

    Args:
        folder: The run folder.
        epochs: Finished epochs of a resumed run; what was written of later ones is hidden.
    """

    def __init__(self, folder: Path, epochs: int = 0) -> None:
        require("the TensorBoard logger", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=epochs + 1)

    def write(self, line: dict[str, Any]) -> None:
        """Send the figures of an epoch."""
        for name, value in figures(line).items():
            self._writer.add_scalar(name, value, line["epoch"])
        self._writer.flush()

    def close(self, failed: bool = False) -> None:
        """End the event file."""
        self._writer.close()


class MLflowLogger:
    """Makes a run of MLflow, without touching the run that may be active in this process.

    Args:
        folder: The run folder, whose name is the run's.
        settings: Parameters of the run.
    """

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None) -> None:
        mlflow = require("the MLflow logger", "mlflow")
        self._metric: Any = mlflow.entities.Metric
        self._client: Any = mlflow.MlflowClient()
        known = identifier(folder, "mlflow")
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._run: str = known
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=folder.absolute().name).info.run_id
        remember(folder, "mlflow", self._run)
        for key, value in flattened(settings or {}, ".").items():
            self._client.log_param(self._run, key, value)

    def write(self, line: dict[str, Any]) -> None:
        """Send the figures of an epoch."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, line["epoch"]) for name, value in figures(line).items()]
        self._client.log_batch(self._run, metrics)

    def close(self, failed: bool = False) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class WandbLogger:
    """Makes a run of Weights & Biases.

    Args:
        folder: The run folder, whose name is the run's; local files of Weights & Biases go there too.
        settings: Configuration of the run.
    """

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None) -> None:
        wandb = require("the Weights & Biases logger", "wandb")
        known = identifier(folder, "wandb") or uuid.uuid4().hex
        remember(folder, "wandb", known)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.absolute().name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=settings or {},
        )

    def write(self, line: dict[str, Any]) -> None:
        """Send the figures of an epoch."""
        self._run.log(figures(line), step=line["epoch"])

    def close(self, failed: bool = False) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))


def create(name: str, folder: Path, settings: dict[str, Any] | None = None, epochs: int = 0) -> Logger:
    """Begin to log a run, or go on with it.

    Args:
        name: ``tensorboard``, ``mlflow`` or ``wandb``.
        folder: The run folder.
        settings: What the run was configured with.
        epochs: Epochs that are finished already.

    Raises:
        ValueError: No such logger.
        ImportError: Its package is not installed.
    """
    if name == "tensorboard":
        return TensorBoardLogger(folder, epochs)
    if name == "mlflow":
        return MLflowLogger(folder, settings)
    if name == "wandb":
        return WandbLogger(folder, settings)
    raise ValueError(f"logger: found {name!r}; expected tensorboard, mlflow or wandb")


def figures(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line by path, such as ``validation/ece_ew``."""
    flat = flattened(line, "/")
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float)}


def flattened(nested: dict[str, Any], separator: str) -> dict[str, Any]:
    """The values of nested dictionaries by path."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= {f"{name}{separator}{inner}": held for inner, held in flattened(value, separator).items()}
        else:
            flat[name] = value
    return flat


def identifier(folder: Path, tool: str) -> str | None:
    """The identifier of a run folder's run at a tool, if it has one already."""
    path = folder / IDENTIFIERS
    found = json.loads(path.read_text(encoding="utf-8")).get(tool) if path.exists() else None
    return None if found is None else str(found)


def remember(folder: Path, tool: str, found: str) -> None:
    """Note the identifier of a run folder's run at a tool."""
    path = folder / IDENTIFIERS
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_text(path, json.dumps({**held, tool: found}) + "\n")
