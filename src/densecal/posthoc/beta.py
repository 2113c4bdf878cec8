"""Beta calibration: separate slopes for ln p and ln(1 - p) (Kull 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, log_sigmoid, namespace, sigmoid
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logistic import mean_nll, overlap
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.newton import Function, NoMinimumError, minimise
from densecal.posthoc.registry import register


@register("beta")
class BetaCalibration(Calibrator):
    """p' = sigmoid(c + a ln p - b ln(1 - p)) with a, b >= 0, by maximum likelihood.

    It may change which pixels lie above 0.5.

    a = b = 1, c = 0 changes nothing; a = b, c = 0 is temperature 1/a; a = b is Platt scaling.
    """

    tables = ("a", "b", "c")
    a: Floats
    b: Floats
    c: Floats

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("a", 1.0), ("b", 1.0), ("c", 0.0)):
            self.set_table(name, value)

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the sigmoid of c + a ln p - b ln(1 - p)."""
        a, b, c = (self.table(name, z) for name in self.tables)
        limits = namespace(z).finfo(z.dtype)
        z = z.clip(limits.min, limits.max)  # a slope of 0 times an infinite logarithm would be NaN
        return sigmoid(c + a * log_sigmoid(z) - b * log_sigmoid(-z))

    def check(self) -> None:
        """Raise ValueError unless the map rises."""
        if self.a < 0 or self.b < 0:
            raise ValueError(f"a {float(self.a)} and b {float(self.b)}; expected numbers of at least 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, y, n = data.by_label()
        if not overlap(z, y):
            raise InputError("beta", "logits that a threshold separates by label", "overlapping classes")
        features = np.stack([-np.logaddexp(0.0, -z), np.logaddexp(0.0, z), np.ones_like(z)], axis=1)
        a, b, c = _minimum_above_zero(mean_nll(features, y, n))
        if a == b == 0:
            raise InputError(
                "beta", "logits that point away from the labels", "logits that are right more often than wrong"
            )
        for name, value in zip(self.tables, (a, b, c), strict=True):
            self.set_table(name, value)


def _minimum_above_zero(nll: Function) -> Floats:
    """Minimise over a, b >= 0: the best of the minima in which none, one or both are held at 0."""
    candidates = []
    for free in ([0, 1, 2], [0, 2], [1, 2], [2]):
        try:
            x = np.zeros(3)
            x[free] = minimise(_restrict(nll, free), [1.0] * (len(free) - 1) + [0.0])
        except NoMinimumError:  # the slopes diverge towards values of which one is negative
            continue
        if x[0] >= 0 and x[1] >= 0:
            if len(free) == 3:
                return x
            candidates.append((nll(x)[0], x))
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _restrict(nll: Function, free: list[int]) -> Function:
    """Restrict a function to its free parameters. The others are 0."""

    def function(part: Floats) -> tuple[float, Floats, Floats]:
        x = np.zeros(3)
        x[free] = part
        value, gradient, hessian = nll(x)
        return value, gradient[free], hessian[np.ix_(free, free)]

    return function
