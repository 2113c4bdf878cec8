"""Flip rate: the share of decisions that a calibrator changes, which are foreground or not, or which class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.bootstrap import intervals
from densecal.metrics.curves import Floats
from densecal.metrics.levels import ROW_SCALARS

Array = NDArray[Any]


def count_flips(before: Array, after: Array, space: int) -> tuple[int, int]:
    """Return pixels and changed decisions of one image.

    Args:
        before: A map: floats or levels of the foreground, or floats of K classes first.
        after: The same map calibrated.
        space: Axes of space; one more means classes.
    """
    changed = decisions(before, space) != decisions(after, space)
    return changed.size, int(np.count_nonzero(changed))


def decisions(values: Array, space: int) -> Array:
    """Return where a map says foreground (p > 0.5), or the class with the highest probability."""
    if values.ndim > space:
        return np.asarray(values.argmax(axis=0))
    half = 0.5 if np.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).max // 2
    return np.asarray(values > half)


def flip_rate(counts: NDArray[np.generic], groups: Sequence[str] | None = None) -> tuple[float, tuple[float, float]]:
    """Return the share of changed decisions over all images, and its 95 % interval from resampled images.

    Args:
        counts: Pixels and changed decisions of every image, (images, 2).
        groups: The group of every image, where the interval resamples groups.
    """
    if not len(counts) or not counts[:, 0].any():
        return math.nan, (math.nan, math.nan)
    table: Floats = np.zeros((len(counts), len(ROW_SCALARS) + 1))
    table[:, 0] = counts[:, 0]
    # A share of pixels is a ratio of sums over images, as accuracy is.
    table[:, ROW_SCALARS.index("correct")] = counts[:, 1]
    return float(table[:, 1].sum() / table[:, 0].sum()), intervals(table, groups)["accuracy"]
