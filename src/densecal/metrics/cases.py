"""Scores of single cases: overlap, surfaces and volume of every class, and the map's confidence in the whole case.

A class that is absent from both map and mask of a case says nothing and is left out. One that is absent from only one
of them has a Dice and a surface Dice of 0; its Hausdorff distance does not exist, and is left out and counted.

A case's confidence is an average of the confidence of its pixels. Which average finds the cases that fail best is an
open question (Jungo et al. 2020, Zenk et al. 2024), so there are four of them, `AGGREGATIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks
from densecal.metrics import compiled
from densecal.metrics.overlap import mean_interval
from densecal.metrics.volumes import surface_scores

COLUMNS = ("predicted", "truth", "hits", "hd95", "nsd", "expected")
"""What is kept of every class of a case: numbers of pixels, surface scores, and the sum of its probabilities."""
AGGREGATIONS = ("mean", "foreground", "interior", "patch")
"""Averages of a case's confidence: over all pixels; over those called foreground; over those farther than two pixels
from a boundary of the prediction; the least of all square or cubic patches of ten pixels a side."""
_BOUNDARY = 2
_PATCH = 10

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def class_row(
    predicted: Mask,
    truth: Mask,
    spacing: Sequence[float] | None = None,
    tolerance: float | None = None,
    expected: float = math.nan,
) -> Floats:
    """Return the scores of one class of a case, `COLUMNS`.

    Args:
        predicted: Where the map has the class.
        truth: Where the mask has it.
        spacing: Distance of pixels along every axis.
        tolerance: Distance up to which surfaces agree; without it, surfaces are not compared.
        expected: Sum of the probabilities of the class.
    """
    counts = [np.count_nonzero(pixels) for pixels in (predicted, truth, predicted & truth)]
    surfaces = (math.nan, math.nan)
    if tolerance is not None:
        surfaces = surface_scores(predicted, truth, spacing, tolerance)
    return np.array([*counts, *finite(surfaces), expected])


def finite(scores: Sequence[float]) -> list[float]:
    """Return scores with NaN in place of infinite ones."""
    return [math.nan if math.isinf(score) else score for score in scores]


def confusion_rows(matrix: NDArray[np.int64], expected: Floats) -> Floats:
    """Return the scores of every class of a case, (K, columns); surfaces are NaN.

    Args:
        matrix: Pixels by true and predicted class.
        expected: Sum of the probabilities of every class.
    """
    rows = np.full((len(matrix), len(COLUMNS)), np.nan)
    rows[:, :3] = np.stack([matrix.sum(axis=0), matrix.sum(axis=1), matrix.diagonal()], axis=1)
    rows[:, 5] = expected
    return rows


def sum_classes(probabilities: NDArray[Any], valid: Mask) -> Floats:
    """Return the sums of the probabilities (K, space) of every class over the valid pixels, (K,)."""
    return np.array([p.sum(where=valid, dtype=np.float64) for p in probabilities])


def sum_where(values: NDArray[Any], keep: Mask) -> float:
    """Return the sum of some values, which is exact for levels of 8 or 16 bits."""
    if values.dtype.kind == "u":  # the product takes a twentieth of the time of a sum with `where`
        narrow = values.size * int(np.iinfo(values.dtype).max) < 1 << 32
        return float((values * keep).sum(dtype=np.uint32 if narrow else np.uint64))
    return float(np.sum(values, where=keep, dtype=np.float64))


def dice_of(rows: Floats) -> Floats:
    """Return Dice from rows (..., columns); NaN for a class that is absent from both."""
    both = rows[..., 0] + rows[..., 1]
    return np.asarray(np.where(both > 0, 2 * rows[..., 2] / np.where(both > 0, both, 1), np.nan))


def case_confidences(
    confidence: NDArray[Any], predicted: NDArray[Any], valid: Mask | None = None, full: bool = True
) -> Floats:
    """Return the averages of a case's confidence, `AGGREGATIONS`.

    An average over no pixel at all is replaced by that over all pixels; a case without pixels has NaN.

    Args:
        confidence: Probability of the winning class, (H, W) or (D, H, W), or levels of 8 or 16 bits.
        predicted: The classes that won, 0 for background.
        valid: False on void pixels.
        full: Also compute the last two, which look at neighbours; NaN otherwise.
    """
    keep = np.ones(confidence.shape, bool) if valid is None else valid
    whole = _mean(confidence, keep)
    means = np.array([whole, _mean(confidence, keep & (predicted != 0))]) / _top(confidence)
    near = neighbour_confidences(confidence, predicted, valid) if full else (math.nan, math.nan)
    return complete_confidences(means, np.array(near), full)


def complete_confidences(means: Floats, near: Floats, full: bool) -> Floats:
    """Return the averages of the confidence of cases, where those over no pixel are replaced by that over all pixels.

    Args:
        means: Over all pixels and over those called foreground, (..., 2).
        near: `neighbour_confidences`, (..., 2).
        full: Whether these are measured.
    """
    result = np.concatenate([means, near], axis=-1)
    return np.where(np.isnan(result) & np.array([True, True, full, full]), result[..., :1], result)


def neighbour_confidences(confidence: NDArray[Any], predicted: NDArray[Any], valid: Mask | None) -> tuple[float, float]:
    """Return the last two averages of a case's confidence, which look at neighbours; NaN over no pixel at all.

    Args:
        confidence: As for `case_confidences`, as the other two.
        predicted: The classes that won.
        valid: False on void pixels.
    """
    top = _top(confidence)
    keep = ~boundary(predicted)
    interior = _mean(confidence, keep if valid is None else keep & valid)
    return interior / top, _least_patch(confidence, valid) / top


def level_neighbours(levels: NDArray[np.unsignedinteger[Any]], valid: Mask | None) -> tuple[float, float]:
    """Return `neighbour_confidences` of a foreground map of 8 or 16 bits.

    Args:
        levels: (H, W) or (D, H, W).
        valid: False on void pixels.
    """
    top = int(np.iinfo(levels.dtype).max)
    if valid is not None or not compiled.takes_pictures(levels):
        return neighbour_confidences(np.maximum(levels, top - levels), levels > top // 2, valid)
    total, count = compiled.native.interior(levels, *levels.shape)
    sides = [min(_PATCH, length) for length in levels.shape]
    least = compiled.native.patch_minimum(levels, *levels.shape, *sides)
    return total / count / top if count else math.nan, least / math.prod(sides) / top


def _top(confidence: NDArray[Any]) -> float:
    return float(np.iinfo(confidence.dtype).max) if np.issubdtype(confidence.dtype, np.integer) else 1.0


def level_confidences(counts: NDArray[np.int64]) -> Floats:
    """Return the first two averages of `case_confidences` from the level counts (B, 2, L) of integer maps, (B, 2)."""
    top = counts.shape[2] - 1
    confidence = np.maximum(np.arange(top + 1), top - np.arange(top + 1))
    pixels = counts.sum(axis=1)
    above = pixels[:, top // 2 + 1 :]
    sums = np.stack([pixels @ confidence, above @ confidence[top // 2 + 1 :]], axis=1)
    numbers = np.stack([pixels.sum(axis=1), above.sum(axis=1)], axis=1)
    means = np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan) / top
    return np.where(np.isnan(means), means[:, :1], means)


def level_cases(counts: NDArray[np.int64]) -> Floats:
    """Return the scores of integer maps from their level counts (B, 2, L), (B, columns); surfaces are NaN."""
    top = counts.shape[2] - 1
    above = counts[:, :, top // 2 + 1 :].sum(axis=2)
    rows = np.full((len(counts), len(COLUMNS)), np.nan)
    rows[:, :3] = np.stack([above.sum(axis=1), counts[:, 1].sum(axis=1), above[:, 1]], axis=1)
    rows[:, 5] = counts.sum(axis=1) @ np.arange(top + 1) / top
    return rows


def boundary(predicted: NDArray[Any], width: int = _BOUNDARY) -> Mask:
    """Return which pixels are within some steps of a pixel of another class, along the axes."""
    near = np.zeros(predicted.shape, bool)
    for axis in range(predicted.ndim):
        first, second = _neighbours(predicted.ndim, axis)
        differs = predicted[first] != predicted[second]
        near[first] |= differs
        near[second] |= differs
    for _ in range(width - 1):
        grown = near.copy()
        for axis in range(near.ndim):
            first, second = _neighbours(near.ndim, axis)
            grown[first] |= near[second]
            grown[second] |= near[first]
        near = grown
    return near


def _neighbours(axes: int, axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the slices of all pixels that have a next one along an axis, and of those next ones."""
    whole = (slice(None),) * axes
    return (*whole[:axis], slice(None, -1), *whole[axis + 1 :]), (*whole[:axis], slice(1, None), *whole[axis + 1 :])


