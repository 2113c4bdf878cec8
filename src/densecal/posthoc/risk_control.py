"""Conformal risk control for masks: a threshold with a guaranteed false-negative rate (Angelopoulos 2022).

The predicted set is C = {p >= 1 - lambda}. The loss of an image is the share of its foreground that C misses, or 0 if
it has none; it falls as lambda rises. Let R be the mean loss of n calibration images. For the smallest lambda with
(n R + 1) / (n + 1) <= alpha, E[loss of a new image] <= alpha if the new image is exchangeable with them. The unit is
the image, not the pixel.

Groups (patients, videos): n counts groups, the loss of a group is the mean loss of its images, and the bound is on the
expected mean loss of a new group. K classes: a threshold per class, C_k = {p_k >= 1 - lambda_k}, where n counts the
units whose masks hold class k and the loss is the share of class k that C_k misses. Units with class k are
exchangeable with a new unit that has it, so the bound holds for such a unit, for each class separately. Were units
without the class counted, with loss 0, a rare class would be "controlled" by never predicting it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError

STEPS = 1000
_ROUNDING = 1e-12
_LEVELS = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
"""Highest level of integer maps."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RiskControl:
    """A threshold and its costs on the calibration images.

    Attributes:
        threshold: Foreground is p >= threshold; 1 - lambda.
        lam: lambda.
        alpha: Upper bound of the expected false-negative rate of a new image.
        risk: Mean false-negative rate of the calibration images.
        bound: (n risk + 1) / (n + 1), at most alpha.
        set_size: Mean share of an image that is called foreground.
        fpr: Mean share of an image's background that is called foreground.
        images: Calibration images.
        groups: n, where images are grouped; else n is the number of images.
        smallest_alpha: Smallest alpha below 1 at which something is called background; NaN where there is none.
    """

    threshold: float
    lam: float
    alpha: float
    risk: float
    bound: float
    set_size: float
    fpr: float
    images: int
    groups: int | None = None
    smallest_alpha: float = math.nan

    @property
    def is_trivial(self) -> bool:
        """Whether the bound is met only by calling every pixel of every image foreground."""
        return self.fpr > 1.0 - _ROUNDING


