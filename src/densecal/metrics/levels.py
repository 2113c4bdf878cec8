"""Integer maps: every figure of an 8- or 16-bit map follows from the counts of (level, mask value) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import compiled
from densecal.metrics.geometry import boundary_distance_squared
from densecal.metrics.volumes import volume_zones

BOUNDARY_DISTANCES = (5, 15)
"""Widths of the two boundary bands: in pixels, or for volumes in the unit of their spacing."""
ZONES = len(BOUNDARY_DISTANCES) + 1
MAX_LEVEL = 65535
"""Integer maps are counted by 16-bit level; an 8-bit level v is the 16-bit level 257 v."""
ROW_SCALARS = ("count", "correct", "confidence", "brier", "nll")
"""Columns of the per-image table before the ``bins`` columns of (sum of confidence - number correct)."""
NLL_FLOOR = 1e-7


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def top_ks(classes: int) -> tuple[int, ...]:
    """Return the numbers of most probable classes that top-k figures look at: 2, 3 and 5, as far as there are more."""
    return tuple(k for k in (2, 3, 5) if k < classes)


def boundary_zones(
    labels: NDArray[Any], valid: NDArray[np.bool_] | None = None, spacing: Sequence[float] | None = None
) -> NDArray[np.uint8]:
    """Return the zone of every pixel: 0 within 5 pixels or millimetres of another class, 1 within 15, 2 beyond.

    Args:
        labels: (H, W) or (D, H, W) class map.
        valid: False on void pixels, which bound no class.
        spacing: Distance of pixels along every axis; without it, distances are in pixels.
    """
    if labels.ndim != 2 or spacing is not None:
        return volume_zones(labels, valid, spacing, BOUNDARY_DISTANCES)
    if valid is None and labels.dtype == bool and compiled.takes_pictures(labels):
        zones = np.empty(labels.shape, np.uint8)
        compiled.native.boundary_zones(labels, zones, *labels.shape)
        return zones
    squared = boundary_distance_squared(labels, BOUNDARY_DISTANCES[-1], valid)
    zones = np.zeros(squared.shape, np.uint8)
    for distance in BOUNDARY_DISTANCES:
        zones += squared > distance * distance
    return zones


def level_rows(counts: Ints, bins: int) -> Floats:
    """Return the per-image rows of integer maps from their histograms (B, 2, L), by integer arithmetic.

    The row of an image is the same to the last bit whatever images it is counted with.
    """
    top = counts.shape[2] - 1
    if top < MAX_LEVEL or len(counts) == 1:
        level = np.arange(top + 1) if top < MAX_LEVEL else np.flatnonzero(counts.any(axis=(0, 1)))
    else:
        return np.concatenate([level_rows(image[None], bins) for image in counts])
    # Contiguous, because NumPy adds up a strided axis in another order.
    background, foreground = np.ascontiguousarray(np.moveaxis(counts[:, :, level], 1, 0), dtype=np.float64)
    numerator = np.maximum(level, top - level)
    pixels = background + foreground
    correct = np.where(2 * level > top, foreground, background)
    bin_ = np.minimum(numerator * bins // top, bins - 1)
    p = level / top
    clipped = np.clip(p, NLL_FLOOR, 1.0 - NLL_FLOOR)
    rows = np.empty((len(counts), len(ROW_SCALARS) + bins))
    rows[:, 0] = pixels.sum(axis=1)
    rows[:, 1] = correct.sum(axis=1)
    rows[:, 2] = pixels @ numerator / top
    # Not by @, which adds up in another order for one image than for many.
    rows[:, 3] = (background * p**2 + foreground * (1.0 - p) ** 2).sum(axis=1)
    rows[:, 4] = -(background * np.log1p(-clipped) + foreground * np.log(clipped)).sum(axis=1)
    # Sums of integers are exact in float64 below 2**53; the only division comes last.
    rows[:, 5:] = (pixels * numerator - correct * top) @ (bin_[:, None] == np.arange(bins)).astype(np.float64) / top
    return rows
