"""What a run with two stages must have in common with the run of plain cross entropy that it starts from."""

from __future__ import annotations

from typing import Any

from densecal.training.config import Config

FIRST_STAGE = "bce"
"""The method of a run that others start from: its weights are the paper's theta_lm."""
_SHARED = {
    "data": ("images", "masks", "validation", "scenes", "size", "classes", "ignore_index"),
    "model": ("arch", "encoder", "options"),
}


def difference(first: Config, now: Config) -> str | None:
    """Return the first setting in which a first stage differs from a run though both must share it, else ``None``."""
    was, own = (config.model_dump(mode="json") for config in (first, now))
    for section, keys in _SHARED.items():
        for key in keys:
            values: tuple[Any, Any] = was[section][key], own[section][key]
            if values[0] != values[1]:
                return f"{section}.{key} = {values[0]!r}, not {values[1]!r}"
    losses = [config.method.loss or {"bce": 1} for config in (first, now)]
    return None if losses[0] == losses[1] else f"method.loss = {losses[0]!r}, not {losses[1]!r}"
