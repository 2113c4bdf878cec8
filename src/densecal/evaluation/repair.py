"""The effect that a temperature would have, from pixels by logit in two halves of the images.

A temperature is fitted on each half and judged on the other, so that the figure can be expected to hold for new images.
Both halves count, because a few images in one half can differ much from those in the other. The half of an image
depends only on its name, see `folds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from densecal.evaluation.record import LogitCounts, Repair

LIMIT = 12.0
"""Logits beyond +-12 are counted in the outermost bins. The ends of a 16-bit map lie at +-12.5."""
BINS = 480
_MERGED = 2
"""Number of bins that a record combines into one."""
_FEWEST = 10
"""Fewest images per half for a meaningful fit."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class RepairSums:
    """Pixels by half, label and logit, and images per half.

    Attributes:
        counts: (2, 2, 480): half, label, bin.
        images: (2,): images with valid pixels per half.
    """

    def __init__(self) -> None:
        self.counts: Ints = np.zeros((2, 2, BINS), np.int64)
        self.images: Ints = np.zeros(2, np.int64)

    def logit_counts(self) -> LogitCounts | None:
        """Return the pixels of both halves by label and logit, in bins of 0.1; None if nothing was counted."""
        if not self.counts.any():
            return None
        both = self.counts.sum(axis=0).reshape(2, -1, _MERGED).sum(axis=2)
        return LogitCounts(LIMIT, *(tuple(row.tolist()) for row in both))

    def repair(self, bins: int) -> Repair | None:
        """Fit a temperature on each half and judge it on the other.

        Args:
            bins: Bins of the ECE.

        Returns:
            The temperature of all images and both errors, or None if there are too few images or no temperature fits.
        """
        if self.images.min() < _FEWEST:
            return None
        everything = self.counts.sum(axis=0)
        fitted = [fit_temperature(counts) for counts in (everything, *self.counts)]
        temperature, first, second = fitted
        if temperature is None or first is None or second is None:
            return None
        before = _gaps(everything, 1.0, bins)
        after = _gaps(self.counts[0], second, bins) + _gaps(self.counts[1], first, bins)
        errors = (float(np.abs(gaps).sum() / everything.sum()) for gaps in (before, after))
        return Repair(temperature, int(self.images.sum()), *errors)


def level_bins(level: NDArray[Any], levels: int) -> NDArray[np.int64]:
    """Return the bin of the logit for each level of an integer map."""
    v = level.astype(np.float64)
    v[level == 0], v[level == levels - 1] = 0.25, levels - 1.25  # their range is half a level; see `level_logits`
    z = logit(v / (levels - 1))
    index: Ints = np.clip(np.floor((z + LIMIT) * (BINS / (2 * LIMIT))), 0, BINS - 1).astype(np.int64)
    return index


def fit_temperature(counts: Ints) -> float | None:
    """Return the temperature with the least NLL on pixels by label and logit, or None if there is no minimum."""
    z = _centres(counts.shape[1])
    share = counts / max(int(counts.sum()), 1)
    right, at_zero = bool((counts[0, z > 0].sum() + counts[1, z < 0].sum()) == 0), float((share[0] - share[1]) @ z)
    if right or at_zero >= 0:  # always correct, or wrong more often than correct: the best temperature is 0 or infinite
        return None
    slope: Callable[[float], float] = lambda s: float((share[0] * expit(s * z) - share[1] * expit(-s * z)) @ z)  # noqa: E731
    low, high = 1.0, 1.0
    while slope(low) >= 0:
        low /= 2.0
    while slope(high) <= 0:
        high *= 2.0
    while low < (middle := (low + high) / 2.0) < high:  # down to neighbouring floats
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1.0 / high


def ece(counts: Ints, temperature: float, bins: int) -> float:
    """Return the equal-width ECE of pixels by label and logit after division by a temperature."""
    return float(np.abs(_gaps(counts, temperature, bins)).sum() / counts.sum())


def _gaps(counts: Ints, temperature: float, bins: int) -> Floats:
    """Return the sum of confidence minus correct pixels in every bin of confidence."""
    z = _centres(counts.shape[1]) / temperature
    confidence = expit(np.abs(z))
    pixels, correct = counts.sum(axis=0), np.where(z > 0, counts[1], counts[0])
    bin_ = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    return np.asarray(np.bincount(bin_, pixels * confidence - correct, bins), np.float64)


def _centres(bins: int) -> Floats:
    width = 2 * LIMIT / bins
    return np.asarray(-LIMIT + width * (np.arange(bins) + 0.5))
