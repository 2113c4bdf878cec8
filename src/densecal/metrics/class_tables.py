"""Figures of every class by itself, and the thresholded adaptive calibration error of all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from densecal.metrics.curves import Atoms, equal_mass
from densecal.metrics.decomposition import class_scores

TACE_THRESHOLD = 0.01
"""Probabilities up to here are left out of the thresholded error, as Nixon et al. (2019) do."""


@dataclass(frozen=True)
class ClassFigures:
    """Figures of the probability of one class.

    Attributes:
        share: Share of the pixels that are of this class.
        mean_probability: Mean probability given to it: above ``share`` where the class is over-estimated.
        ace: Its calibration error with equal-mass bins.
        tace: The same over the pixels that give the class more than 1 %; NaN where none does.
        brier: Mean of (p - y)^2.
        brier_calibration: The part of it that recalibration could remove.
        nll: Mean of -y log p + p - y; the sum over classes is the NLL.
        nll_calibration: The part of it that recalibration could remove.
    """

    share: float
    mean_probability: float
    ace: float
    tace: float
    brier: float
    brier_calibration: float
    nll: float
    nll_calibration: float


def class_figures(atoms: Atoms, bins: int) -> ClassFigures:
    """Return the figures of one class.

    Args:
        atoms: Its probabilities, with the number of pixels that are of this class.
        bins: Number of equal-mass bins.
    """
    scores, total = class_scores(atoms), atoms.total
    return ClassFigures(
        share=int(atoms.hits.sum()) / total,
        mean_probability=float(atoms.value @ atoms.count) / total,
        ace=_mean_gap(atoms, bins),
        tace=thresholded_error(atoms, bins),
        brier=scores.brier / total,
        brier_calibration=max(scores.brier - scores.brier_refined, 0.0) / total,
        nll=scores.nll / total,
        nll_calibration=max(scores.nll - scores.nll_refined, 0.0) / total,
    )


def thresholded_error(atoms: Atoms, bins: int, threshold: float = TACE_THRESHOLD) -> float:
    """Return the mean gap over equal-mass bins of the probabilities above a threshold; NaN where there are none."""
    kept = atoms.value > threshold
    if not kept.any():
        return math.nan
    return _mean_gap(Atoms(atoms.value[kept], atoms.count[kept], atoms.hits[kept]), bins)


def thresholded_adaptive_error(classes: list[Atoms], bins: int) -> float:
    """Return TACE: the mean thresholded error of the classes that are ever given more than the threshold."""
    return float(np.nanmean([thresholded_error(atoms, bins) for atoms in classes]))


def adaptive_error(classes: list[Atoms], bins: int) -> float:
    """Return ACE: the mean gap over classes and over equal-mass bins."""
    return float(np.mean([_mean_gap(atoms, bins) for atoms in classes]))


def _mean_gap(atoms: Atoms, bins: int) -> float:
    return float(np.abs(equal_mass(atoms, bins).gap).mean())
