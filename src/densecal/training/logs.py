"""The log of a run: one JSON line per epoch, also sent to TensorBoard, MLflow or Weights & Biases if asked for."""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from densecal.errors import InputError
from densecal.io.atomic import round_floats, write_text
from densecal.io.documents import parse_json, read_text
from densecal.training import loggers
from densecal.training.loggers import Logger


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a log.

    Raises:
        InputError: The file cannot be read, or a line is not an entry.
    """
    expected = "a JSON object with epoch, loss and validation"
    log = []
    for number, line in enumerate(read_text(path, "the log of a run").splitlines(), start=1):
        where = f"{path} line {number}"
        entry = parse_json(line, where, expected)
        known = isinstance(entry, dict) and {"epoch", "loss", "validation"} <= entry.keys()
        if not known or type(entry["epoch"]) is not int:
            raise InputError(where, "not an entry of a log", expected)
        log.append(entry)
    return log


class Log:
    """Writes `log.jsonl` in a run folder and sends its lines to loggers, which a `with` block closes at its end.

    Args:
        folder: The run folder.
        loggers: Names of loggers, see `densecal.training.loggers`. `None` is TensorBoard if it is installed.
        settings: Configuration of the run, for the loggers.
        enabled: False in all processes but the first.
    """

    def __init__(
        self,
        folder: Path,
        loggers: Sequence[str] | None = None,
        settings: dict[str, Any] | None = None,
        enabled: bool = True,
    ) -> None:
        self.path = folder / "log.jsonl"
        self.enabled = enabled
        if loggers is None:
            loggers = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
        for name in loggers:
            if importlib.util.find_spec(name) is None:
                raise InputError(
                    "engine.loggers", f"{name}, which is not installed", f"an installed logger (pip install {name})"
                )
        self._names = loggers
        self._settings = settings
        self._lines: list[str] = []
        self._loggers: dict[str, Logger] = {}

    def keep(self, epochs: int) -> None:
        """Keep the lines of the first epochs, drop those that a resumed run will repeat, and open the loggers."""
        if not self.enabled:
            return
        if os.path.lexists(self.path):
            self._lines = [json.dumps(entry) for entry in read_log(self.path) if entry["epoch"] <= epochs]
        for name in self._names:
            self._loggers[name] = self._open_logger(name, epochs)

    def write(self, line: dict[str, Any]) -> None:
        """Add the line of an epoch. The whole file is replaced, so a reader never sees half a line."""
        if not self.enabled:
            return
        self._lines.append(json.dumps(round_floats(line)))
        write_text(self.path, "\n".join(self._lines) + "\n")
        self._for_each_logger(lambda logger: logger.write(line), f"epoch {line['epoch']} was not logged")

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._for_each_logger(lambda logger: logger.close(failed=kind is not None), "the run was not closed")

    def _for_each_logger(self, action: Callable[[Logger], None], failure: str) -> None:
        for name, logger in self._loggers.items():
            # a server that is down for a while is no reason to stop training
            try:
                action(logger)
            except Exception as error:
                warnings.warn(f"{name}: {failure} ({error})", stacklevel=3)

    def _open_logger(self, name: str, epochs: int) -> Logger:
        try:
            return loggers.create(name, self.path.parent, self._settings, epochs)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError("engine.loggers", f"{name} cannot be used ({reason})", "a logger that is set up") from None
