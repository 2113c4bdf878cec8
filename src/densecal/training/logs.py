"""The log of a run: one JSON line an epoch, and TensorBoard where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from densecal.files import rounded, write_text


class Log:
    """Writes `log.jsonl` in a run folder.

    Args:
        folder: The run folder.
        enabled: False in all processes but the first.
    """

    def __init__(self, folder: Path, enabled: bool = True) -> None:
        self.path = folder / "log.jsonl"
        self.enabled = enabled
        self._lines: list[str] = []
        self._board: Any = None

    def keep(self, epochs: int) -> None:
        """Drop the lines of epochs that a resumed run is about to repeat."""
        if not self.enabled:
            return
        if self.path.exists():
            self._lines = self.path.read_text(encoding="utf-8").splitlines()[:epochs]
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=epochs + 1)
        except ImportError:
            self._board = None

    def write(self, line: dict[str, Any]) -> None:
        """Add an epoch; the file is replaced whole, so a reader never sees half a line."""
        if not self.enabled:
            return
        self._lines.append(json.dumps(rounded(line)))
        write_text(self.path, "\n".join(self._lines) + "\n")
        if self._board is not None:
            for name, value in flattened(line).items():
                self._board.add_scalar(name, value, line["epoch"])
            self._board.flush()


def flattened(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested figures by path, such as ``validation/ece_ew``."""
    flat: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{name}/"))
        elif isinstance(value, int | float):
            flat[prefix + name] = float(value)
    return flat
