"""Several raters of one case: how far a predicted volume lies from theirs, and how far they agree with each other."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]


def volume_crps(predicted: float, volumes: Floats) -> float:
    """Return the continuous ranked probability score of a predicted volume against those of several raters.

    As in the CURVAS challenge, the raters' volumes stand for a normal distribution with their mean and their standard
    deviation (divided by R), and the score is the integral over v of (F(v) - [v >= predicted])^2, in the unit of the
    volumes. The integral is exact here; the challenge's script cuts it at three standard deviations.
    """
    mean, deviation = float(np.mean(volumes)), float(np.std(volumes))
    if deviation == 0.0:
        return abs(predicted - mean)
    z = (predicted - mean) / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return deviation * (z * (2 * float(ndtr(z)) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def rater_agreement(labels: NDArray[Any], label: int, valid: NDArray[np.bool_]) -> float:
    """Return the mean Dice of every two raters for one class of a case; NaN where none of them has it.

    Args:
        labels: (R, space).
        label: The class.
        valid: (space), False where some rater says void.
    """
    masks = [(own == label) & valid for own in labels]
    sizes = [int(np.count_nonzero(mask)) for mask in masks]
    scores = [
        2 * int(np.count_nonzero(masks[i] & masks[j])) / (sizes[i] + sizes[j])
        for i, j in combinations(range(len(masks)), 2)
        if sizes[i] + sizes[j]
    ]
    return float(np.mean(scores)) if scores else math.nan
