"""Images in groups that fit into memory together, and the chunks in which maps leave a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

LARGE_PIXELS = 1 << 24
"""4,096 x 4,096. Larger images lose most of their detail when they are resized for the network."""

T = TypeVar("T")
Chunks = Iterator[NDArray[np.float32]]
"""Probabilities (classes, rows, W) of one image, from top to bottom."""


def group_by_pixels(samples: Iterable[T], pixels: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield groups of at most ``limit`` samples, smaller ones where samples together exceed ``LARGE_PIXELS``."""
    group: list[T] = []
    for sample in samples:
        group.append(sample)
        if len(group) == limit or sum(map(pixels, group)) > LARGE_PIXELS:
            yield group
            group = []
    if group:
        yield group
