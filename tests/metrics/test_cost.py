"""Expected cost at given prices: by brute force, and what calibration has to do with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics.cost import ExpectedCost, Prices, expected_cost
from densecal.metrics.curves import Atoms
from densecal.metrics.decomposition import rising_map
from tests.metrics.test_smooth import atoms_of, make


def brute_force(p, y, prices, threshold):
    act = p > threshold
    return (prices.miss * (~act & (y == 1)).sum() + prices.false_alarm * (act & (y == 0)).sum()) / len(p)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 50), st.floats(0.1, 50), st.floats(-1, 2), st.sampled_from([None, 7, 255]))
def test_brute_force_agrees(seed, miss, false_alarm, slope, levels):
    p, y = make(seed, slope, 200)
    p = np.round(p * levels) / levels if levels else p
    prices = Prices(miss, false_alarm)
    cost = expected_cost(atoms_of(p, y), prices)
    assert cost.cost == pytest.approx(brute_force(p, y, prices, prices.threshold))
    assert cost.cost_at_half == pytest.approx(brute_force(p, y, prices, 0.5))
    assert cost.best_cost == pytest.approx(brute_force(p, y, prices, cost.best_threshold))
    every = [brute_force(p, y, prices, t) for t in np.concatenate([[0.0], p])]
    assert cost.best_cost == pytest.approx(min(every))
    assert cost.never == pytest.approx(miss * y.mean())
    assert cost.always == pytest.approx(false_alarm * (1 - y.mean()))
    assert 0 <= cost.best_threshold <= 1


@pytest.mark.parametrize("prices", [Prices(10, 1), Prices(1, 1), Prices(1, 4)])
def test_the_best_threshold_is_the_price_ratio_on_the_best_rising_map(prices):
    p, y = make(1)
    atoms = atoms_of(p, y)
    recalibrated = Atoms.from_counts(rising_map(atoms), atoms.count, atoms.hits)
    assert expected_cost(recalibrated, prices).cost == pytest.approx(expected_cost(atoms, prices).best_cost, rel=1e-12)


def test_a_calibrated_model_is_best_acted_on_at_the_price_ratio():
    rng = np.random.default_rng(0)
    p = rng.random(400_000)
    cost = expected_cost(atoms_of(p, rng.random(p.size) < p), Prices(miss=9, false_alarm=1))
    assert cost.threshold == 0.1
    assert cost.best_threshold == pytest.approx(0.1, abs=0.01)
    assert cost.cost - cost.best_cost < 1e-3


def test_an_over_confident_model_costs_more_than_it_need():
    p, y = make(0, slope=0.3, count=50_000)
    cost = expected_cost(atoms_of(p, y), Prices(miss=9, false_alarm=1))
    assert cost.best_cost < 0.9 * cost.cost
    assert cost.best_threshold < 0.05


def test_cost_is_in_units_of_price():
    p, y = make(2)
    one, ten = (expected_cost(atoms_of(p, y), Prices(3 * unit, unit)) for unit in (1, 10))
    assert ten.cost == pytest.approx(10 * one.cost)
    assert (ten.threshold, ten.best_threshold) == (one.threshold, one.best_threshold)


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_above_0(price):
    with pytest.raises(ValueError, match="expected a number above 0"):
        Prices(1.0, price)


def test_the_best_threshold_of_counts_is_that_of_the_lowest_cost():
    # thresholds 0, 1/4, ..., 1 of 10 foreground and 30 background pixels
    cost = ExpectedCost.of_counts([10, 10, 9, 8, 0], [30, 12, 5, 1, 0], (10, 30), Prices(2, 1))
    assert (cost.best_threshold, cost.best_cost) == (0.75, (2 * 2 + 1) / 40)
    assert cost.cost_at_half == (2 * 1 + 5) / 40
