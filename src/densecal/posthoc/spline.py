"""Spline calibration: the gap between confidence and frequency as the slope of a natural cubic spline (Gupta 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from densecal.errors import InputError
from densecal.metrics.arrays import Array, position, sigmoid
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.registry import register

_POINTS = 512


@register("spline")
class SplineCalibration(Calibrator):
    """p' = p + h'(t), where t is the share of pixels with a smaller p; which pixels lie above 0.5 may change.

    h(t) is the natural cubic spline with equally spaced knots that is closest to the mean of y - p over the pixels of
    smaller p, times t: its slope is the gap between frequency and p. h' is kept at about a thousand logits, linear
    between them. Of n pixels, p' stays in [1 / (n + 2), 1 - 1 / (n + 2)].

    Args:
        knots: Number of knots.
    """

    tables = ("z", "gap", "least")
    z: Floats
    gap: Floats
    least: Floats

    def __init__(self, knots: int = 6) -> None:
        super().__init__()
        if not 3 <= knots <= 100:
            raise InputError("spline: knots", str(knots), "3 to 100")
        self.knots = knots
        self.set_table("z", [-1.0, 1.0])
        self.set_table("gap", [0.0, 0.0])
        self.set_table("least", 0.0)

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return p + h'."""
        points, gap, least = (self.table(name, z) for name in self.tables)
        inside = z.clip(points[0], points[-1])
        right = position(inside, points, right=False).clip(1, len(points) - 1)
        share = (inside - points[right - 1]) / (points[right] - points[right - 1])
        return (sigmoid(z) + gap[right - 1] + share * (gap[right] - gap[right - 1])).clip(least, 1.0 - least)

    def check(self) -> None:
        """Raise ValueError unless the points rise and each has a gap."""
        if self.z.size != self.gap.size or self.z.size < 2:
            raise ValueError(f"{self.z.size} z and {self.gap.size} gaps; expected two or more points")
        if not (np.diff(self.z.astype(np.float32)) > 0).all():
            raise ValueError("z that do not rise; expected rising logits")
        if not 0 <= self.least < 0.5:
            raise ValueError(f"least {float(self.least)}; expected a number from 0 to 0.5")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, n, k = data.by_logit()
        if len(z) < 2:
            raise InputError("spline", "one value at all pixels", "maps with more levels")
        total = n.sum()
        before, after = (np.cumsum(n) - n) / total, np.cumsum(n) / total
        rise = (k - n * sigmoid(z)) / total
        level = np.cumsum(rise) - rise
        # Pixels of equal z have no order, so the curve is straight within them; Simpson's rule adds up its squares.
        t = np.concatenate([before, (before + after) / 2, after])
        h = np.concatenate([level, level + rise / 2, level + rise])
        weight = np.sqrt(np.concatenate([n, 4 * n, n]) / (6 * total))
        knots = np.linspace(0.0, 1.0, self.knots)
        basis = CubicSpline(knots, np.eye(self.knots), bc_type="natural")
        values = np.linalg.lstsq(weight[:, None] * basis(t), weight * h, rcond=None)[0]
        middle = (before + after) / 2
        kept = _spread(z, middle)
        self.set_table("z", z[kept])
        self.set_table("gap", basis(middle[kept], 1) @ values)
        self.set_table("least", 1.0 / (total + 2.0))


def _spread(z: Floats, t: Floats) -> Any:
    """Return the indices of points that are spread over ranks, over shares of the pixels and over logits."""
    ranks = np.linspace(0, len(z) - 1, _POINTS).astype(int)
    shares = np.searchsorted(t, np.linspace(0, 1, _POINTS)).clip(max=len(z) - 1)
    kept = np.unique(np.concatenate([ranks, shares]))
    rises = np.append(True, np.diff(z[kept].astype(np.float32)) > 0)  # points that are equal in float32 are one
    return kept[rises]
