"""Large maps, one chunk of rows at a time, so that temporary arrays take the memory of one chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator

CHUNK = 1 << 20
"""Pixels per chunk; a smaller map is one chunk."""


def row_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices of the first axis, from the first row to the last."""
    rows = max(1, CHUNK // max(1, math.prod(shape[1:])))
    return (slice(first, min(first + rows, shape[0])) for first in range(0, shape[0], rows))
