"""The sums that an evaluation keeps of more than a million images, in memory that does not grow with their number.

The sums are integers, so it does not matter when, in which process and in which order images are added up.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.evaluation.record import Joint
from densecal.io.containers import EACH, Container
from densecal.metrics.consistency import Consistency, bands_of, unknown_bands
from densecal.metrics.curves import ReliabilityCurve
from densecal.metrics.exact import PIXEL_LIMIT, total_count
from densecal.metrics.levels import ROW_SCALARS
from densecal.metrics.overlap import MEANS
from densecal.metrics.poisson import UNIT, PoissonTable

MOST_KEPT = 1_000_000
"""Up to this number, names, rows and scores of images are kept one by one. Beyond it, they are added up."""
MOST_HASHES = 1 << 16
"""Of the names, that many hashes are kept, the smallest: parts with images in common have some of these in common."""
FEW_GROUPS = 300
"""With fewer groups, intervals from Poisson tables are too narrow: see `benchmarks/coverage.py --poisson`."""
JOINT_CELLS = 100
"""The joint density of confidence and accuracy is kept on a grid of this many cells per side."""
COLUMNS = ("confidence", "accuracy", "squared_distance", "dice", "iou", "has_overlap")
"""The values of every image that are added up besides its row."""
_MOST = 1 << 62
"""Upper bound of all sums, so that those of two parts fit into int64."""

Interval = tuple[float, float]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ImageSums:
    """Sums over images.

    Args:
        bins: Number of bins of their rows.

    Attributes:
        images: Number of images, including those without valid pixels.
        table: Sums of rows and `COLUMNS`, as they are and in 1,000 resamples, over the images with valid pixels.
        cells: Counts of these images by mean confidence and accuracy.
        groups: A hash of the name of every group of these images.
        hashes: The smallest hashes of the names of all images, in order.
    """

    def __init__(self, bins: int) -> None:
        self.images = 0
        self.table = PoissonTable(bins, len(COLUMNS))
        self.cells: Ints = np.zeros((JOINT_CELLS, JOINT_CELLS), np.int64)
        self.groups: set[int] = set()
        self.hashes: NDArray[np.uint64] = np.empty(0, np.uint64)

    def add(self, names: Sequence[str], rows: Floats, overlaps: NDArray[Any], groups: Sequence[str] | None) -> None:
        """Add images.

        Args:
            names: Their names.
            rows: ``Sketch.image_rows()``.
            overlaps: Dice and IoU, (images, 2).
            groups: Their groups, if images are grouped.
        """
        counted = rows[:, 0] > 0
        confidence, accuracy = points_of(rows)
        scored = ~np.isnan(overlaps[:, 0])
        columns = [confidence, accuracy, (confidence - accuracy) ** 2, np.where(scored[:, None], overlaps, 0.0), scored]
        self.table.add(names if groups is None else groups, rows, np.column_stack(columns))
        np.add.at(self.cells, (cells_of(confidence[counted]), cells_of(accuracy[counted])), 1)
        self.groups.update(name_hash(group) for group, keep in zip(groups or (), counted, strict=False) if keep)
        self.images += len(names)
        self._add_hashes(name_hashes(names))

    def merge(self, other: ImageSums) -> None:
        """Add the sums of other images."""
        self.images += other.images
        self.table.merge(other.table)
        self.cells += other.cells
        self.groups |= other.groups
        self._add_hashes(other.hashes)

    def _add_hashes(self, hashes: NDArray[np.uint64]) -> None:
        if len(self.hashes) == MOST_HASHES:
            hashes = hashes[hashes < self.hashes[-1]]
        hashes = np.sort(hashes)
        self.hashes = np.insert(self.hashes, np.searchsorted(self.hashes, hashes), hashes)[:MOST_HASHES]

    @property
    def pixels(self) -> int:
        """Number of valid pixels."""
        return int(self.table.sums[0, 0, 0])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums as arrays of a container."""
        return {
            "images/number": np.array(self.images),
            "images/sums": self.table.sums,
            "images/cells": self.cells,
            "images/hashes": self.hashes,
            f"{EACH}group_hashes": np.array(sorted(self.groups), np.uint64),
        }

    def intervals(self) -> dict[str, Interval]:
        """Return the intervals of the calibration figures."""
        return self._unless_alone(self.table.intervals())

    def overlaps(self) -> tuple[dict[str, float], dict[str, Interval]]:
        """Return the means of Dice and IoU over the images that have one, and their intervals."""
        counted = COLUMNS.index("has_overlap")
        means = {name: self.table.mean(COLUMNS.index(name.partition("_")[0]), counted) for name in MEANS}
        ends = {name: interval for name, (_, interval) in means.items()}
        return {name: mean for name, (mean, _) in means.items()}, self._unless_alone(ends)

    def consistency(self, curve: ReliabilityCurve) -> Consistency:
        """Return the consistency bands. A draw minus 1 has mean 0 and variance 1, like a random sign."""
        gaps = self.table.gaps()
        if len(self.groups) == 1:
            return unknown_bands(curve)
        return bands_of(gaps[1:] - gaps[0], gaps[0], float(curve.count.sum()), curve)

    def _unless_alone(self, intervals: dict[str, Interval]) -> dict[str, Interval]:
        """Return intervals, or NaN if all images belong to one group, which resampling cannot vary."""
        return dict.fromkeys(intervals, (math.nan, math.nan)) if len(self.groups) == 1 else intervals

    def joint(self) -> Joint:
        """Return the distribution of the images over mean confidence and accuracy."""
        confidence, accuracy, squared = (self.table.mean(column)[0] for column in range(3))
        cells = ((int(x), int(y), int(self.cells[x, y])) for x, y in np.argwhere(self.cells))
        return Joint(JOINT_CELLS, tuple(cells), confidence, accuracy, math.sqrt(squared))


