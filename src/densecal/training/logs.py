"""The log of a run: one JSON line an epoch, and TensorBoard, MLflow or Weights & Biases where asked for."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from densecal.errors import InputError
from densecal.io.atomic import round_floats, write_text

if TYPE_CHECKING:
    from densecal.training.loggers import Logger


class Log:
    """Writes `log.jsonl` in a run folder and passes its lines on; loggers are closed at the end of a `with` block.

    Args:
        folder: The run folder.
        loggers: Who else gets the lines, see `densecal.training.loggers`; TensorBoard where it is installed, if
            `None`.
        settings: What the run was configured with, for them.
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
                    "engine.loggers", f"{name}, which is not installed", f"a logger that is (pip install {name})"
                )
        self._names = loggers
        self._settings = settings
        self._lines: list[str] = []
        self._loggers: dict[str, Logger] = {}

    def keep(self, epochs: int) -> None:
        """Drop the lines of epochs that a resumed run is about to repeat, and begin to pass lines on."""
        if not self.enabled:
            return
        if self.path.exists():
            self._lines = self.path.read_text(encoding="utf-8").splitlines()[:epochs]
        for name in self._names:
            self._loggers[name] = self._opened(name, epochs)

    def write(self, line: dict[str, Any]) -> None:
        """Add an epoch; the file is replaced whole, so a reader never sees half a line."""
        if not self.enabled:
            return
        self._lines.append(json.dumps(round_floats(line)))
        write_text(self.path, "\n".join(self._lines) + "\n")
        self._tell(lambda logger: logger.write(line), f"epoch {line['epoch']} was not logged")

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(lambda logger: logger.close(failed=kind is not None), "the run was not closed")

    def _tell(self, action: Callable[[Logger], None], lost: str) -> None:
        for name, logger in self._loggers.items():
            # a server that is away for a while is no reason to stop a training
            try:
                action(logger)
            except Exception as error:
                warnings.warn(f"{name}: {lost} ({error})", stacklevel=3)

    def _opened(self, name: str, epochs: int) -> Logger:
        from densecal.training import loggers

        try:
            return loggers.create(name, self.path.parent, self._settings, epochs)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError("engine.loggers", f"{name} cannot be used ({reason})", "one that is set up") from None
