"""Scores of cases against brute force: averages of confidence, overlap of classes, risk over coverage."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from densecal.metrics.cases import (
    aurc_interval,
    boundary,
    case_aurc,
    case_confidences,
    class_row,
    confusion_rows,
    dice_of,
    risk_coverage,
)


def draw(shape, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.uniform(size=shape)
    predicted = np.zeros(shape, bool)
    predicted[tuple(slice(1, side // 2) for side in shape)] = True
    return np.where(predicted, 0.5 + p / 2, 1 - p / 2), predicted, rng.random(shape) > 0.2


def confidences_by_pixels(confidence, predicted, valid):
    pixels = list(np.ndindex(confidence.shape))
    kept = [i for i in pixels if valid[i]]

    def has_other(i):
        steps = [s for s in product(range(-2, 3), repeat=len(i)) if sum(map(abs, s)) <= 2]
        others = [tuple(np.add(i, s)) for s in steps]
        inside = [j for j in others if all(0 <= a < b for a, b in zip(j, confidence.shape, strict=True))]
        return any(predicted[j] != predicted[i] for j in inside)

    sides = [min(10, side) for side in confidence.shape]
    patches = []
    for corner in product(*(range(length - side + 1) for length, side in zip(confidence.shape, sides, strict=True))):
        part = tuple(slice(c, c + side) for c, side in zip(corner, sides, strict=True))
        if 2 * valid[part].sum() > np.prod(sides):
            patches.append(confidence[part][valid[part]].mean())
    return [
        np.mean([confidence[i] for i in kept]),
        np.mean([confidence[i] for i in kept if predicted[i]]),
        np.mean([confidence[i] for i in kept if not has_other(i)]),
        min(patches),
    ]


@pytest.mark.parametrize("shape", [(13, 11), (12, 6, 11)])
def test_a_cases_confidence_is_averaged_in_four_ways(shape):
    confidence, predicted, valid = draw(shape)
    expected = confidences_by_pixels(confidence, predicted, valid)
    assert case_confidences(confidence, predicted, valid) == pytest.approx(expected, abs=1e-12)
    everything = np.ones(shape, bool)
    expected = confidences_by_pixels(confidence, predicted, everything)
    assert case_confidences(confidence, predicted) == pytest.approx(expected, abs=1e-12)
    fast = case_confidences(confidence, predicted, full=False)
    assert fast[:2] == pytest.approx(expected[:2], abs=1e-12)
    assert np.isnan(fast[2:]).all()


def test_levels_are_shares_of_the_highest():
    confidence, predicted, _ = draw((12, 12))
    levels = np.rint(confidence * 255).astype(np.uint8)
    assert case_confidences(levels, predicted) == pytest.approx(case_confidences(levels / 255, predicted), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(23, 31), (7, 40), (1, 10), (11, 12, 13)])
def test_averages_of_levels_are_exact(shape, dtype):
    rng = np.random.default_rng(1)
    top = np.iinfo(dtype).max
    levels = rng.integers(top - top // 8, top, shape, endpoint=True, dtype=dtype)  # sums near the largest of all
    predicted, valid = rng.random(shape) > 0.5, rng.random(shape) > 0.3
    windows = np.lib.stride_tricks.sliding_window_view
    sides, axes = tuple(min(10, side) for side in shape), tuple(range(len(shape), 2 * len(shape)))
    for keep in (np.ones(shape, bool), valid):
        sums = windows(np.where(keep, levels, 0).astype(np.int64), sides).sum(axis=axes)
        pixels = windows(keep.astype(np.int64), sides).sum(axis=axes)
        enough = pixels > np.prod(sides) / 2
        expected = [levels[keep].mean(), levels[keep & predicted].mean(), (sums[enough] / pixels[enough]).min()]
        averages = case_confidences(levels, predicted, None if keep.all() else keep)[[0, 1, 3]]
        assert averages.tolist() == (np.array(expected) / top).tolist()


def test_an_average_over_nothing_is_that_over_all():
    confidence, _, _ = draw((12, 12))
    nothing = np.zeros((12, 12), bool)
    checkered = np.indices((12, 12)).sum(axis=0) % 2
    assert case_confidences(confidence, nothing)[1] == confidence.mean()
    assert boundary(checkered).all()
    assert case_confidences(confidence, checkered)[2] == pytest.approx(confidence.mean(), abs=1e-15)
    assert np.isnan(case_confidences(confidence, nothing, nothing)).all()


def test_rows_of_classes_leave_out_what_is_absent():
    matrix = np.array([[5, 2, 0], [1, 4, 0], [0, 0, 0]])
    rows = confusion_rows(matrix, np.zeros(3))
    assert dice_of(rows)[:2] == pytest.approx([10 / 13, 8 / 11], abs=1e-15)
    assert np.isnan(dice_of(rows)[2])
    full, empty = np.ones((3, 3, 3), bool), np.zeros((3, 3, 3), bool)
    one_sided = class_row(full, empty, None, 1.0)
    assert dice_of(one_sided) == 0.0
    assert np.isnan(one_sided[3])
    assert one_sided[4] == 0.0
    assert np.isnan(class_row(full, full)[3:5]).all()
    assert class_row(full, full, None, 1.0)[3:5].tolist() == [0.0, 1.0]


def test_tied_cases_are_in_random_order():
    confidence, risk = np.array([0.9, 0.7, 0.7, 0.7, 0.2]), np.array([0.1, 0.5, 0.0, 0.3, 0.9])
    curves = []
    for middle in permutations([1, 2, 3]):
        order = [0, *middle, 4]
        curves.append(np.cumsum(risk[order]) / np.arange(1, 6))
    shuffled = [3, 1, 4, 0, 2]
    assert risk_coverage(confidence[shuffled], risk[shuffled]) == pytest.approx(np.mean(curves, axis=0), abs=1e-15)
    assert case_aurc(confidence, risk) == pytest.approx(np.mean(curves), abs=1e-15)
    assert case_aurc(-risk, risk) <= case_aurc(confidence, risk) <= case_aurc(risk, risk)


@pytest.mark.parametrize("cases", [2, 3, 12])
@pytest.mark.parametrize("confidences", [1, 3, 10**6])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_interval_of_the_area_is_that_of_leaving_out_every_case(cases, confidences, grouped):
    rng = np.random.default_rng(cases)
    confidence, risk = rng.integers(confidences, size=cases).astype(float), 0.4 + 0.1 * rng.random(cases)
    groups = np.array([f"patient {i // 2 if grouped else i}" for i in range(cases)])
    area = case_aurc(confidence, risk)
    left = [case_aurc(np.delete(confidence, i), np.delete(risk, i)) for i in range(cases)]
    moved = (cases - 1) * (np.mean(left) - np.array(left))
    units = [moved[groups == group].sum() / cases for group in np.unique(groups)]
    n = len(units)
    ends = aurc_interval(confidence, risk, groups if grouped else None)
    if n < 2:
        assert np.isnan(ends).all()
        return
    half = stats.t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1) * np.sum(np.square(units)))
    assert ends == pytest.approx((max(area - half, 0), min(area + half, 1)), abs=1e-12)


def test_the_interval_covers_the_area_of_all_cases():
    def draw_cases(rng, number):
        quality, noise = rng.normal(size=(2, number))
        return quality + 0.7 * noise, 1 / (1 + np.exp(1.5 + 1.2 * quality))

    truth = case_aurc(*draw_cases(np.random.default_rng(0), 200_000))
    ends = [aurc_interval(*draw_cases(np.random.default_rng(seed), 30)) for seed in range(1, 401)]
    covered = np.mean([low <= truth <= high for low, high in ends])
    assert 0.92 <= covered <= 0.98
