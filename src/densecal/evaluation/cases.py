"""The part of a record about cases: scores per class with intervals, and whether confidence finds those that fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from densecal.evaluation.case_figures import Cases, CaseScores, CaseTrust, ClassCases, Interval, RiskCoverage
from densecal.metrics.cases import AGGREGATIONS, COLUMNS, aurc_interval, case_aurc, dice_of, risk_coverage
from densecal.metrics.overlap import mean_interval

_COVERAGES = 20
"""Number of points of a risk-coverage curve in a record."""
_MILLILITRE = 1000.0
"""Cubic millimetres."""

Floats = NDArray[np.float64]


def case_scores(
    rows: Floats,
    confidences: Floats,
    names: Sequence[str],
    volumes: bool,
    tolerance: float,
    groups: Sequence[str] | None = None,
) -> Cases:
    """Return the part of a record about cases.

    Args:
        rows: Scores of every case and class, (cases, classes, `COLUMNS`); one class for foreground maps.
        confidences: Per case, the size of a voxel in cubic millimetres, or NaN, and `AGGREGATIONS`.
        names: Names of the cases.
        volumes: Whether the cases are volumes, whose scores are listed one by one.
        tolerance: Tolerance of the surface Dice.
        groups: The group of every case, where intervals resample groups.
    """
    size = confidences[:, 0] / _MILLILITRE
    unit = "voxels" if np.isnan(size).any() else "ml"
    scale = np.ones(len(size)) if unit == "voxels" else size
    units = None if groups is None else np.asarray(groups, dtype=object).astype(str)
    several = rows.shape[1] > 1
    first = 1 if several and volumes else 0
    classes = [
        _class_cases(k if several else 1, rows[:, k], scale if volumes else None, units) for k in range(rows.shape[1])
    ]
    with np.errstate(invalid="ignore"):
        dice = dice_of(rows[:, first:])
        scored = ~np.isnan(dice).all(axis=1)
        risk = 1.0 - np.array([np.nanmean(case) for case in dice[scored]])
    return Cases(
        unit if volumes else "pixels",
        tolerance if volumes and not np.isnan(rows[:, :, COLUMNS.index("nsd")]).all() else None,
        tuple(classes),
        _trust(confidences[scored, 1:], risk, None if units is None else units[scored]) if len(risk) > 1 else None,
        tuple(_table(names, rows, scale, confidences[:, 1:])) if volumes else (),
    )


def _class_cases(label: int, rows: Floats, scale: Floats | None, groups: NDArray[np.str_] | None) -> ClassCases:
    """Return the means of one class over cases. ``scale`` is the size of a voxel, or None for pictures."""
    predicted, truth = rows[:, 0], rows[:, 1]
    present = (predicted > 0) | (truth > 0)
    values = {"dice": dice_of(rows)}
    if scale is not None:
        values |= {"hd95": rows[:, 3], "nsd": rows[:, 4]}
        difference = np.where(present, (predicted - truth) * scale, np.nan)
        share = np.where(truth > 0, np.abs(predicted - truth) / np.where(truth > 0, truth, 1), np.nan)
        values |= {"volume_bias": difference, "volume_error": np.abs(difference), "volume_error_relative": share}
    means: dict[str, float] = {}
    ci: dict[str, Interval] = {}
    for name, column in values.items():
        kept = ~np.isnan(column)
        if not kept.any():
            continue
        means[name] = float(column[kept].mean())
        low = -math.inf if name == "volume_bias" else 0.0
        high = 1.0 if name in ("dice", "nsd") else math.inf
        ci[name] = mean_interval(column[kept], None if groups is None else groups[kept], low, high)
    return ClassCases(
        label,
        int(present.sum()),
        int((~present).sum()),
        int(((predicted == 0) & (truth > 0)).sum()),
        int(((predicted > 0) & (truth == 0)).sum()),
        means,
        ci,
    )


def _trust(confidences: Floats, risk: Floats, groups: NDArray[np.str_] | None) -> CaseTrust:
    """Return how well each average of the confidence finds the cases that fail."""
    last = [max(math.ceil(len(risk) * (i + 1) / _COVERAGES), 1) - 1 for i in range(_COVERAGES)]
    curves = {}
    for column, name in enumerate(AGGREGATIONS):
        values = confidences[:, column]
        if not np.isnan(values).any():
            curve = risk_coverage(values, risk)
            ends = aurc_interval(values, risk, groups)
            interval = None if math.isnan(ends[0]) else ends
            curves[name] = RiskCoverage(case_aurc(values, risk), tuple(curve[last].tolist()), interval)
    return CaseTrust(len(risk), float(risk.mean()), case_aurc(-risk, risk), curves)


def _table(names: Sequence[str], rows: Floats, scale: Floats, confidences: Floats) -> list[CaseScores]:
    dice = dice_of(rows)
    return [
        CaseScores(
            name,
            tuple(dice[i].tolist()),
            tuple(rows[i, :, 3].tolist()),
            tuple(rows[i, :, 4].tolist()),
            tuple((rows[i, :, 0] * scale[i]).tolist()),
            tuple((rows[i, :, 1] * scale[i]).tolist()),
            tuple(confidences[i].tolist()),
        )
        for i, name in enumerate(names)
    ]
