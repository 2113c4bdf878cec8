"""Scoring a map that is read slab by slab: the same figures as for other maps, except those of full metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.evaluation.folds import ClassCounter
from densecal.io.masks import VOID, refuse_labels
from densecal.io.slabs import LargePair
from densecal.metrics.calibration import CalibrationMeter
from densecal.metrics.cases import AGGREGATIONS, sum_classes
from densecal.metrics.confusion import ConfusionMeter
from densecal.metrics.min_max import LEVELS
from densecal.metrics.segmentation import SegmentationMeter, count_levels

Array = NDArray[Any]


@dataclass
class _Means:
    """Sums of confidence over all pixels, and over those predicted as foreground."""

    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    pixels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def add(self, confidence: Array, predicted: Array) -> None:
        for i, chosen in enumerate((confidence, confidence[predicted != 0])):
            self.sums[i] += float(chosen.sum(dtype=np.float64))
            self.pixels[i] += chosen.size

    def confidences(self, top: float) -> NDArray[np.float64]:
        """Return the averages of `metrics.cases.case_confidences` that need no neighbouring pixels."""
        result = np.full(len(AGGREGATIONS), math.nan)
        if self.pixels[0]:
            means = self.sums / np.maximum(self.pixels, 1) / top
            result[:2] = np.where(self.pixels > 0, means, means[0])
        return result


def score_classes(
    pair: LargePair, meter: CalibrationMeter, counter: ClassCounter, void: int
) -> tuple[ConfusionMeter, NDArray[np.float64], NDArray[np.float64]]:
    """Count a map of K classes in an empty meter and an empty counter.

    Returns:
        Confusions, confidences and sums of probabilities.
    """
    assert pair.classes is not None
    image, means, slabs = ConfusionMeter(pair.classes), _Means(), 0
    expected = np.zeros(pair.classes)
    for p, labels in pair.labels(void):
        meter.update(p[None], labels[None])
        predicted, valid = p.argmax(axis=0), labels != void
        image.update(predicted, labels, void)
        counter.add(p, predicted, labels, void)
        means.add(p.max(axis=0)[valid], predicted[valid])
        expected += sum_classes(p, valid)
        slabs += 1
    meter.sketch.rows.fold(slabs)
    return image, means.confidences(1.0), expected


@dataclass
class LargeForeground:
    """The counts and scores of a foreground map.

    Attributes:
        is_float: Whether it holds floats, which the meter has counted.
        counts: Pixels by label and level (2, L), floats rounded to 16 bits.
        row: Numbers of pixels that are predicted, foreground of the mask, and both.
        expected: Sum of the probabilities.
        overlap: The same as ``row`` for the mask as PySODMetrics cuts it.
        confidences: The averages of `metrics.cases.AGGREGATIONS`.
        segmentation: Scores of the map.
        grey: Whether the mask has levels other than those of foreground, background and void.
        spans: Whether floats span exactly 0 to 1.
    """

    is_float: bool
    counts: NDArray[np.int64]
    row: NDArray[np.int64]
    expected: float
    overlap: NDArray[np.int64]
    confidences: NDArray[np.float64]
    segmentation: SegmentationMeter
    grey: bool
    spans: bool


def score_foreground(pair: LargePair, meter: CalibrationMeter, ignore_index: int | None) -> LargeForeground:
    """Count a foreground map. Floats are counted in an empty meter."""
    is_float = pair.is_float
    rule = _MaskRule(pair, ignore_index)
    meter.ignore_index = VOID
    counts: NDArray[np.int64] | None = None
    row, overlap, means, slabs = np.zeros(3, np.int64), np.zeros(3, np.int64), _Means(), 0
    low, high, expected = math.inf, -math.inf, 0.0
    for prediction, mask, reference, valid in rule.slabs():
        if is_float:
            labels = np.where(valid, mask, np.uint8(VOID))
            meter.update(prediction[None, None], labels[None, None])
        p, y, r = prediction[valid], mask[valid], reference[valid]
        low, high = min(low, float(p.min(initial=1))), max(high, float(p.max(initial=0)))
        top = LEVELS.get(p.dtype, 2) - 1
        expected += float(p.sum(dtype=np.float64)) / top
        levels = np.rint(p * 65535.0).astype(np.uint16) if is_float else p
        slab_counts = count_levels(levels, y)[0]
        counts = slab_counts if counts is None else counts + slab_counts
        predicted = p > (0.5 if is_float else top // 2)
        row += [np.count_nonzero(pixels) for pixels in (predicted, y, predicted & y)]
        overlap += [np.count_nonzero(pixels) for pixels in (predicted, r, predicted & r)]
        means.add(np.maximum(p, top - p), predicted)
        slabs += 1
    assert counts is not None
    if is_float:
        meter.sketch.rows.fold(slabs)
    segmentation = SegmentationMeter(full=False)
    if counts.shape[1] == 256 and not rule.grey:
        segmentation.update_levels(counts[None])
    else:
        segmentation.update_slabs(lambda: ((p[valid], r[valid]) for p, _, r, valid in rule.slabs()))
    scale = 1.0 if is_float else float(counts.shape[1] - 1)
    return LargeForeground(
        is_float,
        counts,
        row,
        expected,
        overlap,
        means.confidences(scale),
        segmentation,
        rule.grey,
        low == 0.0 and high == 1.0,
    )


class _MaskRule:
    """The meaning of a mask's levels, which depends on the highest level of all slabs (`io.masks.foreground_mask`)."""

    def __init__(self, pair: LargePair, ignore_index: int | None) -> None:
        self.pair, self.ignore_index = pair, ignore_index
        present = np.zeros(256, bool)
        for levels, void in pair.masks():
            present |= np.bincount((levels if void is None else levels[~void]).ravel(), minlength=256) > 0
        if ignore_index is not None:
            present[ignore_index] = False
        if not present.any():
            raise InputError(str(pair.pair.mask), "nothing but void pixels", "at least one valid pixel")
        highest = int(np.flatnonzero(present).max())
        if pair.is_georeferenced:
            refuse_labels(highest, str(pair.pair.mask))
        self.least = 1 if highest == 1 else 128
        self.grey = highest > 1 and bool(present[1:255].any())

    def slabs(self) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield map, mask, the mask as PySODMetrics cuts it, and which pixels count."""
        for prediction, levels, void in self.pair.slabs():
            valid = np.ones(levels.shape, bool) if void is None else ~void
            if self.ignore_index is not None:
                valid &= levels != self.ignore_index
            mask = (levels >= self.least) & valid
            yield prediction, mask, mask & (levels != 128), valid
