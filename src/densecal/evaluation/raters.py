"""A method against several raters: calibration against their mean vote, volumes, and their agreement as upper limit.

Against the mean vote, a pixel is right by the share of raters who chose the predicted class. Bins depend on the map
alone, so the gap of a bin against the mean vote is the mean of its gaps against the raters: the sums of all raters
together give it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.evaluation.case_figures import Interval
from densecal.evaluation.folders import plan_of, score_folder
from densecal.evaluation.image_sums import MOST_KEPT
from densecal.evaluation.totals import warnings_of
from densecal.evaluation.worker import Settings
from densecal.io.map_options import Channel
from densecal.io.map_values import check_scale
from densecal.io.masks import VOID, read_foreground, read_label_mask
from densecal.io.pairs import Pair
from densecal.io.rater_stacks import count_raters
from densecal.metrics.bootstrap import intervals
from densecal.metrics.cases import dice_of
from densecal.metrics.overlap import mean_interval
from densecal.metrics.raters import rater_agreement, volume_crps
from densecal.runtime.progress import Progress, retitle, silent

_CUBIC_MILLIMETRES = 1000.0


@dataclass(frozen=True)
class RaterClass:
    """One class against several raters, with means over the cases that contain it.

    Attributes:
        label: The class; 1 for foreground maps.
        crps: CRPS of the volume, in the unit of `RaterFigures`.
        crps_ci: Its 95 % interval over cases.
        dice: Mean Dice of the method with the raters.
        agreement: Mean Dice of all pairs of raters, which a method can at best reach.
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
        raters: Names of the raters: their folders, or their numbers in files that hold the masks of all.
        images: Number of cases.
        ece_mean_vote: Calibration error against the mean vote.
        ece_mean_vote_ci: Its 95 % interval over cases.
        ece_raters: Calibration error against every rater.
        unit: Unit of volumes: ``ml``, or ``pixels`` if no file specifies the spacing of voxels.
        classes: Figures by class, for K classes without class 0.
        warnings: What looks wrong with the maps or masks.
    """

    raters: tuple[str, ...]
    images: int
    ece_mean_vote: float
    ece_mean_vote_ci: Interval
    ece_raters: tuple[float, ...]
    unit: str
    classes: tuple[RaterClass, ...]
    warnings: tuple[str, ...] = ()


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
        raters: A folder of masks for each rater, with the same names; or one, whose files hold the masks of all raters.
        settings: As for `evaluate`. Surfaces and boundary bands are not measured.
        workers: Number of processes.
        progress: Called with the number of pairs scored.
    """
    settings = replace(settings, full=False)
    folders = list(_raters(predictions, raters, settings))
    totals = []
    for number, (_, folder, rater_settings) in enumerate(folders, start=1):
        bar = retitle(progress, f"Rater {number} of {len(folders)}")
        part = score_folder(predictions, folder, settings=rater_settings, workers=workers, progress=bar)
        assert part is not None
        if part.total.sums is not None:
            raise InputError(predictions, f"{part.total.images:,} images", f"at most {MOST_KEPT:,} with several raters")
        totals.append(part.total)
    plans = [plan_of(predictions, folder, rater_settings) for _, folder, rater_settings in folders]
    settings = plans[0][1]  # completed from the folders
    for (name, _, _), (_, other) in zip(folders, plans, strict=True):
        if other.class_names != settings.class_names:
            raise InputError(name, "other classes", f"those of {folders[0][0]}")
    if any(total.findings.foreground for total in totals):
        check_scale(totals[0].highest, predictions, settings.maps)
    meter = settings.calibration_meter()
    for total in totals:
        meter.merge(total.meter)
    result, names = meter.compute(), totals[0].stems
    rows = np.array([total.per_image["cases"] for total in totals])  # (raters, cases, classes, columns)
    sizes = totals[0].per_image["confidences"][:, 0] / _CUBIC_MILLIMETRES
    unit = "pixels" if np.isnan(sizes).any() else "ml"
    scale = np.ones(len(sizes)) if unit == "pixels" else sizes
    labels = range(1) if settings.binary else range(1, settings.classes or 1)
    agreement = _agreement([(plan.pairs, rater_settings) for plan, rater_settings in plans])
    return RaterFigures(
        tuple(name for name, _, _ in folders),
        len(names),
        result.ece_ew,
        intervals(result.rows, names * len(folders))["ece_ew"],
        tuple(total.meter.compute().ece_ew for total in totals),
        unit,
        tuple(_class_figures(1 if settings.binary else k, rows[:, :, k], scale, agreement[:, k]) for k in labels),
        tuple(dict.fromkeys(line for total in totals for line in warnings_of(total.findings, settings))),
    )


def _raters(predictions: Path, folders: Sequence[Path], settings: Settings) -> Iterator[tuple[str, Path, Settings]]:
    """Yield the name of every rater, the folder with the masks, and the settings for reading them."""
    if len(folders) > 1:
        yield from ((str(folder), folder, settings) for folder in folders)
        return
    plan, _ = plan_of(predictions, folders[0], settings)
    first = plan.pairs[0].mask
    assert first is not None
    if settings.maps.multilabel:
        raise InputError(folders[0], "one folder of masks beside --multilabel", "a folder of masks for each rater")
    raters = count_raters(first, settings.max_slab_pixels, settings.maps)
    for index in range(raters):
        maps = replace(settings.maps, rater=Channel(index, raters))
        yield f"{folders[0]}, rater {index + 1} of {raters}", folders[0], replace(settings, maps=maps)


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


def _agreement(by_rater: list[tuple[list[Pair], Settings]]) -> NDArray[np.float64]:
    """Return the mean Dice over all pairs of raters, (cases, classes)."""
    settings = by_rater[0][1]
    classes = [1] if settings.binary else list(range(settings.classes or 1))
    scores = []
    for pairs in zip(*(pairs for pairs, _ in by_rater), strict=True):
        masks = [_labels(pair, own) for pair, (_, own) in zip(pairs, by_rater, strict=True)]
        first = masks[0][0].shape
        for pair, (labels, _) in zip(pairs, masks, strict=True):
            if labels.shape != first:
                where = pair.mask or pair.prediction
                raise InputError(where, f"a mask of shape {labels.shape}", f"{first}, like the first rater's")
        labels, valid = np.stack([mask[0] for mask in masks]), np.logical_and.reduce([mask[1] for mask in masks])
        scores.append([rater_agreement(labels, k, valid) for k in classes])
    return np.array(scores)


def _labels(pair: Pair, settings: Settings) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the labels of a mask, and which pixels count."""
    assert pair.mask is not None
    limit, maps, name = settings.max_slab_pixels, settings.maps, str(pair.mask)
    if settings.binary:
        mask = read_foreground(pair.mask, name, settings.ignore_index, limit, maps)
        valid = np.ones(mask.foreground.shape, bool) if mask.void is None else ~mask.void
        return mask.foreground.astype(np.uint8), valid
    void = VOID if settings.ignore_index is None else settings.ignore_index
    labels = read_label_mask(pair.mask, name, settings.classes or 1, void, limit, maps).labels
    return labels, labels != void
