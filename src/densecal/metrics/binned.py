"""Reliability curves of a sketch: float maps from its bin tables, integer maps from its counts by level."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.curves import Atoms, ReliabilityCurve
from densecal.metrics.exact import sum_products
from densecal.metrics.levels import MAX_LEVEL
from densecal.metrics.sketch import Sketch


def equal_width_curve(sketch: Sketch) -> ReliabilityCurve:
    """Return the reliability of the winning class in equal-width bins."""
    count, confidence, correct = sketch.counts("top")
    return _with_levels(count, confidence, correct, sketch.level_counts(), top_label=True)


def classwise_curves(sketch: Sketch) -> list[ReliabilityCurve]:
    """Return the reliability of every class's own probability in equal-width bins over [0, 1]."""
    count, value, hits = sketch.counts("classes")
    if sketch.num_classes > 1:
        return [ReliabilityCurve.from_sums(*channel) for channel in zip(count, value, hits, strict=True)]
    levels = sketch.level_counts()
    # The background's probability is the mirrored level, its mask the inverted mask.
    by_class = (levels[::-1, ::-1], levels)
    return [_with_levels(count[k], value[k], hits[k], by_class[k], top_label=False) for k in range(2)]


def top_k_curves(sketch: Sketch) -> dict[int, ReliabilityCurve]:
    """Return by k how often the true class is among the k most probable, over their probability together.

    Empty where no pixel has more classes than that, or where some were counted by an older version without them.
    """
    if "top_k" not in sketch.tables:
        return {}
    curves = zip(sketch.top_ks, *sketch.counts("top_k"), strict=True)
    found = {k: ReliabilityCurve.from_sums(*sums) for k, *sums in curves}
    pixels = sketch.tables["top"][:, :2].sum()
    return {k: curve for k, curve in found.items() if curve.count.sum() == pixels}


def foreground_curve(sketch: Sketch, classwise: list[ReliabilityCurve]) -> ReliabilityCurve | None:
    """Return the reliability of the foreground probability, all channels of multi-label maps together."""
    if sketch.softmax:
        return None
    if sketch.num_classes == 1:
        return classwise[1]
    count, value, hits = sketch.counts("classes")
    return ReliabilityCurve.from_sums(count.sum(axis=0), value.sum(axis=0), hits.sum(axis=0))


def band_ece(sketch: Sketch, band: int) -> float:
    """Return the ECE within a boundary band; NaN without pixels."""
    count, confidence, correct = (part[band] for part in sketch.counts("bands"))
    levels = sum((sketch.level_counts(zone) for zone in range(1, band + 1)), sketch.level_counts(0))
    curve = _with_levels(count, confidence, correct, levels, top_label=True)
    return curve.ece if curve.count.sum() > 0 else math.nan


def _with_levels(
    count: NDArray[np.int64],
    value: NDArray[np.float64],
    hits: NDArray[np.int64],
    levels: NDArray[np.int64],
    top_label: bool,
) -> ReliabilityCurve:
    """Add the level histogram (2, 65536) of integer maps to the counts of float maps, binned by integer arithmetic."""
    bins = len(count)
    level = np.flatnonzero(levels.any(axis=0))
    background, foreground = levels[:, level]
    numerator, right = level, foreground
    if top_label:
        numerator = np.maximum(level, MAX_LEVEL - level)
        right = np.where(2 * level > MAX_LEVEL, foreground, background)
    pixels = background + foreground
    index = np.minimum(numerator * bins // MAX_LEVEL, bins - 1)
    total = np.zeros((2, bins), np.int64)
    for row, amount in zip(total, (pixels, right), strict=True):
        np.add.at(row, index, amount)
    sums = sum_products(index, pixels, numerator, bins) / MAX_LEVEL
    return ReliabilityCurve.from_sums(count + total[0], value + sums, hits + total[1])


def class_atoms(sketch: Sketch) -> list[Atoms]:
    """Return the probabilities of every class: background and foreground of a binary map, else one per channel."""
    if sketch.num_classes > 1:
        return [Atoms.from_counts(*sketch.class_atoms(k)) for k in range(sketch.num_classes)]
    foreground = Atoms.from_counts(*sketch.class_atoms(0))
    return [foreground.mirror(), foreground]


def foreground_atoms(sketch: Sketch, classes: list[Atoms]) -> Atoms | None:
    """Return the foreground probabilities, all channels of multi-label maps together; None for a softmax."""
    if sketch.softmax:
        return None
    if sketch.num_classes == 1:
        return classes[1]
    columns = zip(*((atoms.value, atoms.count, atoms.hits) for atoms in classes), strict=True)
    return Atoms.from_counts(*map(np.concatenate, columns))