class RiskCurve:
    """False negatives, false positives and set size at every threshold of a grid, summed over images; mergeable.

    Args:
        steps: The grid is lambda = 0, 1/steps, ..., 1.

    Examples:
        >>> curve = RiskCurve(steps=10)
        >>> for _ in range(9):
        ...     curve.update(np.array([[0.9, 0.75], [0.2, 0.1]]), np.array([[True, True], [False, False]]))
        >>> curve.control(alpha=0.2).threshold
        0.7
    """

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self.images = 0
        self.units = 0
        self.with_background = 0
        # Entry t belongs to the threshold t / steps.
        self._misses, self._false_alarms, self._sizes, self._false_discoveries = np.zeros((4, steps + 1))

    def update(self, probabilities: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Add an image.

        Args:
            probabilities: Floats in [0, 1], or uint8 or uint16 levels, of any shape; leave void pixels out.
            mask: True on foreground, of the same shape.
        """
        if probabilities.shape != mask.shape or mask.size == 0:
            raise ValueError(
                f"map of shape {probabilities.shape} and mask of shape {mask.shape}; expected the same pixels"
            )
        low, high = probabilities.min(), probabilities.max()
        if probabilities.dtype not in _LEVELS and not (low >= 0 and high <= 1):
            raise ValueError(f"probabilities from {low} to {high}; expected 0 to 1")
        highest = highest_threshold(probabilities.ravel(), self.steps)
        truth = mask.ravel().astype(bool)
        foreground, background = (np.bincount(highest[side], minlength=self.steps + 1) for side in (truth, ~truth))
        # A pixel is in C for every threshold up to its highest one.
        hits, alarms = (np.cumsum(counts[::-1])[::-1] for counts in (foreground, background))
        self.images += 1
        self.units += 1
        self._sizes += (hits + alarms) / mask.size
        self._false_discoveries += alarms / np.maximum(hits + alarms, 1)
        if hits[0]:
            self._misses += (hits[0] - hits) / hits[0]
        if alarms[0]:
            self._false_alarms += alarms / alarms[0]
            self.with_background += 1

    def merge(self, other: RiskCurve) -> None:
        """Add the images of another curve on the same grid."""
        if self.steps != other.steps:
            raise ValueError(f"cannot merge: {self.steps} steps here and {other.steps} there")
        self.images += other.images
        self.units += other.units
        self.with_background += other.with_background
        self._misses += other._misses
        self._false_alarms += other._false_alarms
        self._sizes += other._sizes
        self._false_discoveries += other._false_discoveries

    def add_group(self, group: RiskCurve) -> None:
        """Add a group of images as one unit: the means over its images."""
        if self.steps != group.steps:
            raise ValueError(f"cannot merge: {self.steps} steps here and {group.steps} there")
        self.images += group.images
        self.units += 1
        self._misses += group._misses / group.images
        self._sizes += group._sizes / group.images
        self._false_discoveries += group._false_discoveries / group.images
        if group.with_background:
            self._false_alarms += group._false_alarms / group.with_background
            self.with_background += 1

    def costs(self, t: int) -> dict[str, float]:
        """Return the mean figures of these units at the threshold t / steps, by name."""
        n = self.units
        return {
            "miss_rate": float(self._misses[t]) / n,
            "false_discovery_rate": float(self._false_discoveries[t]) / n,
            "fpr": float(self._false_alarms[t]) / self.with_background if self.with_background else math.nan,
            "set_size": float(self._sizes[t]) / n,
        }

    def risks(self, kind: str) -> Floats:
        """Return the mean loss at every threshold: ``misses`` or ``precision`` (false discoveries)."""
        return np.asarray((self._misses if kind == "misses" else self._false_discoveries) / self.units)

    def control(self, alpha: float, grouped: bool = False) -> RiskControl:
        """Return the highest threshold whose false-negative rate is controlled at alpha.

        Args:
            alpha: The false-negative rate.
            grouped: The units are groups of images.

        Raises:
            InputError: alpha is not in (0, 1), or there are fewer than 1/alpha - 1 units.
        """
        n = self.units
        if not 0.0 < alpha < 1.0:
            raise InputError("alpha", str(alpha), "a false-negative rate between 0 and 1")
        if 1.0 / (n + 1) > alpha + _ROUNDING:
            needed = math.ceil(1.0 / alpha - 1.0 - _ROUNDING)
            raise InputError(
                "risk control",
                f"{n} {'groups' if grouped else 'images'} for alpha {alpha:g}",
                f"at least {needed} (1/alpha - 1)",
            )
        bound = (self._misses + 1.0) / (n + 1)
        t = int(np.flatnonzero(bound <= alpha + _ROUNDING)[-1])
        return RiskControl(
            threshold=t / self.steps,
            lam=(self.steps - t) / self.steps,
            alpha=alpha,
            risk=float(self._misses[t]) / n,
            bound=float(bound[t]),
            set_size=float(self._sizes[t]) / n,
            fpr=float(self._false_alarms[t]) / self.with_background if self.with_background else math.nan,
            images=self.images,
            groups=n if grouped else None,
            smallest_alpha=self._smallest_alpha(bound),
        )

    def _smallest_alpha(self, bound: Floats) -> float:
        """Return the bound at the lowest threshold that leaves out some background, rounded up to four decimals."""
        spared = np.flatnonzero(self._false_alarms < self.with_background * (1.0 - _ROUNDING))
        return round_up(float(bound[spared[0]])) if spared.size else math.nan


def round_up(level: float) -> float:
    """Return a level rounded up to four decimals; NaN if that is not below 1."""
    level = math.ceil(1e4 * (level - _ROUNDING)) / 1e4
    return level if level < 1.0 else math.nan


def highest_threshold(probabilities: NDArray[Any], steps: int) -> NDArray[np.int64]:
    """Return the largest t with t / steps <= p, exactly: by integers for levels, by comparison for floats."""
    top = _LEVELS.get(probabilities.dtype)
    if top is not None:
        return probabilities.astype(np.int64) * steps // top
    grid: Floats = np.arange(steps + 1) / steps
    return np.asarray(np.searchsorted(grid, probabilities, side="right") - 1).clip(0)
