"""The part of a record about cases: scores by class, and whether confidence finds the cases that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Interval = tuple[float, float]


@dataclass(frozen=True)
class ClassCases:
    """Scores of one class over cases.

    Attributes:
        label: The class; 1 for foreground maps.
        present: Cases whose map or mask has it.
        absent: Cases in which neither has it. They are left out.
        missed: Cases whose mask has it and whose map does not: Dice 0, no Hausdorff distance.
        invented: Cases whose map has it and whose mask does not.
        means: Means over cases: ``dice``, and for volumes ``hd95`` and ``nsd`` (surface Dice), ``volume_bias``
            (predicted minus true volume), ``volume_error`` (its size) and ``volume_error_relative`` (as a share of the
            true volume).
        ci: 95 % intervals of the means, with the case as the unit.
    """

    label: int
    present: int
    absent: int
    missed: int
    invented: int
    means: Mapping[str, float]
    ci: Mapping[str, Interval]


@dataclass(frozen=True)
class RiskCoverage:
    """Mean risk of the most confident cases.

    Attributes:
        aurc: Area under the curve: the mean over all coverages.
        curve: Risk of the most confident 5 %, 10 %, ..., 100 % of the cases.
        ci: 95 % interval of the area, with the case as the unit; None with one group, and in older records.
    """

    aurc: float
    curve: tuple[float, ...]
    ci: Interval | None = None


@dataclass(frozen=True)
class CaseTrust:
    """Whether confidence finds the cases that fail; the risk of a case is 1 - Dice.

    Attributes:
        cases: Cases that have a Dice.
        risk: Mean risk, which is the area under the curve of a confidence without information.
        best: Area under the curve of an ideal confidence, which ranks cases by their Dice.
        by: The curve for each way to average a case's confidence: ``mean``, ``foreground``, ``interior``, ``patch``.
    """

    cases: int
    risk: float
    best: float
    by: Mapping[str, RiskCoverage]


@dataclass(frozen=True)
class CaseScores:
    """Scores of one case by class, and its confidence by average. NaN for undefined values."""

    name: str
    dice: tuple[float, ...]
    hd95: tuple[float, ...]
    nsd: tuple[float, ...]
    volume: tuple[float, ...]
    true_volume: tuple[float, ...]
    confidence: tuple[float, ...]


@dataclass(frozen=True)
class Cases:
    """Scores of cases: images, or volumes.

    Attributes:
        unit: Unit of volumes: ``ml``, or ``voxels`` where no file specifies their spacing; ``pixels`` for pictures.
        tolerance: Tolerance of the surface Dice, in mm; None if surfaces were not compared.
        classes: Means by class.
        trust: Whether confidence finds the cases that fail.
        table: Scores of every case, for volumes.
    """

    unit: str
    tolerance: float | None
    classes: tuple[ClassCases, ...]
    trust: CaseTrust | None = None
    table: tuple[CaseScores, ...] = ()
