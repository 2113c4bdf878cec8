"""Large maps, a band of rows at a time: what is computed from a band needs memory for that band alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

BAND = 1 << 20
"""Pixels of a band; smaller maps are one."""


def row_bands(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the first axis, from the first row to the last."""
    rows = max(1, BAND // max(1, math.prod(shape[1:])))
    return (slice(first, min(first + rows, shape[0])) for first in range(0, shape[0], rows))
