"""Integer maps: everything about an 8- or 16-bit map follows from how often each level meets each mask value.

numpy alone, so that the worker processes of an evaluation need not load torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.geometry import boundary_distance_squared

BOUNDARY_DISTANCES = (5, 15)
"""Widths in pixels of the two boundary bands."""
ZONES = len(BOUNDARY_DISTANCES) + 1
MAX_LEVEL = 65535
"""Integer maps are counted by 16-bit level; an 8-bit level v is the 16-bit level 257 v."""
ROW_SCALARS = ("count", "correct", "confidence", "brier", "nll")
"""Columns of the per-image table before the ``bins`` columns of (sum of confidence - number correct)."""
NLL_FLOOR = 1e-7

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def boundary_zones(labels: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """Zone of every pixel (H, W): 0 within 5 pixels of another class, 1 within 15, 2 beyond."""
    squared = boundary_distance_squared(labels, BOUNDARY_DISTANCES[-1], valid)
    zones = np.zeros(squared.shape, np.uint8)
    for distance in BOUNDARY_DISTANCES:
        zones += squared > distance * distance
    return zones


def level_rows(counts: Ints, bins: int) -> Floats:
    """Per-image rows of integer maps from their histograms (B, 2, L), by integer arithmetic."""
    top = counts.shape[2] - 1
    level = np.arange(top + 1)
    numerator = np.maximum(level, top - level)
    foreground = 2 * level > top
    pixels = counts.sum(axis=1)
    correct = np.where(foreground, counts[:, 1], counts[:, 0])
    onehot = np.minimum(numerator * bins // top, bins - 1)[:, None] == np.arange(bins)
    # float64 products of integers: exact below 2**53
    gaps = (pixels * (numerator / top) - correct) @ onehot.astype(np.float64)
    p = level / top
    clipped = np.clip(p, NLL_FLOOR, 1.0 - NLL_FLOOR)
    rows = np.empty((len(counts), len(ROW_SCALARS) + bins))
    rows[:, 0] = pixels.sum(axis=1)
    rows[:, 1] = correct.sum(axis=1)
    rows[:, 2] = (pixels @ numerator) / top
    rows[:, 3] = counts[:, 0] @ p**2 + counts[:, 1] @ (1.0 - p) ** 2
    rows[:, 4] = -(counts[:, 0] @ np.log1p(-clipped) + counts[:, 1] @ np.log(clipped))
    rows[:, 5:] = gaps
    return rows