def _mean(values: NDArray[Any], keep: Mask) -> float:
    """Return the mean of some values; NaN where there are none."""
    total, count = 0.0, 0
    for rows in row_chunks(values.shape):
        kept = keep[rows]
        count += int(np.count_nonzero(kept))
        total += sum_where(values[rows], kept)
    return total / count if count else math.nan


def _least_patch(values: NDArray[Any], valid: Mask | None) -> float:
    """Return the least mean of all patches; patches of which half or more is void are left out."""
    counted = values if valid is None else np.where(valid, values, values.dtype.type(0))
    sums = _patch_sums(counted) if values.dtype.kind == "f" else _level_sums(counted)
    size = math.prod(min(_PATCH, length) for length in values.shape)
    if valid is None:
        return float(sums.min()) / size
    pixels = _level_sums(valid.view(np.uint8))
    enough = pixels > size / 2
    return float((sums[enough] / pixels[enough]).min()) if enough.any() else math.nan


def _patch_sums(values: NDArray[np.floating]) -> Floats:
    """Return the sums of all patches that lie inside."""
    sums: Floats = values.astype(np.float64)
    for axis, length in enumerate(values.shape):
        side = min(_PATCH, length)
        total = np.cumsum(np.moveaxis(sums, axis, 0), axis=0)
        total[side:] -= total[:-side].copy()
        sums = np.moveaxis(total[side - 1 :], 0, axis)
    return sums


