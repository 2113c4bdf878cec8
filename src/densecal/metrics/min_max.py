"""Min-max stretching of maps to [0, 1], which PySODMetrics applies to every map before scoring it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks

LEVELS = {np.dtype(np.uint8): 256, np.dtype(np.uint16): 65536}

Floats = NDArray[np.float64]


def stretch_map(prediction: NDArray[Any]) -> Floats:
    """Return the map as float64, stretched to [0, 1] unless it is constant."""
    levels = LEVELS.get(prediction.dtype)
    if levels is None:
        values: Floats = np.array(prediction, dtype=np.float64, order="C")
        return _stretch(values, values.min(), values.max())
    table = stretched_levels(int(prediction.min()), int(prediction.max()), levels)
    stretched = np.empty(prediction.shape)
    for rows in row_chunks(prediction.shape):
        table.take(prediction[rows], out=stretched[rows], mode="clip")
    return stretched


def stretched_levels(low: int, high: int, levels: int = 256) -> Floats:
    """Return the values of the levels of a map between a lowest and a highest one."""
    table = np.arange(levels) / (levels - 1)
    return _stretch(table, table[low], table[high])


def _stretch(values: Floats, low: float, high: float) -> Floats:
    """Stretch in place."""
    if low != high:
        values -= low
        values /= high - low
    return values
