"""Guarantees on folders of maps with masks: thresholds, sets of classes, and margins around masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.calibrate.folders import one_plan
from densecal.data.pairs import Plan
from densecal.errors import InputError
from densecal.io.groups import Groups
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.masks import VOID, one_sided
from densecal.io.pairs import ForegroundPair, Pair, pair_files, read_class_pair, read_foreground_pair
from densecal.io.urls import fetch_ahead
from densecal.posthoc.margins import Margin, MarginScores, Masks
from densecal.posthoc.prediction_sets import SetControl, SetCurve
from densecal.posthoc.risk_control import RiskControl, RiskCurve
from densecal.runtime.progress import Progress, silent, track

_LEVELS = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


class MaskedMaps:
    """Maps with masks, image by image or group by group, from which guarantees are computed.

    Args:
        predictions: Folder of maps.
        masks: Folder of masks.
        classes: 1 for foreground maps, K for softmax maps, or the number of regions where ``maps`` names one of them.
        ignore_index: Mask value of void pixels; 255 for K classes unless given.
        groups: Groups of similar images, with which guarantees hold for a new group.
        maps: How the maps are stored.

    Attributes:
        masks: Folder of masks.
        plan: Which maps belong to which masks.
        classes: 1 for foreground maps, else K.
        grouped: Whether a unit is a group.
        progress: Called with the number of maps read.
    """

    def __init__(
        self,
        predictions: Path,
        masks: Path,
        classes: int = 1,
        ignore_index: int | None = None,
        groups: Groups | None = None,
        maps: MapOptions = AS_STORED,
    ) -> None:
        self.plan: Plan = one_plan(predictions, masks, maps, classes, ignore_index)
        self.classes = self.plan.classes or 1
        self.grouped = groups is not None
        self.masks = masks
        self.progress: Progress = silent
        self._groups = groups

    def __iter__(self) -> Iterator[list[Pair]]:
        """Yield the pairs of every group, or every pair alone."""
        units: dict[str, list[Pair]] = {}
        stems = [pair.stem for pair in self.plan.pairs]
        for pair, group in zip(self.plan.pairs, stems if self._groups is None else self._groups.of(stems), strict=True):
            units.setdefault(group, []).append(pair)
        ahead = fetch_ahead(list(units.values()), pair_files)
        yield from track(ahead, "Reading maps", self.progress, len(units))

    def read_foreground(self, pair: Pair) -> ForegroundPair:
        """Read a foreground map and its mask."""
        if self.classes != 1:
            raise InputError(pair.prediction, f"maps of {self.classes} classes", "maps of one foreground probability")
        read = read_foreground_pair(pair, self.plan.ignore_index, options=self.plan.options)
        _check_valid(pair, read.valid)
        return read

    def read_labels(self, pair: Pair) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return the map of K classes and the labels of the pixels that are not void: (K, pixels) and (pixels,)."""
        void = VOID if self.plan.ignore_index is None else self.plan.ignore_index
        read = read_class_pair(pair, self.classes, void, options=self.plan.options)
        valid = read.labels != void
        _check_valid(pair, valid)
        return read.prediction[:, valid], read.labels[valid]


def control_risk(maps: MaskedMaps, alpha: float) -> RiskControl:
    """Find the threshold on foreground maps that controls the false-negative rate at alpha."""
    return foreground_curve(maps).control(alpha, maps.grouped)


def foreground_curve(maps: MaskedMaps) -> RiskCurve:
    """Return misses and false alarms at every threshold of foreground maps."""
    curve, foreground = RiskCurve(), False
    for unit in maps:
        part = RiskCurve()
        for pair in unit:
            read = maps.read_foreground(pair)
            part.update(read.prediction[read.valid], read.mask.foreground[read.valid])
            foreground |= bool(read.mask.foreground.any())
        curve.add_group(part)
    if not foreground:
        raise InputError(maps.masks, one_sided(0, 0, curve.images), "at least one foreground pixel")
    return curve


@dataclass(frozen=True)
class ClassRisk:
    """The threshold of one class.

    Attributes:
        label: The class.
        images: Number of images whose mask contains it.
        units: Number of groups of such images; without groups, the number of images.
        control: The threshold and its costs on these images; None where there are fewer than 1/alpha - 1 units.
    """

    label: int
    images: int
    units: int
    control: RiskControl | None


def control_class_risks(maps: MaskedMaps, alpha: float) -> list[ClassRisk]:
    """Find a threshold for every class of softmax maps; see `posthoc.risk_control` for the guarantee.

    Args:
        maps: The maps.
        alpha: The share of a class that may be missed, on average over images that contain it.
    """
    curves = [RiskCurve() for _ in range(maps.classes)]
    for unit in maps:
        parts = {label: RiskCurve() for label in range(maps.classes)}
        for pair in unit:
            prediction, labels = maps.read_labels(pair)
            for label in np.unique(labels).tolist():
                parts[label].update(prediction[label], labels == label)
        for label, part in parts.items():
            if part.images:
                curves[label].add_group(part)
    return [ClassRisk(k, curve.images, curve.units, _control(curve, alpha, maps)) for k, curve in enumerate(curves)]


def _control(curve: RiskCurve, alpha: float, maps: MaskedMaps) -> RiskControl | None:
    """Return the threshold of a class, or None where too few units contain it."""
    try:
        return curve.control(alpha, maps.grouped)
    except InputError:
        if 0.0 < alpha < 1.0:
            return None
        raise


def control_sets(maps: MaskedMaps, score: str, alpha: float, delta: float | None = None) -> SetControl:
    """Find sets of classes per pixel that lack the true class in at most a share alpha of a new image's pixels.

    Args:
        maps: Softmax maps.
        score: ``thr``, ``aps`` or ``raps``.
        alpha: Largest share of pixels whose set lacks the true class.
        delta: Let the guarantee hold with probability 1 - delta over calibration sets, instead of on average.
    """
    curve = SetCurve(maps.classes, score)
    for unit in maps:
        part = SetCurve(maps.classes, score)
        for pair in unit:
            prediction, labels = maps.read_labels(pair)
            part.update(prediction / _LEVELS.get(prediction.dtype, 1.0), labels)
        curve.add_group(part)
    return curve.control(alpha, delta, maps.grouped)


def control_margin(maps: MaskedMaps, coverage: float, shape: str, alpha: float) -> Margin:
    """Find how far masks (p > 0.5) must grow to cover the foreground of a new image.

    Args:
        maps: Foreground maps, or predicted masks.
        coverage: Share of the foreground to cover.
        shape: ``disc``, ``square`` or ``cross``.
        alpha: Largest share of new images (with groups: of new groups with any such image) of which less is covered.
    """
    scores = MarginScores(coverage, shape)
    for unit in maps:
        scores.add_group([_masks_of(maps.read_foreground(pair)) for pair in unit])
    return scores.control(alpha, maps.grouped)


def _masks_of(read: ForegroundPair) -> tuple[Masks, Masks, Masks]:
    predicted = read.prediction > _LEVELS.get(read.prediction.dtype, 1.0) / 2
    return predicted, read.mask.foreground.astype(bool), read.valid


def _check_valid(pair: Pair, valid: Masks) -> None:
    if not valid.any():
        raise InputError(str(pair.mask), "nothing but void pixels", "at least one valid pixel")
