"""A method against several raters: calibration against their mean vote, volumes, and their agreement as the ceiling.

Against the mean vote, a pixel is right by the share of raters who chose the predicted class. Bins depend on the map
alone, so the gap of a bin against the mean vote is the mean of its gaps against the raters: the sums of all raters
together give it exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.evaluation.case_figures import Interval
from densecal.evaluation.folders import plan_of, score_folder
from densecal.evaluation.worker import Settings
from densecal.io.pairs import Pair, read_class_pair, read_foreground_pair
from densecal.metrics.bootstrap import intervals
from densecal.metrics.cases import dice_of
from densecal.metrics.overlap import mean_interval
from densecal.metrics.raters import rater_agreement, volume_crps
from densecal.runtime.progress import Progress, retitle, silent

_CUBIC_MILLIMETRES = 1000.0


@dataclass(frozen=True)
class RaterClass:
    """One class against several raters; means over the cases that have it.

    Attributes:
        label: The class; 1 for foreground maps.
        crps: Of the volume, in the unit of `RaterFigures`.
        crps_ci: Its 95 % interval over cases.
        dice: Mean Dice of the method with the raters.
        agreement: Mean Dice of every two raters: what the method can reach.
    """

    label: int
    crps: float
    crps_ci: Interval
    dice: float
    agreement: float


@dataclass(frozen=True)
class RaterFigures:
    """A method against several raters.

    Attributes:
        raters: Folders of their masks.
        images: Cases.
        ece_mean_vote: Calibration error against the mean vote.
        ece_mean_vote_ci: Its 95 % interval over cases.
        ece_raters: Calibration error against every rater.
        unit: Of volumes: ``ml``, or ``pixels`` where no file says the distance of voxels.
        classes: By class, for K classes without class 0.
    """

    raters: tuple[str, ...]
    images: int
    ece_mean_vote: float
    ece_mean_vote_ci: Interval
    ece_raters: tuple[float, ...]
    unit: str
    classes: tuple[RaterClass, ...]


def evaluate_raters(
    predictions: Path,
    raters: Sequence[Path],
    settings: Settings,
    workers: int = 1,
    progress: Progress = silent,
) -> RaterFigures:
    """Score a folder of maps against the masks of several raters.

    Args:
        predictions: Folder of maps.
        raters: A folder of masks for each rater, with the same names.
        settings: As for `evaluate`; no surfaces and boundary bands are measured.
        workers: Processes to use.
        progress: Told how many pairs are scored.
    """
    if len(raters) < 2:
        raise InputError("MASKS", "one rater", "a folder of masks for each of two raters or more")
    settings = dataclasses.replace(settings, full=False)
    totals = []
    for number, folder in enumerate(raters, start=1):
        bar = retitle(progress, f"Rater {number} of {len(raters)}")
        part = score_folder(predictions, folder, settings=settings, workers=workers, progress=bar)
        assert part is not None
        totals.append(part.total)
    plans = [plan_of(predictions, folder, settings) for folder in raters]
    settings = plans[0][1]  # completed by what the folders say
    for folder, (_, other) in zip(raters, plans, strict=True):
        if other.class_names != settings.class_names:
            raise InputError(folder, "other classes", f"those of {raters[0]}")
    meter = settings.calibration_meter()
    for total in totals:
        meter.merge(total.meter)
    result, names = meter.compute(), totals[0].stems
    rows = np.array([total.each["cases"] for total in totals])  # (raters, cases, classes, columns)
    sizes = totals[0].each["confidences"][:, 0] / _CUBIC_MILLIMETRES
    unit = "pixels" if np.isnan(sizes).any() else "ml"
    scale = np.ones(len(sizes)) if unit == "pixels" else sizes
    labels = range(1) if settings.binary else range(1, settings.classes or 1)
    agreement = _agreement([plan.pairs for plan, _ in plans], settings)
    return RaterFigures(
        tuple(map(str, raters)),
        len(names),
        result.ece_ew,
        intervals(result.rows, names * len(raters))["ece_ew"],
        tuple(total.meter.compute().ece_ew for total in totals),
        unit,
        tuple(_class_figures(1 if settings.binary else k, rows[:, :, k], scale, agreement[:, k]) for k in labels),
    )


def _class_figures(
    label: int, rows: NDArray[np.float64], scale: NDArray[np.float64], agreement: NDArray[np.float64]
) -> RaterClass:
    """Return the figures of one class from its rows (raters, cases, columns) and the volume of a voxel by case."""
    present = (rows[:, :, 1] > 0).any(axis=0)
    crps = np.array([volume_crps(rows[0, i, 5] * scale[i], rows[:, i, 1] * scale[i]) for i in np.flatnonzero(present)])
    dice = dice_of(np.moveaxis(rows, 1, 0)[present])
    empty = not present.any()
    return RaterClass(
        label,
        math.nan if empty else float(crps.mean()),
        mean_interval(crps, highest=math.inf),
        math.nan if empty else float(np.mean([np.nanmean(case) for case in dice])),
        math.nan if empty else float(np.mean(agreement[present])),
    )


def _agreement(by_rater: list[list[Pair]], settings: Settings) -> NDArray[np.float64]:
    """Return the mean Dice of every two raters, (cases, classes)."""
    classes = [1] if settings.binary else list(range(settings.classes or 1))
    scores = []
    for pairs in zip(*by_rater, strict=True):
        masks = [_labels(pair, settings) for pair in pairs]
        first = masks[0][0].shape
        for pair, (labels, _) in zip(pairs, masks, strict=True):
            if labels.shape != first:
                where = pair.mask or pair.prediction
                raise InputError(where, f"a mask of shape {labels.shape}", f"{first}, as the first rater's")
        labels, valid = np.stack([mask[0] for mask in masks]), np.logical_and.reduce([mask[1] for mask in masks])
        scores.append([rater_agreement(labels, k, valid) for k in classes])
    return np.array(scores)


def _labels(pair: Pair, settings: Settings) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the labels of a mask, and which of them count."""
    if settings.binary:
        read = read_foreground_pair(pair, settings.ignore_index, settings.max_pixels, settings.maps)
        return read.mask.foreground.astype(np.uint8), read.valid
    void = 255 if settings.ignore_index is None else settings.ignore_index
    several = read_class_pair(pair, settings.classes or 1, void, settings.max_pixels, settings.maps)
    return several.labels, several.labels != void
