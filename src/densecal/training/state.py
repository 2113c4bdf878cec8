"""How far a run has come: what the commands that use a run say about one that has not finished."""

from __future__ import annotations

from pathlib import Path

from densecal.io.documents import read_json
from densecal.training import checkpoint
from densecal.training.config import parse_config
from densecal.training.logs import read_log


def unfinished(run: Path) -> str | None:
    """Return "stopped in epoch 2 of 30" for a run that has not finished, otherwise ``None``.

    Args:
        run: Run folder. A checkpoint folder was chosen on purpose, so nothing is said about it.

    Raises:
        InputError: The run has no checkpoint, or its files are damaged.
    """
    if not (run / "checkpoints").is_dir():
        return None
    meta_file = checkpoint.find(run) / checkpoint.META
    meta = read_json(meta_file, "a complete checkpoint")
    if not isinstance(meta, dict):
        return None  # the command that reads the checkpoint says so
    epochs, config = meta.get("epoch"), parse_config(meta.get("config"), str(meta_file))
    if not isinstance(epochs, int) or epochs >= config.total_epochs:
        return None
    return f"stopped in epoch {epochs + 1} of {config.total_epochs}"


def perturbed_labels(run: Path) -> str | None:
    """Return how many labels a run's method has perturbed, in words; ``None`` if it is a method that perturbs none."""
    log = read_log(run / "log.jsonl")
    last = log[-1] if log else {}
    count = last.get("method", {}).get("perturbed")
    if count is None:
        return None
    epochs = f"{last['epoch']} epoch{'' if last['epoch'] == 1 else 's'}"
    if count == 0:
        return f"no label was perturbed in {epochs}: the method did nothing, and this is plain cross entropy"
    return f"{count:,} times the labels of an image were perturbed, in {epochs}"
