"""The per-image table: one row of sums per image, from which pooled figures and their intervals follow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.arrays import Array, cast, namespace, on_host, take, to_host
from densecal.metrics.fine_bins import Floats, limbs_to_float
from densecal.metrics.levels import NLL_FLOOR


class RowTable:
    """Rows in the order of updates, in one array that doubles when it is full.

    A small array per update would stay between large ones that are freed, whose part of the heap could then not be
    reused: 80 KB per map. Rows on an accelerator stay in a list, because copying them would make the host wait.

    Args:
        width: Number of columns.
    """

    def __init__(self, width: int) -> None:
        self._array: Floats = np.empty((64, width))
        self._count = 0
        self._pending: list[Array] = []

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self._array.shape[1])

    def __len__(self) -> int:
        return self._count + sum(len(rows) for rows in self._pending)

    def append(self, rows: Array) -> None:
        """Add float64 rows (B, width)."""
        if self._pending or not on_host(rows):
            self._pending.append(rows)
            return
        count = self._count + len(rows)
        if count > len(self._array):
            larger = np.empty((max(count, 2 * len(self._array)), self._array.shape[1]))
            larger[: self._count] = self._array[: self._count]
            self._array = larger
        self._array[self._count : count] = rows
        self._count = count

    def extend(self, other: RowTable) -> None:
        """Add the rows of another table, without waiting for an accelerator."""
        for rows in (other._array[: other._count], *other._pending):
            self.append(rows)

    def copy(self) -> RowTable:
        """Return a table with the same rows."""
        new = RowTable(self._array.shape[1])
        new.extend(self)
        return new

    def fold(self, count: int) -> None:
        """Replace the last rows, of parts of one image, by their sum."""
        rows = self.array()
        self._array = np.concatenate([rows[: len(rows) - count], rows[len(rows) - count :].sum(axis=0)[None]])
        self._count = len(self._array)

    def reorder(self, order: list[int]) -> None:
        """Put the rows in another order."""
        self._array = self.array()[order]

    def clear(self) -> None:
        """Forget all rows."""
        self._array, self._count, self._pending = np.empty((64, self.width)), 0, []

    def array(self) -> Floats:
        """Return all rows in one array of its own."""
        pending, self._pending = self._pending, []
        for rows in pending:
            self.append(to_host(rows))
        return self._array[: self._count].copy()


def rows_of(table: Array, scores: Array) -> Array:
    """Return per-image rows (B, 5 + bins) from per-image bin tables (B, bins, 4) and sums of ``score_sums``."""
    count, correct = table[..., 0] + table[..., 1], table[..., 1]
    confidence = limbs_to_float(table[..., 2:])
    scalars = [count.sum(1), correct.sum(1), confidence.sum(1)]
    columns = [*(column[:, None] for column in scalars), scores, confidence - correct]
    return namespace(table).concatenate([cast(column, "float64") for column in columns], 1)


def score_sums(values: Array, labels: Array, softmax: bool, valid: Array | None) -> Array:
    """Return the sums of Brier score and negative log-likelihood of every image, (B, 2)."""
    xp = namespace(values)
    if softmax:
        truth = take(values, labels.clip(0, values.shape[1] - 1))
        brier = ((values * values).sum(1) - 2.0 * truth + 1.0).clip(0.0)
        return _sum_scores(brier, -xp.log(truth.clip(NLL_FLOOR, 1.0)), valid)
    truth = xp.where(labels == 1, values, 1.0 - values)
    nll = -xp.log(truth.clip(NLL_FLOOR, 1.0 - NLL_FLOOR))
    return _sum_scores((1.0 - truth) ** 2, nll, None if valid is None else valid[:, None])


def _sum_scores(brier: Array, nll: Array, valid: Array | None) -> Array:
    both = namespace(brier).stack([brier, nll])
    if valid is not None:
        both = both * valid
    return both.reshape(2, len(brier), -1).sum(2).T


def sums_of_scores(scores: Floats, valid: NDArray[np.bool_] | None) -> Floats:
    """Return the same sums (2,) of one image from its Brier scores and true probabilities (2, P), which are changed."""
    np.maximum(scores[1], NLL_FLOOR, out=scores[1])
    np.negative(np.log(scores[1], out=scores[1]), out=scores[1])
    if valid is not None:
        scores *= valid
    return np.asarray(scores.sum(1))