def read_image_sums(container: Container, bins: int) -> ImageSums | None:
    """Read the sums that `ImageSums.arrays` put into a container, or return None if it holds the images one by one.

    Raises:
        InputError: They are damaged, or inconsistent.
    """
    if "images/number" not in container:
        return None
    sums = ImageSums(bins)
    sums.images = int(container.array("images/number", "i8", ()))
    table = sums.table.sums = container.array("images/sums", "i8", sums.table.sums.shape)
    sums.cells = container.array("images/cells", "i8", sums.cells.shape)
    hashes = container.array(f"{EACH}group_hashes", "u8", (-1,))
    sums.groups = set(hashes.tolist())
    sums.hashes = container.array("images/hashes", "u8", (min(max(sums.images, 0), MOST_HASHES),))
    whole, part = table
    positive = np.delete(whole, np.s_[len(ROW_SCALARS) : len(ROW_SCALARS) + bins], axis=1)
    fits = (
        0 <= sums.table.images == total_count(sums.cells) <= sums.images <= PIXEL_LIMIT
        and (sums.cells >= 0).all()
        and (positive >= 0).all()
        and ((whole > -_MOST) & (whole < _MOST)).all()
        and ((part >= 0) & (part < UNIT)).all()
        and not part[0, 0]
        and len(sums.groups) <= sums.table.images
        and (sums.hashes[1:] >= sums.hashes[:-1]).all()
    )
    if not fits:
        raise container.error("inconsistent sums over images", "a part that densecal evaluate --partial wrote")
    return sums


def points_of(rows: Floats) -> tuple[Floats, Floats]:
    """Return the mean confidence and the accuracy of images from their rows; 0 without valid pixels."""
    pixels = np.maximum(rows[:, 0], 1.0)
    return rows[:, ROW_SCALARS.index("confidence")] / pixels, rows[:, ROW_SCALARS.index("correct")] / pixels


def cells_of(values: Floats) -> Ints:
    """Return the index of the equal cell of [0, 1] that holds each value; 1.0 is in the last."""
    return np.asarray(np.minimum((values * JOINT_CELLS).astype(np.int64), JOINT_CELLS - 1))


def name_hash(name: str) -> int:
    """Return 64 bits that stand for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def name_hashes(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return the hash of every name."""
    return np.fromiter(map(name_hash, names), np.uint64, len(names))
