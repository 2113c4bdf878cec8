"""Pixels of every image by fold, class, outcome and logit: what intervals and the advice on repair are computed from.

The fold of an image depends only on its name, or on that of its group. Memory grows with neither pixels nor images.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.evaluation.repair import BINS, RepairSums, level_bins
from densecal.metrics.levels import MAX_LEVEL

FOLDS = 32
CLASS_BINS = BINS // 2
"""Number of bins for classes. It is smaller because each class has a table of its own."""
_STEPS = (1 << 14) - 1
_LEVELS = np.rint(np.arange(_STEPS + 1) * (MAX_LEVEL / _STEPS)).astype(np.int64)

Ints = NDArray[np.int64]


class FoldSums:
    """Pixels by fold, class, outcome and bin of the logit.

    Attributes:
        shape: (C, 3, bins): pixels with outcome 0, with outcome 1, and the sum of their 16-bit levels. C is 1 for
            foreground maps, with 480 bins; else the K classes and the winning one, with 240.
        counts: Counts by fold.
        images: Images with valid pixels per fold, (32,).
    """

    def __init__(self, classes: int = 1) -> None:
        self.shape = (classes, 3, BINS if classes == 1 else CLASS_BINS)
        self.counts: dict[int, Ints] = {}
        self.images: Ints = np.zeros(FOLDS, np.int64)

    def add_map(self, unit: str, counts: Ints) -> None:
        """Count an image of foreground probabilities.

        Args:
            unit: Name of the image, or of its group.
            counts: (2, L), pixels by label and level; L is 256 or 65536.
        """
        self.add_maps([unit], counts[None])

    def add_maps(self, units: Sequence[str], counts: Ints) -> None:
        """Count several images, given their names and counts (B, 2, L)."""
        for unit, image in zip(units, _by_logit(counts), strict=True):
            self.add_image(unit, image[None])

    def add_image(self, unit: str, counts: Ints) -> None:
        """Count an image, or an image of a group, given its counts."""
        if not counts.any():
            return
        fold = zlib.crc32(unit.encode("utf-8", "surrogateescape")) >> 7 & (FOLDS - 1)
        self._add(fold, counts)
        self.images[fold] += 1

    def merge(self, other: FoldSums) -> None:
        """Add the counts of another."""
        for fold, counts in other.counts.items():
            self._add(fold, counts)
        self.images += other.images

    def table(self) -> Ints:
        """Return all counts, with the fold as the first dimension."""
        table = np.zeros((FOLDS, *self.shape), np.int64)
        for fold, counts in self.counts.items():
            table[fold] = counts
        return table

    def load(self, table: Ints, images: Ints) -> None:
        """Set the counts to the values of `table` and `images`."""
        self.counts = {int(fold): table[fold] for fold in np.flatnonzero(table.any(axis=(1, 2, 3)))}
        self.images = images

    def halves(self) -> RepairSums:
        """Return the counts of foreground maps in two halves."""
        halves = RepairSums()
        for fold, counts in self.counts.items():
            halves.counts[fold & 1] += counts[0, :2]
        halves.images += self.images.reshape(-1, 2).sum(axis=0)
        return halves

    def _add(self, fold: int, counts: Ints) -> None:
        old = self.counts.get(fold)
        self.counts[fold] = counts if old is None else old + counts


class ClassCounter:
    """Counts the pixels of one image of K classes, chunk by chunk.

    Attributes:
        counts: The counts of the image for `FoldSums`.
    """

    def __init__(self, classes: int) -> None:
        self.counts: Ints = np.zeros(FoldSums(classes + 1).shape, np.int64)

    def add(self, probabilities: NDArray[Any], winner: NDArray[Any], labels: NDArray[Any], void: int) -> None:
        """Count some pixels.

        Args:
            probabilities: (K, ...), floats.
            winner: The most probable class of every pixel.
            labels: The true class of every pixel.
            void: The label of pixels that do not count.
        """
        valid = labels != void
        if not valid.all():
            probabilities, winner, labels = probabilities[:, valid], winner[valid], labels[valid]
        K, labels = len(probabilities), labels.reshape(-1).astype(np.int64)
        # in steps of 1 / 16383, rounded by truncation, and in float32, because float16 ends at 65504
        wide = np.promote_types(probabilities.dtype, np.float32)
        level = (np.multiply(probabilities.reshape(K, -1), _STEPS, dtype=wide) + wide.type(0.5)).astype(np.int16)
        true, top = (np.take_along_axis(level, c.reshape(1, -1).astype(np.int64), axis=0)[0] for c in (labels, winner))
        bin_ = _class_bins()
        hits = np.bincount(labels * CLASS_BINS + bin_[true], minlength=K * CLASS_BINS).reshape(K, -1)
        right = np.bincount(bin_[top[winner.reshape(-1) == labels]], minlength=CLASS_BINS)
        for view, (row, hit) in enumerate(zip((*level, top), (*hits, right), strict=True)):
            pixels = np.bincount(row, minlength=_STEPS + 1)
            count = np.bincount(bin_, pixels, CLASS_BINS).astype(np.int64)
            sums = np.bincount(bin_, pixels * _LEVELS, CLASS_BINS).astype(np.int64)  # below 2^53 for 2^37 pixels
            self.counts[view] += np.stack([count - hit, hit, sums])


def _by_logit(counts: Ints) -> Ints:
    """Turn pixels by level (B, 2, L) into pixels and sums of 16-bit levels by bin of the logit (B, 3, 480)."""
    levels = counts.shape[2]
    first, index = _first_levels(levels)
    sums = counts.sum(axis=1) * (np.arange(levels) * (MAX_LEVEL // (levels - 1)))
    table = np.zeros((len(counts), 3, BINS), np.int64)
    table[:, :2, index] = np.add.reduceat(counts, first, axis=2)
    table[:, 2, index] = np.add.reduceat(sums, first, axis=1)
    return table


@lru_cache
def _class_bins() -> Ints:
    return level_bins(np.arange(_STEPS + 1), _STEPS + 1) // (BINS // CLASS_BINS)


@lru_cache
def _first_levels(levels: int) -> tuple[Ints, Ints]:
    """Return the first level of every bin that holds any, and those bins, which rise with the level."""
    bins = level_bins(np.arange(levels), levels)
    first = np.flatnonzero(np.diff(bins, prepend=-1))
    return first, bins[first]
