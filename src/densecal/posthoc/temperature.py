"""Temperature scaling: one number for all logits, fitted in 1/T, where the NLL is convex (Guo 2017)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from densecal.errors import InputError
from densecal.metrics.arrays import Array, cast, namespace, softmax, take, to_host
from densecal.posthoc.base import Batches, Calibrator, pixel_chunks
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.registry import register

MAX_PASSES = 60


@register("temperature")
class Temperature(Calibrator):
    """p' = sigmoid(z / T), or softmax(z / T); the chosen class never changes.

    T > 0 minimises the NLL, a convex function of s = 1/T. For one logit, s is bracketed on a histogram. For K logits,
    Newton steps inside a bracket find it, with one pass over the data per step (about six).

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
    """

    multiclass = True
    tables = ("temperature",)
    temperature: Floats

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__(num_classes)
        self.set_table("temperature", 1.0)

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the sigmoid or softmax of z / T."""
        return self.squash(z / self.table("temperature", z))

    def check(self) -> None:
        """Raise ValueError unless T is positive."""
        if not self.temperature > 0:
            raise ValueError(f"temperature {float(self.temperature)}; expected a number above 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        K = self.num_classes
        s = _from_batches(data, K, ignore_index) if K > 1 else inverse_temperature(*data.by_label())
        self.set_table("temperature", 1.0 / s)


def inverse_temperature(z: Floats, y: Floats, n: Floats) -> float:
    """Return the best 1/T of n pixels with logit z and label y: the root s of mean((sigmoid(s z) - y) z)."""
    _check_solvable(bool(np.any((2 * y - 1) * z < 0)), slope_at_zero=float(n @ ((0.5 - y) * z)))
    f = _slope(z, y, n)
    low, high = 1.0, 1.0
    while f(low) >= 0:
        low /= 2.0
    while f(high) <= 0:
        high *= 2.0
    return float(brentq(f, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _slope(z: Floats, y: Floats, n: Floats) -> Any:
    share = n / n.sum()
    positive = y == 1

    def f(s: float) -> float:
        # sigmoid(s z) - 1 as -sigmoid(-s z): no cancellation where the sigmoid is near 1.
        residual = np.where(positive, -expit(-s * z), expit(s * z))
        return float(share @ (residual * z))

    return f


class _Sums(NamedTuple):
    """Sums over the pixels of a pass; slopes and curvature are derivatives of the NLL in s."""

    pixels: float
    slope: float
    curvature: float
    slope_at_zero: float
    wrong: float


def _from_batches(batches: Batches, num_classes: int, ignore_index: int | None) -> float:
    """Find s by Newton's method, inside the bracket that the signs of the slopes give."""
    low, high, s = 0.0, math.inf, 1.0
    for count in range(MAX_PASSES):
        sums = _pass(batches, num_classes, ignore_index, s)
        if count == 0:
            _check_pixels(sums)
            _check_solvable(sums.wrong > 0, sums.slope_at_zero)
        if sums.slope < 0:
            low = s
        else:
            high = s
        new = s - sums.slope / sums.curvature if sums.curvature > 0 else math.nan
        if not low <= new <= high:
            new = 2.0 * s if high == math.inf else (low + high) / 2.0
        if abs(new - s) <= 1e-6 * s:  # the remaining error is of the order of the step squared
            return new
        s = new
    raise InputError("temperature", f"no minimum after {MAX_PASSES} passes", "logits of a moderate scale")


def _pass(batches: Batches, num_classes: int, ignore_index: int | None, s: float) -> _Sums:
    total = np.zeros(5)
    for z, y in pixel_chunks(batches, num_classes, ignore_index):
        xp = namespace(z)
        with np.errstate(invalid="ignore"):  # infinite logits are refused below
            z = z - xp.amax(z, 1, keepdims=True)
            p = softmax(s * z)
            mean = (p * z).sum(1, keepdims=True)
            z_y = take(z, y)[:, None]
            sums = (
                xp.ones_like(z_y).sum(),
                (mean - z_y).sum(),
                (p * xp.square(z - mean)).sum(),
                (z.mean(1, keepdims=True) - z_y).sum(),
                cast(z_y < 0, "float64").sum(),
            )
        total += to_host(xp.stack(sums))
    return _Sums(*total.tolist())


def _check_pixels(sums: _Sums) -> None:
    if sums.pixels == 0:
        raise InputError("temperature", "no valid pixels", "pixels to fit on")
    if not all(map(math.isfinite, sums)):
        raise InputError("temperature", "NaN or infinite logits", "finite logits")


def _check_solvable(some_wrong: bool, slope_at_zero: float) -> None:
    if not some_wrong:
        raise InputError(
            "temperature",
            "logits that choose the right class at every pixel, for which the best T is 0",
            "data on which the model is sometimes wrong",
        )
    if slope_at_zero >= 0:
        raise InputError(
            "temperature",
            "logits that point away from the labels, for which the best T is infinite",
            "logits that are right more often than wrong (inverted maps?)",
        )
