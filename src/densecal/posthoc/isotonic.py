"""Isotonic regression: the best rising map from probability to frequency."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from densecal.metrics.arrays import Array, namespace, position, sigmoid
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.registry import register

_FAR = 100.0
"""A logit beyond which the sigmoid is 0 or 1 in float32."""


@register("isotonic")
class IsotonicRegression(Calibrator):
    """The non-decreasing function of p with the least squared error, linear in p between its fitted points.

    Ties are merged first. Beyond the lowest and the highest p the function is constant. Outputs can be exactly 0 and 1,
    and which pixels lie above 0.5 may change. Points are kept as logits z, which stay distinct where p rounds to 1.
    """

    tables = ("z", "y")
    z: Floats
    y: Floats

    def __init__(self) -> None:
        super().__init__()
        ends = np.array([-_FAR, _FAR])
        self.set_table("z", ends)
        self.set_table("y", sigmoid(ends))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the fitted function at p = sigmoid(z)."""
        xp = namespace(z)
        points, y = self.table("z", z), self.table("y", z)
        z = z.clip(points[0], points[-1])
        right = position(z, points, right=False).clip(1, len(points) - 1)
        y0, y1 = y[right - 1], y[right]
        share = share_of_rise(z, points[right - 1], points[right])
        # y0 + (y1 - y0) can differ from y1 by rounding, and the function would then fall after a flat part.
        return xp.where(share >= 1, y1, xp.minimum(y0 + share * (y1 - y0), y1))

    def check(self) -> None:
        """Raise ValueError unless the points rise and their y are probabilities."""
        if self.z.size != self.y.size or self.z.size < 2:
            raise ValueError(f"{self.z.size} z and {self.y.size} y; expected two or more points")
        if (np.diff(self.z) < 0).any():
            raise ValueError("z that fall; expected rising logits")
        if self.y.min() < 0 or self.y.max() > 1 or (np.diff(self.y) < 0).any():
            raise ValueError("y that fall or leave [0, 1]; expected rising numbers in [0, 1]")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, n, k = data.by_logit()
        fit = isotonic_regression(k / n, weights=n)
        # a block of equal values is described by its first and last point, which may be the same
        ends = np.stack([fit.blocks[:-1], fit.blocks[1:] - 1], axis=1).ravel()
        kept = np.append(True, np.diff(ends) > 0) if len(z) > 1 else slice(None)
        self.set_table("z", z[ends][kept])
        self.set_table("y", fit.x[ends][kept])


def share_of_rise(z: Array, a: Array, b: Array) -> Array:
    """Return (s(z) - s(a)) / (s(b) - s(a)) for a <= z <= b and s the sigmoid, exact even where s rounds to 1.

    s(z) - s(a) = s(z) s(-a) (1 - exp(a - z)), and s(z) = exp(min(z, 0)) s(|z|).
    """
    xp = namespace(z)
    ratio = xp.exp(z.clip(max=0.0) - b.clip(max=0.0)) * sigmoid(abs(z)) / sigmoid(abs(b))
    tiny = xp.finfo(z.dtype).tiny  # of points that are equal in this type, the rise is 0
    return (ratio * _half_rise(z - a) / _half_rise(b - a).clip(min=tiny)).clip(0.0, 1.0)


def _half_rise(d: Array) -> Array:
    """Return (1 - exp(-d)) / 2, exact for small d without expm1, which ONNX lacks."""
    t = namespace(d).tanh(d / 2.0)
    return t / (1.0 + t)
