"""Count softmax maps in main memory by compiled passes: the tables of a sketch, with the bits of NumPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import compiled
from densecal.metrics.arrays import Array, on_host
from densecal.metrics.compiled import MOST_CLASSES
from densecal.metrics.fine_bins import Floats, Ints, fine_size
from densecal.metrics.image_rows import sums_of_scores
from densecal.metrics.inputs import SLACK, SUM_SLACK, check_values
from densecal.metrics.levels import ZONES
from densecal.metrics.sketch_files import STEPS_SIGMOID, STEPS_SOFTMAX

_MOST_BINS = 1 << 16
_SLACKS = 0.9 * SLACK, 0.9 * SUM_SLACK
"""Probabilities within these are good, whatever the rounding of their sum in float32."""


def counts_for(
    values: Array,
    valid: Array | None,
    bins: int,
    top_ks: tuple[int, ...],
    boundary: bool,
    is_large: Callable[[int], bool],
) -> SoftmaxCounts | None:
    """Return what counts a batch of softmax maps by compiled passes, if they can.

    Args:
        values: Probabilities (B, K, P).
        valid: False at void pixels (B, P).
        bins: Equal-width bins.
        top_ks: For each k, count the k most probable classes together.
        boundary: Also count by boundary band.
        is_large: Whether so many pixels more are counted in fine bins.
    """
    classes = values.shape[1]
    if not on_host(values) or classes > MOST_CLASSES or bins > _MOST_BINS or not compiled.takes_floats(values):
        return None
    pixels = len(values) * values.shape[2] if valid is None else int(np.count_nonzero(valid))
    return SoftmaxCounts(classes, bins, top_ks, boundary, pixels if is_large(pixels) else None)


class SoftmaxCounts:
    """The counts of a batch of softmax maps.

    Args:
        classes: K.
        bins: Equal-width bins.
        top_ks: For each k, count the k most probable classes together.
        boundary: Also count by boundary band.
        fine_pixels: Number of pixels, if they are also counted in fine bins.

    Attributes:
        tables: The counts by the names of a sketch's tables, but for those by image.
        fine_pixels: How many pixels are counted in fine bins.
    """

    def __init__(
        self, classes: int, bins: int, top_ks: tuple[int, ...], boundary: bool, fine_pixels: int | None
    ) -> None:
        self.bins, self.top_ks, self.fine_pixels = bins, np.array(top_ks, np.uint8), fine_pixels or 0
        self.tables = {"classes": np.zeros((classes, bins, 4), np.int64)}
        if top_ks:
            self.tables["top_k"] = np.zeros((len(top_ks), bins, 4), np.int64)
        if boundary:
            self.tables["bands"] = np.zeros((ZONES - 1, bins, 4), np.int64)
        if fine_pixels is not None:
            self.tables["fine"] = np.zeros((classes, fine_size(STEPS_SOFTMAX), 4), np.int64)
            self.tables["fine_top"] = np.zeros((fine_size(STEPS_SIGMOID), 4), np.int64)

    def add(
        self,
        values: Array,
        labels: Array,
        valid: Array | None,
        zones: Array | None,
        part: slice,
        table: Array,
        scores: Array,
    ) -> None:
        """Count some pixels of a group of images by winning class, and their k most probable classes together.

        Args:
            values: Probabilities (B, K, P) of all their pixels.
            labels: Class indices of the pixels of the part.
            valid: False at void ones.
            zones: Their boundary zones.
            part: The pixels to count.
            table: What is added to: the counts (B, bins, 4) of the winning class.
            scores: The same for the sums of Brier score and NLL (B, 2).

        Raises:
            ValueError: They are not probabilities.
        """
        for image, whole in enumerate(values):
            keep = None if valid is None or valid[image].all() else valid[image]
            near = None if zones is None else zones[image]
            scores[image] += self._add_image(whole, labels[image], keep, near, part, table[image, None])

    def _add_image(
        self, values: Array, labels: Array, valid: Array | None, zones: Array | None, part: slice, table: Ints
    ) -> Floats:
        classes, pixels = values.shape
        count = len(labels)
        top, rank = np.empty(count, values.dtype), np.empty(count, np.uint8)
        shares, scores = np.empty((len(self.top_ks), count)), np.empty((2, count))
        certain = compiled.native.rank_classes(
            values, np.ascontiguousarray(labels, np.uint8), valid, top, shares, rank, scores, self.top_ks, *_SLACKS,
            classes, pixels, part.start, count,
        )  # fmt: skip
        if not certain:
            check_values(values[None, :, part], None if valid is None else valid[None], False, True, count)
        void = None if valid is None else (~valid).view(np.uint8)
        fine = self.tables.get("fine_top")
        if values.dtype == np.float32:
            steps = STEPS_SOFTMAX if fine is None else STEPS_SIGMOID
            compiled.native.tally_classes(top, rank, valid, table, fine, 1, 1, count, self.bins, steps)
        else:
            tally_into(table, top, rank == 0, void, fine, STEPS_SIGMOID)
        if zones is not None:
            bands = zones.astype(np.uint8) if valid is None else np.where(valid, zones, ZONES).astype(np.uint8)
            by_zone = np.zeros((ZONES, self.bins, 4), np.int64)
            tally_into(by_zone, top.astype(np.float64, copy=False), rank == 0, bands)
            self.tables["bands"] += by_zone.cumsum(0)[:-1]
        for k, share, own in zip(self.top_ks, shares, self.tables.get("top_k", ()), strict=True):
            tally_into(own[None], share, rank < k, void)
        return sums_of_scores(scores, valid)

    def add_classes(self, values: Array, labels: Array, valid: Array | None) -> None:
        """Count all pixels of the batch by class; they were checked by `add`.

        Args:
            values: Probabilities (B, K, P).
            labels: Class indices (B, P).
            valid: False at void pixels (B, P).
        """
        images, classes, pixels = values.shape
        table, fine = self.tables["classes"], self.tables.get("fine")
        labels = np.ascontiguousarray(labels, np.uint8)
        if values.dtype == np.float32:
            keep = None if valid is None else np.ascontiguousarray(valid)
            compiled.native.tally_classes(
                values, labels, keep, table, fine, images, classes, pixels, self.bins, STEPS_SOFTMAX
            )
            return
        for image in range(images):
            void = None if valid is None else (~valid[image]).view(np.uint8)
            for k in range(classes):
                own = None if fine is None else fine[k]
                tally_into(table[k, None], values[image, k], labels[image] == k, void, own, STEPS_SOFTMAX)


def tally_into(
    table: Ints,
    value: Floats,
    outcome: NDArray[np.bool_],
    group: NDArray[np.uint8] | None,
    fine: Ints | None = None,
    steps: int = 0,
) -> None:
    """Add what `tally` and `fine_tally` count to a table (groups, bins, 4) and to one of fine bins.

    Args:
        table: Counts by group and equal-width bin.
        value: Probabilities (P,).
        outcome: Whether each pixel has outcome 1.
        group: The group of each pixel, the first without; pixels of groups that the table does not have do not count.
        fine: Counts by fine bin.
        steps: Of the fine bins.
    """
    groups, bins, _ = table.shape
    compiled.native.tally(value, outcome, group, table, fine, len(value), groups, bins, steps)
