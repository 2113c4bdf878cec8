"""Brier score and NLL split into calibration and refinement.

    score = calibration + refinement,   refinement = score of the best rising map of the same values

Calibration is what recalibration could remove, refinement what only a better model could. The best rising map is that
of isotonic regression, which is the best for every proper score at once and needs no bins (Dimitriadis, Gneiting and
Jordan 2021, whose MCB is the calibration and UNC - DSC the refinement).

Both scores are sums over classes: the Brier score of (p_k - y_k)^2, and the NLL of -y_k log p_k + p_k - y_k, whose last
two terms cancel in the sum because probabilities and labels add up to 1. Each of these is proper for a single class, so
each class has its own rising map, and the parts of the classes add up to those of the score. For one class and its
complement this is the usual decomposition of binary forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from densecal.metrics.curves import Atoms, Floats
from densecal.metrics.levels import NLL_FLOOR
from densecal.metrics.pooling import rising_shares


@dataclass(frozen=True)
class ClassScores:
    """Scores of the probability of one class, summed over pixels, before and after the best rising map.

    Attributes:
        brier: Sum of (p - y)^2.
        brier_refined: The same for the best rising map of p.
        nll: Sum of -y log p + p - y.
        nll_refined: The same for the best rising map of p.
    """

    brier: float
    brier_refined: float
    nll: float
    nll_refined: float


def rising_map(atoms: Atoms) -> Floats:
    """Return the share of outcome 1 at every value, made non-decreasing by isotonic regression."""
    return rising_shares(atoms.hits, atoms.count)


def class_scores(atoms: Atoms) -> ClassScores:
    """Return the scores of one class.

    Args:
        atoms: Its probabilities, with the number of pixels that are of this class.
    """
    p, q = np.maximum(atoms.value, NLL_FLOOR), rising_map(atoms)
    hits, count = atoms.hits.astype(np.float64), atoms.count.astype(np.float64)

    def brier(value: Floats) -> float:
        return float(((count - hits) * value**2 + hits * (1.0 - value) ** 2).sum())

    # A rising map keeps the mean, so that its values and the labels cancel.
    nll = -xlogy(hits, p).sum() + (count * atoms.value - hits).sum()
    return ClassScores(brier(atoms.value), brier(q), float(nll), float(-xlogy(hits, q).sum()))


def decompose(brier: float, nll: float, classes: list[Atoms], softmax: bool = True) -> dict[str, float]:
    """Return calibration and refinement of both scores of a model.

    Args:
        brier: Its Brier score, a mean over pixels: for a single foreground probability (p - y)^2, else over classes.
        nll: Its NLL, a mean over pixels.
        classes: The probabilities of every class, or of the foreground alone.
        softmax: Whether several classes share a pixel. Else each is a foreground probability with pixels of its own.
    """
    if len(classes) == 1 or not softmax:
        total = sum(atoms.total for atoms in classes)
        parts = [_refined_foreground(atoms) for atoms in classes]
        refined = sum(part[0] for part in parts), sum(part[1] for part in parts)
    else:
        total = classes[0].total
        scores = [class_scores(atoms) for atoms in classes]
        refined = sum(score.brier_refined for score in scores), sum(score.nll_refined for score in scores)
    refinement = {"brier": min(refined[0] / total, brier), "nll": min(refined[1] / total, nll)}
    return {
        "brier_calibration": brier - refinement["brier"],
        "brier_refinement": refinement["brier"],
        "nll_calibration": nll - refinement["nll"],
        "nll_refinement": refinement["nll"],
    }


def _refined_foreground(atoms: Atoms) -> tuple[float, float]:
    """Return the sums of Brier score and NLL of the best rising map of a foreground probability."""
    q, hits = rising_map(atoms), atoms.hits.astype(np.float64)
    clear = atoms.count - hits
    nll = -(xlogy(hits, q) + xlogy(clear, 1.0 - q)).sum()
    return float((clear * q**2 + hits * (1.0 - q) ** 2).sum()), float(nll)
