"""Intervals from memory that does not grow with images: a Poisson bootstrap whose resamples are summed as images come.

Each of 1,000 resamples holds every image a number of times that is drawn from a Poisson distribution with mean 1
(Chamandy et al. 2012, "Estimating uncertainty for massive data streams"). The draws are a function of the image's name,
so it does not matter who counts an image, when, or beside which others. Given the name of its group in place of its
own, an image is drawn with its group, and intervals resample groups. Sums are integers: tables of parts add up to the
table of the whole, to the bit, in any order.

The intervals are those of `bootstrap.intervals` without its studentisation, which needs the rows of all images, and
whose correction falls with their number. `benchmarks/coverage.py --poisson` simulates how often they contain the truth.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.bootstrap import REPLICATES, Interval, figures, percentiles, replicate_intervals, with_image_ece
from densecal.metrics.levels import ROW_SCALARS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BITS = 32
UNIT = 1 << _BITS
"""Sums are multiples of 2^-32."""
_DRAW_BITS = 16
_BLOCK = 256
"""Images per product of draws and rows. Rows are below 2^40 and draws below 2^4, so float64 holds the products."""
_SEED = b"densecal poisson 1\0"


class PoissonTable:
    """Sums over images in 1,000 resamples, in 280 KB for ten bins.

    Args:
        bins: Bins of the rows.
        more: Further columns of numbers from 0 to 1, whose means are computed.

    Examples:
        >>> rows = np.array([[100.0, 90.0, 95.0, 12.0, 30.0, 5.0], [100.0, 80.0, 70.0, 20.0, 50.0, -10.0]])
        >>> whole, part = PoissonTable(bins=1), PoissonTable(bins=1)
        >>> whole.add(["a", "b"], rows)
        >>> part.add(["b"], rows[1:])
        >>> other = PoissonTable(bins=1)
        >>> other.add(["a"], rows[:1])
        >>> part.merge(other)
        >>> bool((part.sums == whole.sums).all()), part.images
        (True, 2)
    """

    def __init__(self, bins: int = 10, more: int = 0) -> None:
        self.bins = bins
        self._own = len(ROW_SCALARS) + bins + 2
        # the images as they are, and the resamples; whole numbers and remainders
        self.sums: Ints = np.zeros((2, 1 + REPLICATES, self._own + more), np.int64)

    @property
    def images(self) -> int:
        """Number of images with valid pixels."""
        return int(self.sums[0, 0, self._own - 1])

    def add(self, names: Sequence[str], rows: Floats, more: Floats | None = None) -> None:
        """Count images.

        Args:
            names: The name of every image, or of its group.
            rows: ``Sketch.image_rows()`` of the images.
            more: Their further columns.
        """
        more = np.empty((len(rows), 0)) if more is None else more
        if rows.shape != (len(names), len(ROW_SCALARS) + self.bins):
            raise ValueError(f"{len(names)} names and rows of shape {rows.shape}; expected rows of {self.bins} bins")
        counted = np.flatnonzero(rows[:, 0] > 0)
        for first in range(0, len(counted), _BLOCK):
            images = counted[first : first + _BLOCK]
            block = np.column_stack([with_image_ece(rows[images]), more[images]])
            weights = np.stack([draws(names[i]) for i in images], axis=1).astype(np.float64)
            whole = np.floor(block)
            part = np.rint((block - whole) * UNIT)
            for limb, values in enumerate((whole, part)):
                self.sums[limb, 0] += values.sum(axis=0).astype(np.int64)
                self.sums[limb, 1:] += (weights @ values).astype(np.int64)
            self._carry()

    def merge(self, other: PoissonTable) -> None:
        """Add the sums of other images."""
        if other.sums.shape != self.sums.shape:
            raise ValueError(f"a table of {other.bins} bins; expected {self.bins}")
        self.sums += other.sums
        self._carry()

    def _carry(self) -> None:
        self.sums[0] += self.sums[1] >> _BITS
        self.sums[1] &= UNIT - 1

    def figures(self) -> dict[str, Floats]:
        """Return the figures of `bootstrap.figures`."""
        return figures(self._columns(0, self._own)[0])

    def intervals(self) -> dict[str, Interval]:
        """Return intervals (95 %) of the figures; NaN with fewer than two images."""
        total, *resampled = self._columns(0, self._own)
        if self.images < 2:
            return dict.fromkeys(figures(total), (math.nan, math.nan))
        return replicate_intervals(total, np.array([row for row in resampled if row[0] > 0]))

    def mean(self, column: int, counted: int | None = None) -> tuple[float, Interval]:
        """Return the mean of a further column, and its interval (95 %); NaN where there is none.

        Args:
            column: Index of the further column.
            counted: The further column that is 1 for the images that have a value, and 0 for the others.
        """
        sums = self._columns(self._own + column)[:, 0]
        units = self._columns(self._own - 1 if counted is None else self._own + counted)[:, 0]
        if units[0] == 0:
            return math.nan, (math.nan, math.nan)
        mean = float(sums[0] / units[0])
        if units[0] < 2:
            return mean, (math.nan, math.nan)
        drawn = units[1:] > 0
        low, high = percentiles(2 * mean - sums[1:][drawn] / units[1:][drawn])
        return mean, (max(low, 0.0), min(high, 1.0))

    def gaps(self) -> Floats:
        """Return the gap of every bin, of the images as they are and of every resample, (1 + resamples, bins)."""
        return self._columns(len(ROW_SCALARS), self._own - 2)

    def _columns(self, first: int, end: int | None = None) -> Floats:
        """Return the sums of some columns: of the images as they are, and of every resample."""
        whole, part = self.sums[:, :, first : first + 1 if end is None else end]
        return np.asarray(whole + part / UNIT)


def draws(name: str) -> NDArray[np.uint8]:
    """Return how often an image is in each resample: always the same for a name."""
    content = _SEED + name.encode("utf-8", "surrogateescape")
    digest = hashlib.shake_128(content).digest(REPLICATES * _DRAW_BITS // 8)
    return np.asarray(_poisson()[np.frombuffer(digest, "<u2")])


@lru_cache(maxsize=1)
def _poisson() -> NDArray[np.uint8]:
    """Return 2^16 equally likely numbers whose distribution is Poisson's; sum and mean are exact."""
    size = 1 << _DRAW_BITS
    count = [round(size * math.exp(-1.0) / math.factorial(k)) for k in range(10)]
    count[1] = size - sum(k * n for k, n in enumerate(count[2:], start=2))
    count[0] = size - sum(count[1:])
    return np.repeat(np.arange(len(count), dtype=np.uint8), count)