def _level_sums(levels: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Return the same sums of levels of 8 or 16 bits, in the narrowest integers that hold them.

    Sums over 1, 2, 4, ... neighbours make up those over a patch, so that every step adds whole arrays.
    """
    largest = int(np.iinfo(levels.dtype).max) * math.prod(min(_PATCH, length) for length in levels.shape)
    sums: NDArray[Any] = levels.astype(np.uint16 if largest < 1 << 16 else np.uint32)
    for axis, length in enumerate(levels.shape):
        side, width, offset = min(_PATCH, length), 1, 0
        power, total = np.moveaxis(sums, axis, 0), None
        while width <= side:
            if side & width:
                part = power[offset : offset + length - side + 1]
                total, offset = part if total is None else total + part, offset + width
            if 2 * width <= side:
                power = power[width:] + power[:-width]
            width *= 2
        assert total is not None
        sums = np.moveaxis(total, 0, axis)
    return sums


def risk_coverage(confidence: Floats, risk: Floats) -> Floats:
    """Return the mean risk of the k most confident cases, for k = 1 to n; tied cases share their mean risk."""
    order = np.argsort(-confidence, kind="stable")
    _, tie = np.unique(-confidence[order], return_inverse=True)
    shared = (np.bincount(tie, risk[order]) / np.bincount(tie))[tie]
    return np.asarray(np.cumsum(shared) / np.arange(1, len(risk) + 1))


def case_aurc(confidence: Floats, risk: Floats) -> float:
    """Return the area under the risk-coverage curve of cases: the mean of the risk over all coverages."""
    return float(risk_coverage(confidence, risk).mean())


def aurc_interval(confidence: Floats, risk: Floats, groups: NDArray[np.str_] | None = None) -> tuple[float, float]:
    """Return the 95 % interval of the area under the risk-coverage curve: Student's t of the jackknife.

    Args:
        confidence: Of every case.
        risk: Of every case, 0 to 1.
        groups: The group of every case, where cases of one group are alike.

    Returns:
        Both ends; NaN with fewer than two cases or groups.
    """
    if len(risk) < 2:
        return (math.nan, math.nan)
    # by how much every case moves the area, centred on the area
    moved = -(len(risk) - 1) * _areas_without_each(confidence, risk)
    return mean_interval(moved - moved.mean() + case_aurc(confidence, risk), groups)


def _areas_without_each(confidence: Floats, risk: Floats) -> Floats:
    """Return the areas under the curves of all cases but one, for every case.

    The area is a weighted sum of risks: the case of rank i of n counts 1/i + ... + 1/n, divided by n, and tied cases
    count the mean of their weights.
    """
    n = len(risk)
    _, tie, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    first = last - size
    total = np.bincount(tie, risk)
    # sums of the first 0, 1, ... weights of n - 1 cases; no case has the rank n
    sums = np.append(0.0, np.cumsum(np.cumsum(1 / np.arange(n - 1, 0, -1))[::-1]))
    before = total * (sums[np.minimum(last, n - 1)] - sums[first]) / size
    after = total * (sums[last - 1] - sums[np.maximum(first - 1, 0)]) / size  # one rank higher than with the case
    tied = (sums[last - 1] - sums[first]) / np.maximum(size - 1, 1)
    others = np.cumsum(before) - before + after.sum() - np.cumsum(after)
    return np.asarray((others[tie] + (total[tie] - risk) * tied[tie]) / (n - 1))
