"""Conformal risk control for masks: a threshold whose false-negative rate is guaranteed (Angelopoulos 2022).

C = {p >= 1 - lambda}; an image loses the share of its foreground that C misses, 0 where it has none. The loss falls as
lambda rises, so the smallest lambda with (n R + 1) / (n + 1) <= alpha, R the mean loss of n calibration images, has
E[loss of a new image] <= alpha if the new image is exchangeable with them. The unit is the image, not the pixel.
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
    """A threshold and what it costs, on the calibration images.

    Attributes:
        threshold: Foreground is p >= threshold; 1 - lambda.
        lam: lambda.
        alpha: The expected false-negative rate of a new image is at most this.
        risk: Mean false-negative rate of the calibration images.
        bound: (n risk + 1) / (n + 1), at most alpha.
        set_size: Mean share of an image that is called foreground.
        fpr: Mean share of an image's background that is called foreground.
        images: n.
    """

    threshold: float
    lam: float
    alpha: float
    risk: float
    bound: float
    set_size: float
    fpr: float
    images: int


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
        self.with_background = 0
        # entry t: threshold t / steps
        self._misses, self._false_alarms, self._sizes = np.zeros((3, steps + 1))

    def update(self, probabilities: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Add an image.

        Args:
            probabilities: Floats in [0, 1], or uint8 or uint16 levels, of any shape; leave void pixels out.
            mask: True on foreground, of the same shape.
        """
        if probabilities.shape != mask.shape or mask.size == 0:
            raise ValueError(f"map of shape {probabilities.shape} and mask of {mask.shape}; expected the same pixels")
        low, high = probabilities.min(), probabilities.max()
        if probabilities.dtype not in _LEVELS and not (low >= 0 and high <= 1):
            raise ValueError(f"probabilities from {low} to {high}; expected 0 to 1")
        highest = highest_threshold(probabilities.ravel(), self.steps)
        foreground, background = (np.bincount(highest[part], minlength=self.steps + 1) for part in _sides(mask))
        # a pixel is in C for every threshold up to its highest one
        kept, alarms = (np.cumsum(counts[::-1])[::-1] for counts in (foreground, background))
        self.images += 1
        self._sizes += (kept + alarms) / mask.size
        if kept[0]:
            self._misses += (kept[0] - kept) / kept[0]
        if alarms[0]:
            self._false_alarms += alarms / alarms[0]
            self.with_background += 1

    def merge(self, other: RiskCurve) -> None:
        """Add the images of another curve on the same grid."""
        if self.steps != other.steps:
            raise ValueError(f"cannot merge: {self.steps} steps here and {other.steps} there")
        self.images += other.images
        self.with_background += other.with_background
        self._misses += other._misses
        self._false_alarms += other._false_alarms
        self._sizes += other._sizes

    def control(self, alpha: float) -> RiskControl:
        """The highest threshold whose false-negative rate is controlled at alpha.

        Raises:
            InputError: alpha is not in (0, 1), or there are fewer than 1/alpha - 1 images.
        """
        n = self.images
        if not 0.0 < alpha < 1.0:
            raise InputError("alpha", str(alpha), "a false-negative rate between 0 and 1")
        if 1.0 / (n + 1) > alpha + _ROUNDING:
            needed = math.ceil(1.0 / alpha - 1.0 - _ROUNDING)
            raise InputError("risk control", f"{n} images for alpha {alpha:g}", f"at least {needed} (1/alpha - 1)")
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
            images=n,
        )


def highest_threshold(probabilities: NDArray[Any], steps: int) -> NDArray[np.int64]:
    """The largest t with t / steps <= p: by integers for levels, by comparison for floats, so that ties are kept."""
    top = _LEVELS.get(probabilities.dtype)
    if top is not None:
        return probabilities.astype(np.int64) * steps // top
    grid: Floats = np.arange(steps + 1) / steps
    return np.asarray(np.searchsorted(grid, probabilities, side="right") - 1).clip(0)


def _sides(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    flat = mask.ravel().astype(bool)
    return flat, ~flat
