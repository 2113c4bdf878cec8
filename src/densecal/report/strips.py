"""A volume as a strip of slices side by side: the places where a map is most confident and wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SLICES = 4
"""Slices of a strip."""

Array = NDArray[Any]


def worst_slices(confidence: Array, wrong: NDArray[np.bool_], count: int = SLICES) -> list[int]:
    """Return slices along the first axis, in order, whose wrong voxels have the most confidence together.

    Neighbouring slices look alike, so chosen ones are an eighth of the volume or more apart, as long as there are
    others.

    Args:
        confidence: Probability of the winning class, (D, H, W).
        wrong: Where it is not that of the mask; False on void voxels.
        count: How many.
    """
    harm = np.array([c.sum(where=w, dtype=np.float64) for c, w in zip(confidence, wrong, strict=True)])
    chosen: list[int] = []
    for apart in (max(1, len(harm) // 8), 1):
        for index in np.argsort(-harm, kind="stable").tolist():
            if len(chosen) < count and all(abs(index - other) >= apart for other in chosen):
                chosen.append(index)
    return sorted(chosen)


def strip(array: Array, slices: list[int]) -> Array:
    """Return slices of a volume (..., D, H, W) side by side, (..., H, slices * W)."""
    return np.concatenate([array[..., index, :, :] for index in slices], axis=-1)
