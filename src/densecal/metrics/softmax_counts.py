"""Count softmax maps in main memory by compiled passes: the tables of a sketch, with the bits of NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import compiled
from densecal.metrics.compiled import MOST_CLASSES
from densecal.metrics.fine_bins import Floats, Ints, fine_size
from densecal.metrics.image_rows import softmax_score_sums
from densecal.metrics.inputs import SLACK, SUM_SLACK, check_values
from densecal.metrics.levels import ZONES
from densecal.metrics.sketch_files import STEPS_SIGMOID, STEPS_SOFTMAX

_MOST_BINS = 1 << 16
_SLACKS = 0.9 * SLACK, 0.9 * SUM_SLACK
"""Probabilities within these are good, whatever the rounding of their sum in float32."""


def can_count(values: NDArray[Any], bins: int) -> bool:
    """Return whether compiled passes count these probabilities (B, K, P)."""
    fits = values.shape[1] <= MOST_CLASSES and bins <= _MOST_BINS
    return fits and compiled.takes_floats(values)


class SoftmaxCounts:
    """The counts of a batch of softmax maps.

    Args:
        classes: K.
        bins: Equal-width bins.
        top_ks: For each k, count the k most probable classes together.
        boundary: Also count by boundary band.
        fine: Also count in fine bins.

    Attributes:
        tables: The counts by the names of a sketch's tables, but for those by image.
    """

    def __init__(self, classes: int, bins: int, top_ks: tuple[int, ...], boundary: bool, fine: bool) -> None:
        self.bins, self.top_ks = bins, np.array(top_ks, np.uint8)
        self.tables = {"classes": np.zeros((classes, bins, 4), np.int64)}
        if top_ks:
            self.tables["top_k"] = np.zeros((len(top_ks), bins, 4), np.int64)
        if boundary:
            self.tables["bands"] = np.zeros((ZONES - 1, bins, 4), np.int64)
        if fine:
            self.tables["fine"] = np.zeros((classes, fine_size(STEPS_SOFTMAX), 4), np.int64)
            self.tables["fine_top"] = np.zeros((fine_size(STEPS_SIGMOID), 4), np.int64)

    def add(
        self,
        values: NDArray[Any],
        labels: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        zones: NDArray[Any] | None,
        part: slice,
    ) -> tuple[Ints, Floats]:
        """Count some pixels of an image.

        Args:
            values: Probabilities (K, P) of all its pixels.
            labels: Class indices of the pixels of the part.
            valid: False at void ones.
            zones: Their boundary zones.
            part: The pixels to count.

        Raises:
            ValueError: They are not probabilities.

        Returns:
            The table (bins, 4) of the winning class, and the sums of Brier score and NLL (2,).
        """
        classes, pixels = values.shape
        labels = labels.astype(np.uint8, copy=False)
        count = len(labels)
        shares, rank = np.empty((1 + len(self.top_ks), count)), np.empty(count, np.uint8)
        squares, truth = np.empty((2, count))
        certain = compiled.native.rank_classes(
            values, np.ascontiguousarray(labels), valid, shares, rank, squares, truth, self.top_ks, *_SLACKS, classes,
            pixels, part.start, count,
        )  # fmt: skip
        if not certain:
            check_values(values[None, :, part], None if valid is None else valid[None], False, True, count)
        void = None if valid is None else (~valid).view(np.uint8)
        top = np.zeros((1, self.bins, 4), np.int64)
        tally_into(top, shares[0], rank == 0, void, self.tables.get("fine_top"), STEPS_SIGMOID)
        if zones is not None:
            bands = zones.astype(np.uint8) if valid is None else np.where(valid, zones, ZONES).astype(np.uint8)
            by_zone = np.zeros((ZONES, self.bins, 4), np.int64)
            tally_into(by_zone, shares[0], rank == 0, bands)
            self.tables["bands"] += by_zone.cumsum(0)[:-1]
        for k, share, table in zip(self.top_ks, shares[1:], self.tables.get("top_k", ()), strict=True):
            tally_into(table[None], share, rank < k, void)
        fine = self.tables.get("fine")
        for k, (value, table) in enumerate(zip(values[:, part], self.tables["classes"], strict=True)):
            tally_into(table[None], value, labels == k, void, None if fine is None else fine[k], STEPS_SOFTMAX)
        return top[0], softmax_score_sums(squares[None], truth[None], None if valid is None else valid[None])[0]


def tally_into(
    table: Ints,
    value: NDArray[Any],
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
