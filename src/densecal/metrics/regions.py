"""Calibration by region: by distance from a boundary, by the size of objects, by the difficulty of images.

All regions are made of the per-image table, or of the same table for the pixels of a boundary zone, so that every
figure has an interval that resamples images. Images are compared in thirds:

* by the mean size of their objects: foreground pixels per connected object, or pixels per connected segment of any
  class. Objects that touch count as one.
* by difficulty, which is their mean confidence: a hard image is one on which the model is uncertain. Were hard images
  those with the lowest accuracy, even a calibrated model would look over-confident on them, because they would be
  chosen for its errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.ndimage when it is used
from numpy.typing import NDArray

from densecal.metrics import compiled
from densecal.metrics.bootstrap import column_sums, figures, intervals, with_image_ece
from densecal.metrics.curves import Floats
from densecal.metrics.fine_bins import equal_width_index, tally, top_label
from densecal.metrics.image_rows import rows_of, score_sums
from densecal.metrics.levels import ROW_SCALARS

ZONES = ("boundary_5", "boundary_5_15", "interior")
"""Pixels within 5 pixels (in volumes: millimetres) of a boundary, from there to 15, and farther away."""
SIZES = ("small_objects", "medium_objects", "large_objects")
DIFFICULTIES = ("hard_images", "medium_images", "easy_images")
NO_OBJECT = "no_object"
"""Images without any foreground."""
_FIGURES = ("ece_ew", "oe_ew", "ue_ew", "brier", "nll", "accuracy", "mean_confidence")


@dataclass(frozen=True)
class Region:
    """The figures of some pixels or images.

    Attributes:
        name: One of ``ZONES``, ``SIZES``, ``DIFFICULTIES`` or ``NO_OBJECT``.
        images: Images with pixels in the region.
        pixels: Its pixels.
        low: Smallest mean size of objects, or mean confidence, of these images; NaN for boundary zones.
        high: Largest.
        figures: ECE, OE, UE, Brier score, NLL, accuracy and mean confidence, by the names of a result.
        ci: Their 95 % intervals.
    """

    name: str
    images: int
    pixels: int
    low: float
    high: float
    figures: dict[str, float]
    ci: dict[str, tuple[float, float]]


def object_size(labels: NDArray[np.generic], valid: NDArray[np.bool_] | None = None) -> float:
    """Return the mean size of the connected objects of a mask in pixels, or of the segments of a label map.

    Args:
        labels: Booleans, of which True is foreground, or classes.
        valid: False at void pixels, which belong to no object.

    Returns:
        The mean size; NaN without foreground.
    """
    if labels.dtype == bool:
        foreground = labels if valid is None else np.logical_and(labels, valid)
        if compiled.takes_pictures(foreground):
            objects, pixels = compiled.native.count_objects(foreground, *foreground.shape)
        else:
            objects = int(scipy.ndimage.label(foreground, np.ones((3,) * labels.ndim))[1])
            pixels = int(np.count_nonzero(foreground))
        return float(pixels / objects) if objects else math.nan
    pixels = objects = 0
    everywhere = np.ones((3,) * labels.ndim)
    kinds = labels.astype(np.int32) + 1  # 0 is left out
    if valid is not None:
        kinds[~valid] = 0
    for kind, window in enumerate(scipy.ndimage.find_objects(kinds), start=1):
        if window is not None:
            inside = kinds[window] == kind
            pixels += int(np.count_nonzero(inside))
            objects += int(scipy.ndimage.label(inside, everywhere)[1])
    return pixels / objects if objects else math.nan


def boundary_rows(
    values: NDArray[np.floating],
    labels: NDArray[np.generic],
    valid: NDArray[np.bool_] | None,
    zones: NDArray[np.uint8],
    bins: int,
) -> Floats:
    """Return rows like those of the per-image table for the zones of one image, (zones, 5 + bins), but for the last.

    Args:
        values: Float probabilities (C, ...) of the foreground (C is 1) or of C classes.
        labels: The mask (...).
        valid: False at void pixels.
        zones: Zone of every pixel.
        bins: Equal-width bins.
    """
    softmax = len(values) > 1
    found = np.zeros((len(ZONES), len(ROW_SCALARS) + bins))
    for zone in range(len(ZONES) - 1):
        inside = zones == zone if valid is None else (zones == zone) & valid
        p = values[:, inside][None].astype(np.float64).clip(0.0, 1.0)
        truth = labels[inside].astype(np.int64)[None]
        truth = truth if softmax else truth[None]
        confidence, correct = top_label(p, truth, softmax)
        table = tally(equal_width_index(confidence, bins), confidence, correct, None, bins)
        found[zone] = rows_of(table[None], score_sums(p, truth, softmax, None))[0]
    return found


def fill_interior(zone_rows: Floats, row: Floats) -> None:
    """Set the last zone of one image to the rest of the image, whose row is given."""
    rest = row - zone_rows[:-1].sum(axis=0)
    scalars = len(ROW_SCALARS)
    rest[:scalars] = np.maximum(rest[:scalars], 0.0)
    zone_rows[-1] = rest if rest[0] > 0 else 0.0


def regions(
    rows: Floats, zone_rows: Floats | None, sizes: Floats | None, groups: Sequence[str] | None = None
) -> list[Region]:
    """Return the figures of every region that has pixels.

    Args:
        rows: ``Sketch.image_rows()``.
        zone_rows: The same for the pixels of each boundary zone, (images, zones, 5 + bins).
        sizes: Mean size of the objects of every image.
        groups: The group of every image, where intervals resample groups.
    """
    found = []
    if zone_rows is not None:
        found += [_region(name, zone_rows[:, zone], groups) for zone, name in enumerate(ZONES)]
    if sizes is not None:
        found += _thirds(SIZES, rows, sizes, groups)
        found.append(_region(NO_OBJECT, rows, groups, np.isnan(sizes)))
    confidence = rows[:, ROW_SCALARS.index("confidence")] / np.maximum(rows[:, 0], 1)
    found += _thirds(DIFFICULTIES, rows, confidence, groups)
    return [region for region in found if region is not None]


def _thirds(
    names: Sequence[str], rows: Floats, values: Floats, groups: Sequence[str] | None
) -> Iterator[Region | None]:
    """Yield the images with low, middle and high values; equal values are never parted."""
    known = ~np.isnan(values) & (rows[:, 0] > 0)
    if len(np.unique(values[known])) < len(names):
        return
    ends = np.quantile(values[known], [1 / 3, 2 / 3], method="inverted_cdf")
    third = np.searchsorted(ends, values, side="left")
    for number, name in enumerate(names):
        yield _region(name, rows, groups, known & (third == number), values)


def _region(
    name: str,
    rows: Floats,
    groups: Sequence[str] | None,
    chosen: NDArray[np.bool_] | None = None,
    values: Floats | None = None,
) -> Region | None:
    """Return the figures of the chosen images; None without pixels."""
    chosen = rows[:, 0] > 0 if chosen is None else chosen & (rows[:, 0] > 0)
    if not chosen.any():
        return None
    own = rows[chosen]
    ends = (math.nan, math.nan) if values is None else (float(values[chosen].min()), float(values[chosen].max()))
    kept = None if groups is None else [group for group, keep in zip(groups, chosen, strict=True) if keep]
    pooled, ci = figures(column_sums(with_image_ece(own))), intervals(own, kept)
    return Region(
        name,
        len(own),
        int(own[:, 0].sum()),
        *ends,
        {key: float(pooled[key]) for key in _FIGURES},
        {key: ci[key] for key in _FIGURES},
    )
