"""Venn-Abers calibration of one logit: two isotonic regressions per value, one for each label it may have (Vovk 2015).

p1(z) is the isotonic regression of the data and one more pixel at z that is foreground, at z; p0(z) the same with
background. One of them is the frequency of what such a pixel would belong to, so their distance says how certain that
frequency is. The single probability with least regret is p = p1 / (1 - p0 + p1).

With N and K the numbers of pixels and of foreground up to each value, isotonic regression is the slope of the lower
convex hull of the points (N, K). The added pixel moves the points from z on by (1, label), so the slope at z is that of
the line that touches the hull of the points before z from below, and that of the moved points after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.arrays import Array, namespace, position
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats, fine_bin
from densecal.posthoc.registry import register

_MOST = 1 << 16
_STEP = 1e-8
"""Values are rounded to this, so that neighbours with the same value share a point."""

Ints = NDArray[np.int64]


@register("venn-abers")
class VennAbers(Calibrator):
    """p' = p1 / (1 - p0 + p1); which pixels lie above 0.5 may change.

    It is isotonic regression that is never certain: with few pixels it keeps away from 0 and 1. `interval` gives p0 and
    p1. Their guarantee is for exchangeable pixels; those of one image are alike, so the interval is too narrow for new
    images. More than 2^16 different logits are put into fine bins first.
    """

    tables = ("z", "p0", "p1")
    z: Floats
    p0: Floats
    p1: Floats

    def __init__(self) -> None:
        super().__init__()
        self.set_table("z", [0.0])
        self.set_table("p0", [0.0, 1.0])
        self.set_table("p1", [0.0, 1.0])

    def interval(self, z: Array) -> tuple[Array, Array]:
        """Return p0 and p1 of logits."""
        points, p0, p1 = (self.table(name, z) for name in self.tables)
        return p0[position(z, points, right=True)], p1[position(z, points, right=False)]

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return p1 / (1 - p0 + p1); NaN stays NaN."""
        xp = namespace(z)
        p0, p1 = self.interval(z)
        return xp.where(xp.isnan(z), z, p1 / (1.0 - p0 + p1))

    def check(self) -> None:
        """Raise ValueError unless z rise, and p0 and p1 are rising probabilities, one more than there are z."""
        if not self.p0.size == self.p1.size == self.z.size + 1:
            raise ValueError(f"{self.p0.size} p0 and {self.p1.size} p1; expected {self.z.size + 1}, one more than z")
        if (np.diff(self.z) <= 0).any():
            raise ValueError("z that do not rise; expected rising logits")
        for name in ("p0", "p1"):
            values = getattr(self, name)
            if values.min() < 0 or values.max() > 1 or (np.diff(values) < 0).any():
                raise ValueError(f"{name} that fall or leave [0, 1]; expected rising numbers in [0, 1]")
        if (self.p0 > self.p1).any():
            raise ValueError("p0 above p1; expected p0 <= p1")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, n, k = _bin(*data.by_logit())
        pixels, positives = (np.concatenate([[0.0], np.cumsum(part)]) for part in (n, k))
        before, after = _hull_neighbours(pixels, positives), _hull_neighbours(-pixels[::-1], positives[::-1])
        after = len(z) - after[::-1]
        p0, p1 = (_tangents(pixels, positives, before, after, label) for label in (0.0, 1.0))
        # a value below all others has p0 = 0, one above all others p1 = 1
        p0, p1 = np.append(0.0, p0), np.append(p1, 1.0)
        p0, p1 = (np.maximum.accumulate((p / _STEP).round() * _STEP).clip(0.0, 1.0) for p in (p0, p1))
        needed = (np.diff(p0) > 0) | (np.diff(p1) > 0)
        self.set_table("z", z[needed])
        self.set_table("p0", np.append(p0[0], p0[1:][needed]))
        self.set_table("p1", np.append(p1[:-1][needed], p1[-1]))


def _bin(z: Floats, n: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """Return logits with pixels and foreground; many are put into fine bins, at their mean."""
    if len(z) <= _MOST:
        return z, n, k
    _, index = np.unique(fine_bin(z), return_inverse=True)
    total, positives, sums = (np.bincount(index, weights).astype(np.float64) for weights in (n, k, n * z))
    return sums / total, total, positives


def _hull_neighbours(x: Floats, y: Floats) -> Ints:
    """Return for each point, by rising x, the one before it on the lower hull of those up to it; -1 for the first."""
    before = np.full(len(x), -1)
    xs, ys = x.tolist(), y.tolist()
    for i in range(1, len(xs)):
        j = i - 1
        while before[j] >= 0:
            b = before[j]
            # drop j if it lies on or above the line from b to i
            if (ys[j] - ys[b]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (xs[j] - xs[b]):
                break
            j = int(b)
        before[i] = j
    return before


def _tangents(x: Floats, y: Floats, before: Ints, after: Ints, label: float) -> Floats:
    """Return for each value i the slope of the line that touches the points up to i, and those from i + 1 on moved.

    The line starts between its inner ends, and each end moves along its hull while that makes the line lower. All
    values do so at once.
    """
    left, right = np.arange(len(x) - 1), np.arange(1, len(x))

    def slope(a: Ints, b: Ints) -> Floats:
        return (y[b] + label - y[a]) / (x[b] + 1.0 - x[a])

    active = np.arange(len(left))
    while active.size:
        a, b = left[active], right[active]
        now = slope(a, b)
        further = before[a]
        moves_left = (further >= 0) & (slope(np.maximum(further, 0), b) > now)
        a = np.where(moves_left, further, a)
        now = slope(a, b)
        further = after[b]
        moves_right = (further < len(x)) & (slope(a, np.minimum(further, len(x) - 1)) < now)
        left[active], right[active] = a, np.where(moves_right, further, b)
        active = active[moves_left | moves_right]
    return slope(left, right)
