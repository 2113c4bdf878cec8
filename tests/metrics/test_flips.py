"""Flip rate: changed decisions of maps of every kind, with an interval over images."""

import math

import numpy as np
import pytest

from densecal.metrics.flips import count_flips, flip_rate


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_levels_and_floats_decide_at_one_half(kind):
    top = np.iinfo(kind).max
    before = np.array([[0, top // 2, top // 2 + 1, top]], kind)
    assert count_flips(before, before / top, 2) == (4, 0)
    assert count_flips(before, np.array([[0.6, 0.5, 0.5, 1.0]]), 2) == (4, 2)


def test_classes_flip_where_the_winner_changes():
    rng = np.random.default_rng(0)
    before, after = rng.random((2, 3, 5, 7))
    assert count_flips(before, after, 2) == (35, int((before.argmax(0) != after.argmax(0)).sum()))
    assert count_flips(before, before**2, 2)[1] == 0


def test_the_interval_resamples_images():
    rng = np.random.default_rng(1)
    counts = np.stack([rng.integers(50, 150, 200), np.zeros(200, int)], axis=1)
    counts[:, 1] = rng.binomial(counts[:, 0], rng.beta(1, 9, 200))
    rate, (low, high) = flip_rate(counts)
    assert rate == counts[:, 1].sum() / counts[:, 0].sum()
    assert low < 0.1 < high
    assert high - low < 0.06
    assert all(math.isnan(end) for end in flip_rate(counts[:1])[1])
