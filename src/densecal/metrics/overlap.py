"""Dice and IoU per image, and their means over images: what medicine reports per case.

A class that is absent from both the map and the mask of an image says nothing about the overlap: it is left out. One
that is absent from only one of the two scores 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from densecal.metrics.confusion import ConfusionMeter

Floats = NDArray[np.float64]

MEANS = ("dice_image_mean", "iou_image_mean")
"""The means over images, in the order of the columns of an array of overlaps."""


def foreground_overlap(predicted: NDArray[np.bool_], mask: NDArray[np.bool_]) -> Floats:
    """Return Dice and IoU of the foreground of one image, (2,); NaN where both are empty."""
    return overlap_of(*(int(np.count_nonzero(pixels)) for pixels in (predicted, mask, predicted & mask)))


def overlap_of(predicted: int, truth: int, hits: int) -> Floats:
    """Return Dice and IoU, (2,), from the numbers of pixels of map and mask and of those they share."""
    return np.asarray(_overlap(np.array([hits]), np.array([predicted + truth]))[0])


def level_overlaps(counts: NDArray[np.int64]) -> Floats:
    """Return Dice and IoU of integer maps from their level counts (B, 2, L): (B, 2)."""
    above = counts[:, :, counts.shape[2] // 2 :].sum(axis=2)
    return _overlap(above[:, 1], above.sum(axis=1) + counts[:, 1].sum(axis=1))


def class_overlap(image: ConfusionMeter) -> Floats:
    """Return the means of Dice and IoU over the classes of one image, (2,)."""
    result = image.compute()
    return np.array([result.dice, result.miou])


def overlap_means(overlaps: NDArray[Any]) -> dict[str, float]:
    """Return the means over images of overlaps (N, 2), without the images that have none."""
    scored = overlaps.reshape(-1, 2)[_has_overlap(overlaps)]
    means = scored.mean(axis=0) if len(scored) else np.full(2, np.nan)
    return dict(zip(MEANS, map(float, means), strict=True))


def overlap_intervals(overlaps: NDArray[Any], groups: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of the means over images; NaN with fewer than two images or groups.

    Args:
        overlaps: Dice and IoU of every image, (N, 2).
        groups: The group of every image, where images of one group are alike.
    """
    scored = _has_overlap(overlaps)
    units = None if groups is None else np.asarray(groups, dtype=object)[scored].astype(str)
    values = overlaps.reshape(-1, 2)[scored]
    return {name: mean_interval(values[:, column], units) for column, name in enumerate(MEANS)}


def mean_interval(
    values: Floats, groups: NDArray[Any] | None = None, lowest: float = 0.0, highest: float = 1.0
) -> tuple[float, float]:
    """Return Student's 95 % interval of a mean over images, to first order where groups differ in size.

    Args:
        values: Of every image.
        groups: The group of every image.
        lowest: Least value that there is.
        highest: Largest value that there is.
    """
    unit = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    size = np.bincount(unit)
    units = len(size)
    if units < 2:
        return (math.nan, math.nan)
    mean = float(values.mean())
    residuals = (np.bincount(unit, values) - mean * size) / len(values)
    half = float(stdtrit(units - 1, 0.975)) * math.sqrt(units / (units - 1) * float(residuals @ residuals))
    return max(lowest, mean - half), min(highest, mean + half)


def _has_overlap(overlaps: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which images have an overlap."""
    return np.asarray(~np.isnan(overlaps.reshape(-1, 2)[:, 0]))


def _overlap(hits: NDArray[np.int64], both: NDArray[np.int64]) -> Floats:
    """Return Dice and IoU, (B, 2), from the common pixels and the sum of the sizes of map and mask."""
    size = np.where(both > 0, both, 1)
    overlaps = np.stack([2 * hits / size, hits / (size - hits)], axis=-1)
    overlaps[both == 0] = np.nan
    return np.asarray(overlaps)
