"""Thresholds whose risk is at most alpha with probability 1 - delta over the calibration images.

Conformal risk control guarantees E[loss of a new image] <= alpha on average over calibration sets. For a given set, the
expected loss may be above alpha. Here the guarantee is P(expected loss <= alpha) >= 1 - delta.

For one threshold, the p-value of "the expected loss is above alpha", given a mean loss R of n images with losses in
[0, 1], is that of Hoeffding and Bentkus (Bates 2021):

    p = min(exp(-n h(min(R, alpha), alpha)), e P(Binomial(n, alpha) <= ceil(n R)))
    h(a, b) = a ln(a / b) + (1 - a) ln((1 - a) / (1 - b))

Misses (RCPS, Bates 2021): the share of an image's foreground that is missed rises with the threshold t. The threshold
is the highest below which p <= delta throughout.

Precision (Learn then Test, Angelopoulos 2021): the share of the pixels called foreground that are background need
not rise or fall with t. Thresholds are tested from the highest down, each at level delta, until one fails (a fixed
sequence, so no correction for many tests is due). The lowest that passed is chosen, because it misses least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from densecal.errors import InputError
from densecal.posthoc.risk_control import RiskCurve

KINDS = ("misses", "precision")
_ROUNDING = 1e-9

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConfidentControl:
    """A threshold and its costs on the calibration images.

    Attributes:
        kind: What is controlled, one of ``KINDS``.
        threshold: Foreground is p >= threshold.
        alpha: Upper bound of the expected loss of a new image.
        delta: Largest probability, over calibration sets, that the bound does not hold.
        p_value: p-value of the hypothesis that the bound does not hold at this threshold; at most delta.
        miss_rate: Mean share of an image's foreground that is missed.
        false_discovery_rate: Mean share of what is called foreground that is background: 1 - precision.
        fpr: Mean share of an image's background that is called foreground.
        set_size: Mean share of an image that is called foreground.
        images: Calibration images.
        groups: n, where images are grouped; else n is the number of images.
        smallest_alpha: Smallest alpha below 1 that is kept without being trivial; NaN where there is none.
    """

    kind: str
    threshold: float
    alpha: float
    delta: float
    p_value: float
    miss_rate: float
    false_discovery_rate: float
    fpr: float
    set_size: float
    images: int
    groups: int | None = None
    smallest_alpha: float = math.nan

    @property
    def is_trivial(self) -> bool:
        """Whether the guarantee holds only by calling everything foreground, or nothing."""
        everything, nothing = self.fpr > 1.0 - _ROUNDING, self.set_size < _ROUNDING
        return everything if self.kind == "misses" else nothing


def control(curve: RiskCurve, kind: str, alpha: float, delta: float, grouped: bool = False) -> ConfidentControl:
    """Return the threshold at which misses or false discoveries are controlled with probability 1 - delta.

    Args:
        curve: The calibration images.
        kind: ``misses`` or ``precision``.
        alpha: The bound.
        delta: The probability that it may not hold.
        grouped: The units are groups of images.

    Raises:
        InputError: alpha or delta is not in (0, 1), or the units are too few, or no threshold passes.
    """
    check_levels(curve.units, alpha, delta, "groups" if grouped else "images")
    p = hoeffding_bentkus(curve.risks(kind), curve.units, alpha)
    fails = np.flatnonzero(p > delta)
    if kind == "misses":
        t = int(fails[0]) - 1 if fails.size else curve.steps
    else:
        t = int(fails[-1]) + 1 if fails.size else 0
    if not 0 <= t <= curve.steps:
        problem = f"no threshold at which {'misses' if kind == 'misses' else 'false discoveries'} are surely few enough"
        raise InputError("risk control", problem, "a larger alpha or delta, or more images")
    return ConfidentControl(
        kind, t / curve.steps, alpha, delta, float(p[t]), **curve.costs(t), images=curve.images,
        groups=curve.units if grouped else None, smallest_alpha=_smallest_alpha(curve, kind, delta),
    )  # fmt: skip


def _smallest_alpha(curve: RiskCurve, kind: str, delta: float) -> float:
    """Return the smallest alpha kept by the first threshold that is not trivial, the easiest of them to pass at."""
    costs = [curve.costs(t) for t in range(curve.steps + 1)]
    if kind == "misses":  # from the lowest threshold up
        useful = (t for t, cost in enumerate(costs) if not cost["fpr"] > 1.0 - _ROUNDING)
    else:  # from the highest down
        useful = (t for t in range(curve.steps, -1, -1) if costs[t]["set_size"] >= _ROUNDING)
    t = next(useful, None)
    return math.nan if t is None else smallest_level(float(curve.risks(kind)[t]), curve.units, delta)


def smallest_level(risk: float, n: int, delta: float) -> float:
    """Return the smallest alpha, of four decimals, whose p-value at a mean loss of n units is at most delta, or NaN."""
    levels = np.arange(1, 10_000) / 10_000
    fails = np.flatnonzero(hoeffding_bentkus(np.full(levels.shape, risk), n, levels) > delta)
    first = int(fails[-1]) + 1 if fails.size else 0
    return float(levels[first]) if first < levels.size else math.nan


def hoeffding_bentkus(risk: Floats, n: int, alpha: float | Floats) -> Floats:
    """Return the p-values of expected losses above alpha, for mean losses of n units."""
    a = np.minimum(risk, alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = np.where(a > 0, a * np.log(a / alpha), 0.0) + np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - alpha)), 0.0)
    # the sum of losses may miss a whole number by rounding
    bentkus = math.e * bdtr(np.ceil(np.maximum(n * risk - _ROUNDING, 0)), n, alpha)
    return np.asarray(np.minimum(np.minimum(np.exp(-n * h), bentkus), 1.0))


def check_levels(n: int, alpha: float, delta: float, units: str) -> None:
    """Raise InputError unless the levels are shares and n units without any loss would pass."""
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not 0.0 < value < 1.0:
            raise InputError(name, str(value), "a number between 0 and 1")
    needed = math.ceil(math.log(delta) / math.log1p(-alpha) - _ROUNDING)
    if n < needed:
        expected = f"at least {needed} (ln delta / ln(1 - alpha))"
        raise InputError("risk control", f"{n} {units} for alpha {alpha:g} and delta {delta:g}", expected)
