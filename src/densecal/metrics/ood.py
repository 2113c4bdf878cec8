"""Separating images out of distribution from images in distribution by one score per image, such as the mean entropy.

Images out of distribution are the positives and are expected to score higher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_TPR_PERCENT = 95


@dataclass(frozen=True)
class Separation:
    """How well a score separates two sets of images.

    Attributes:
        auroc: Area under the ROC curve; 0.5 is chance, 1 is perfect.
        fpr95: Share of the images in distribution above the threshold that flags 95 % of the others; 0 is perfect.
    """

    auroc: float
    fpr95: float


def separation(in_scores: ArrayLike, out_scores: ArrayLike) -> Separation:
    """Return both figures.

    Args:
        in_scores: One score per image in distribution.
        out_scores: One score per image out of distribution.
    """
    return Separation(auroc(in_scores, out_scores), fpr95(in_scores, out_scores))


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Return the chance that an image out of distribution scores higher than one in distribution; ties count half.

    Args:
        in_scores: One score per image in distribution.
        out_scores: One score per image out of distribution.

    Examples:
        >>> auroc([0.1, 0.2, 0.3], [0.2, 0.4])
        0.75
    """
    inside, outside = _score_arrays(in_scores, out_scores)
    n = len(outside)
    _, value, count = np.unique(np.concatenate([outside, inside]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[value[:n]]  # equal scores share the mean of their ranks
    return float((ranks.sum() - n * (n + 1) / 2) / (n * len(inside)))


def fpr95(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Return the false positive rate at a true positive rate of 95 %.

    An image is flagged when its score is at least t, the highest threshold that flags at least 95 % of the images
    out of distribution. Nothing is interpolated.

    Args:
        in_scores: One score per image in distribution.
        out_scores: One score per image out of distribution.

    Examples:
        >>> fpr95([0.1, 0.2, 0.3, 0.9], [0.25, 0.5])
        0.5
    """
    inside, outside = _score_arrays(in_scores, out_scores)
    flagged = -(-_TPR_PERCENT * len(outside) // 100)
    t = np.sort(outside)[len(outside) - flagged]
    return float(np.mean(inside >= t))


def _score_arrays(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Floats, Floats]:
    inside, outside = (np.asarray(scores, dtype=np.float64).ravel() for scores in (in_scores, out_scores))
    for name, scores in (("in_scores", inside), ("out_scores", outside)):
        if not len(scores) or np.isnan(scores).any():
            raise ValueError(f"{name} is empty or holds NaN; expected one score per image")
    return inside, outside
