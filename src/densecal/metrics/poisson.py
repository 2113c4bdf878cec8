"""Intervals from memory that does not grow with images: a Poisson bootstrap whose resamples are summed as images come.

Each of 1,000 resamples holds every image a number of times that is drawn from a Poisson distribution with mean 1
(Chamandy et al. 2012, "Estimating uncertainty for massive data streams"). The draws are a function of the image's name,
so it does not matter who counts an image, when, or beside which others. Given the name of its group in place of its
own, an image is drawn with its group, and intervals resample groups. Sums are integers: tables of parts add up to the
table of the whole, to the bit, in any order.

The intervals are those of `bootstrap.intervals` without its studentisation, which needs the rows of all images, and
whose correction falls with their number. `benchmarks/coverage.py --poisson` simulates how often they hold the truth.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.bootstrap import REPLICATES, figures, replicate_intervals, with_image_ece
from densecal.metrics.levels import ROW_SCALARS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BITS = 32
"""Sums are multiples of 2^-32."""
_DRAW_BITS = 16
_BLOCK = 256
"""Images per product of draws and rows. Rows are below 2^40 and draws below 2^4, so float64 holds the products."""
_SEED = b"densecal poisson 1\0"


class PoissonTable:
    """Sums over images in 1,000 resamples, in 280 KB for ten bins.

    Args:
        bins: Bins of the rows.

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

    def __init__(self, bins: int = 10) -> None:
        self.bins = bins
        # the images as they are, and the resamples; whole numbers and what is left of them
        self.sums: Ints = np.zeros((2, 1 + REPLICATES, len(ROW_SCALARS) + bins + 2), np.int64)

    @property
    def images(self) -> int:
        """Number of images with valid pixels."""
        return int(self.sums[0, 0, -1])

    def add(self, names: Sequence[str], rows: Floats) -> None:
        """Count images.

        Args:
            names: The name of every image, or of its group.
            rows: ``Sketch.image_rows()`` of the images.
        """
        if rows.shape != (len(names), len(ROW_SCALARS) + self.bins):
            raise ValueError(f"{len(names)} names and rows of shape {rows.shape}; expected rows of {self.bins} bins")
        counted = np.flatnonzero(rows[:, 0] > 0)
        for first in range(0, len(counted), _BLOCK):
            images = counted[first : first + _BLOCK]
            block = with_image_ece(rows[images])
            weights = np.stack([draws(names[i]) for i in images], axis=1).astype(np.float64)
            whole = np.floor(block)
            part = np.rint((block - whole) * 2.0**_BITS)
            for limb, values in enumerate((whole, part)):
                self.sums[limb, 0] += values.sum(axis=0).astype(np.int64)
                self.sums[limb, 1:] += (weights @ values).astype(np.int64)
            self._carry()

    def merge(self, other: PoissonTable) -> None:
        """Add the sums of other images."""
        if other.bins != self.bins:
            raise ValueError(f"a table of {other.bins} bins; expected {self.bins}")
        self.sums += other.sums
        self._carry()

    def _carry(self) -> None:
        self.sums[0] += self.sums[1] >> _BITS
        self.sums[1] &= (1 << _BITS) - 1

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return intervals (95 %) of the figures of `bootstrap.intervals`; NaN with fewer than two images."""
        sums = self.sums[0] + self.sums[1] * 2.0**-_BITS
        total, resampled = sums[0], sums[1:]
        if self.images < 2:
            return dict.fromkeys(figures(total), (math.nan, math.nan))
        return replicate_intervals(total, resampled[resampled[:, 0] > 0])


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
