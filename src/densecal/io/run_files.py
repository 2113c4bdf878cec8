"""The files of a run folder, so that no command writes over the model that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NEWEST_CHECKPOINTS = ("last.new", "last", "previous")
"""The first of these that exists is the newest checkpoint. Only version 0.1 left a `last.new`, newer than `last`."""
CALIBRATOR_FILES = ("calibrator.json", "calibrator.safetensors")
_OF_RUN = ("config.yaml", "log.jsonl", "alpha.csv", *CALIBRATOR_FILES)
_OF_CHECKPOINT = ("model.safetensors", "method.safetensors", "optimizer.pt", "meta.json")


def run_files(folder: Path) -> Iterator[Path]:
    """Yield the files that a run folder or a checkpoint folder may have, whether or not they exist."""
    yield from (folder / name for name in (*_OF_RUN, *_OF_CHECKPOINT))
    for checkpoint in (folder / "checkpoints").glob("*"):
        yield from (checkpoint / name for name in _OF_CHECKPOINT)
