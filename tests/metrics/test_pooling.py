"""Isotonic regression of counts: against scipy's, in rounds and block by block."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from densecal.metrics.pooling import rising_shares

COUNTS = st.lists(
    st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=200
)


def check(hits, count):
    ours = rising_shares(hits, count)
    theirs = isotonic_regression(hits / count, weights=count.astype(np.float64)).x
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    assert (np.diff(ours) >= 0).all()


@settings(max_examples=100, deadline=None)
@given(COUNTS)
def test_counts_are_pooled_as_by_scipy(counts):
    check(*(np.array(column) for column in zip(*counts, strict=True)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rise", [0.0, 0.5, 1.0, -1.0])
def test_many_values_are_pooled_as_by_scipy(seed, rise):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 4, 20_000)
    check(rng.binomial(count, np.clip(0.5 + rise * np.linspace(-0.5, 0.5, count.size), 0, 1)), count)


def test_one_violation_at_a_time_takes_one_pass():
    """Shares that rise but for the last, which pulls down one block after the other."""
    count = np.ones(50_000, np.int64) * 1000
    hits = np.append(np.arange(49_999) // 50, 0)
    check(hits, count)
