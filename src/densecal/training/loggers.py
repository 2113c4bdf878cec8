"""Send the log lines of a training loop to TensorBoard, MLflow or Weights & Biases.

A line is a dictionary with ``epoch`` and figures, which may be nested, like the lines of `log.jsonl`. Each tool's own
settings say where runs go: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, ``WANDB_PROJECT`` and
``WANDB_MODE``. A resumed run continues the same run there. Its identifiers are in `loggers.json` of the run folder.

Lightning's own loggers would make all of Lightning a dependency of training.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from densecal.errors import InputError
from densecal.io.atomic import write_text
from densecal.io.documents import read_json
from densecal.runtime.extras import require

IDENTIFIERS = "loggers.json"
PROJECT = "densecal"
"""The experiment or project of runs, unless the user has chosen another."""


class Logger(Protocol):
    """Receives the lines of one run."""

    def write(self, line: dict[str, Any]) -> None:
        """Send the figures of an epoch."""

    def close(self, failed: bool = False) -> None:
        """Send what is still buffered and end the run."""


class TensorBoardLogger:
    """Writes event files into the folder ``tensorboard`` of a run.

    Args:
        folder: The run folder.
        epochs: Finished epochs of a resumed run. What was written for later epochs is hidden.
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
    """Logs to a run of MLflow, and leaves alone a run that is active in this process.

    Args:
        folder: The run folder, which names the run.
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
        existing = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if existing is None else existing.experiment_id
        self._run = self._client.create_run(experiment, run_name=folder.absolute().name).info.run_id
        remember(folder, "mlflow", self._run)
        for key, value in flatten(settings or {}, ".").items():
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
    """Logs to a run of Weights & Biases.

    Args:
        folder: The run folder, which names the run and receives the tool's local files.
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
    """Start logging a run, or continue its log.

    Args:
        name: ``tensorboard``, ``mlflow`` or ``wandb``.
        folder: The run folder.
        settings: The configuration of the run.
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
    """Return the numbers of a line by path, such as ``validation/ece_ew``."""
    flat = flatten(line, "/")
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float)}


def flatten(nested: dict[str, Any], separator: str) -> dict[str, Any]:
    """Return the values of nested dictionaries by path."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= {f"{name}{separator}{inner}": held for inner, held in flatten(value, separator).items()}
        else:
            flat[name] = value
    return flat


def identifier(folder: Path, tool: str) -> str | None:
    """Return the identifier that a tool gave to the run of a folder, if there is one."""
    known = _identifiers(folder / IDENTIFIERS).get(tool)
    return None if known is None else str(known)


def remember(folder: Path, tool: str, run: str) -> None:
    """Store the identifier that a tool gave to the run of a folder."""
    path = folder / IDENTIFIERS
    write_text(path, json.dumps({**_identifiers(path), tool: run}) + "\n")


def _identifiers(path: Path) -> dict[str, Any]:
    held = read_json(path, "identifiers by tool") if os.path.lexists(path) else {}
    if not isinstance(held, dict):
        raise InputError(path, f"JSON of type {type(held).__name__}", "an object of identifiers by tool")
    return held
