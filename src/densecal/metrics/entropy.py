"""Entropy of foreground maps as a share of its maximum: one histogram over pixels and one mean per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

BINS = 100
"""Bins of equal width on [0, 1]; 1.0 lies in the last."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def binary_entropy(p: NDArray[Any]) -> Floats:
    """Return h(p) = -p log2(p) - (1 - p) log2(1 - p), between 0 and 1."""
    p = p.astype(np.float64)
    q = 1.0 - p
    # 0 log 0 counts as 0.
    return np.asarray(-p * np.log2(np.where(p > 0, p, 1.0)) - q * np.log2(np.where(q > 0, q, 1.0)))


def normalised_entropy(p: NDArray[Any], axis: int) -> Floats:
    """Return the entropy of class probabilities along an axis, divided by its maximum log K."""
    return np.asarray(entr(p.astype(np.float64)).sum(axis=axis) / np.log(p.shape[axis]))


def confidence_and_entropy(p: NDArray[Any]) -> dict[str, Floats]:
    """Return the confidence of the winning class and the entropy as a share of its maximum, by name.

    Args:
        p: (1, space) for the foreground, (K, space) for K classes.
    """
    classes = np.concatenate([1.0 - p, p]) if len(p) == 1 else p
    return {"confidence": classes.max(axis=0), "entropy": normalised_entropy(classes, axis=0)}


def drop_missing(images: Sequence[float | None]) -> Floats:
    """Return the mean entropies of the images with valid pixels; the others are NaN in a list and null in a file."""
    means = np.array(images, dtype=np.float64)
    return np.asarray(means[~np.isnan(means)])


@dataclass
class EntropySums:
    """Entropy of a set of images, in memory that grows by one number per image.

    Attributes:
        histogram: Pixels by entropy, int64 (100,).
        images: Mean entropy of every image, NaN for an image without valid pixels.
    """

    histogram: Ints = field(default_factory=lambda: np.zeros(BINS, np.int64))
    images: list[float] = field(default_factory=list)

    def add_levels(self, counts: Ints) -> None:
        """Add an 8- or 16-bit map, given the number of pixels of each level (256 or 65536 counts)."""
        h, index = _level_entropy(len(counts))
        self._add(np.bincount(index, counts, BINS).astype(np.int64), float(counts @ h))

    def add_map(self, p: NDArray[Any]) -> None:
        """Add a float map of any shape."""
        h = binary_entropy(p).ravel()
        self._add(np.bincount(_bin_index(h), minlength=BINS), float(h.sum()))

    def merge(self, other: EntropySums) -> None:
        """Append the images of another set."""
        self.histogram = self.histogram + other.histogram
        self.images += other.images

    def _add(self, histogram: Ints, total: float) -> None:
        self.histogram = self.histogram + histogram
        pixels = int(histogram.sum())
        self.images.append(total / pixels if pixels else float("nan"))

    def as_dict(self) -> dict[str, Any]:
        """Return the sums as they are written in records."""
        return {"histogram": self.histogram.tolist(), "images": self.images}


@lru_cache
def _level_entropy(levels: int) -> tuple[Floats, Ints]:
    """Return the entropy of every level, and the bin it falls into."""
    h = binary_entropy(np.arange(levels) / (levels - 1))
    return h, _bin_index(h)


def _bin_index(h: Floats) -> Ints:
    return np.asarray(np.minimum((h * BINS).astype(np.int64), BINS - 1))
