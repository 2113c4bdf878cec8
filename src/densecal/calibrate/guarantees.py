"""Guarantees on folders of maps beyond the threshold of `control_risk`: sets of classes, and margins around masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from densecal.calibrate.folders import foreground_plan, map_units, one_plan
from densecal.errors import InputError
from densecal.io.groups import Groups
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.masks import VOID
from densecal.io.pairs import Pair, read_class_pair, read_foreground_pair
from densecal.posthoc.margins import Margin, MarginScores, Masks
from densecal.posthoc.prediction_sets import SetControl, SetCurve
from densecal.runtime.progress import Progress, silent

_LEVELS = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


def control_sets(
    predictions: Path,
    masks: Path,
    classes: int,
    score: str,
    alpha: float,
    delta: float | None = None,
    ignore_index: int | None = None,
    groups: Groups | None = None,
    progress: Progress = silent,
    maps: MapOptions = AS_STORED,
) -> SetControl:
    """Find the sets of classes per pixel that lack the true class at a share alpha of a new image's pixels, at most.

    Args:
        predictions: Folder of softmax maps.
        masks: Folder of masks.
        classes: K.
        score: ``thr``, ``aps`` or ``raps``.
        alpha: The share of pixels.
        delta: Let it hold with probability 1 - delta over calibration sets, instead of on average.
        ignore_index: Label of void pixels; 255 unless given.
        groups: Groups of images that are alike: the guarantee is then for a new group.
        progress: Told how many maps are read.
        maps: How the maps are stored.
    """
    plan = one_plan(predictions, masks, maps, classes, ignore_index)
    maps, void = plan.options, VOID if plan.ignore_index is None else plan.ignore_index
    curve = SetCurve(classes, score)
    for unit in map_units(plan.pairs, groups, progress):
        part = SetCurve(classes, score)
        for pair in unit:
            read = read_class_pair(pair, classes, void, options=maps)
            valid = read.labels != void
            if not valid.any():
                raise InputError(str(pair.mask), "nothing but void pixels", "at least one valid pixel")
            p = read.prediction[:, valid]
            part.update(p / _LEVELS.get(p.dtype, 1.0), read.labels[valid])
        curve.add_group(part)
    return curve.control(alpha, delta, groups is not None)


def control_margin(
    predictions: Path,
    masks: Path,
    coverage: float,
    shape: str,
    alpha: float,
    ignore_index: int | None = None,
    groups: Groups | None = None,
    progress: Progress = silent,
    maps: MapOptions = AS_STORED,
    classes: int = 1,
) -> Margin:
    """Find by how much to grow masks (p > 0.5) so that they cover the foreground of a new image.

    Args:
        predictions: Folder of foreground maps, or of predicted masks.
        masks: Folder of masks.
        coverage: Share of the foreground to cover.
        shape: ``disc``, ``square`` or ``cross``.
        alpha: Share of new images, at most, of which less is covered.
        ignore_index: Mask value of void pixels.
        groups: Groups of images that are alike: all images of a new group are then covered.
        progress: Told how many maps are read.
        maps: How the maps are stored.
        classes: Number of regions, where ``maps`` names one region of multi-label maps.
    """
    plan = foreground_plan(predictions, masks, maps, classes, ignore_index)
    scores = MarginScores(coverage, shape)
    for unit in map_units(plan.pairs, groups, progress):
        scores.add_group([_read_masks(pair, plan.ignore_index, plan.options) for pair in unit])
    return scores.control(alpha, groups is not None)


def _read_masks(pair: Pair, ignore_index: int | None, maps: MapOptions) -> tuple[Masks, Masks, Masks]:
    read = read_foreground_pair(pair, ignore_index, options=maps)
    predicted = read.prediction > _LEVELS.get(read.prediction.dtype, 1.0) / 2
    return predicted, read.mask.foreground.astype(bool), read.valid
