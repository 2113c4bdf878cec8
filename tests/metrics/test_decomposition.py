"""Calibration and refinement: against isotonic regression pixel by pixel, and what recalibration does to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from densecal.metrics.curves import Atoms
from densecal.metrics.decomposition import class_scores, decompose
from tests.metrics.test_smooth import atoms_of, make


def scores(p, y):
    """Return Brier score and NLL of foreground probabilities, pixel by pixel; 0 log 0 = 0."""
    with np.errstate(divide="ignore"):
        return np.mean((p - y) ** 2), -np.mean(np.where(y == 1, np.log(p), np.log1p(-p)))


def isotonic(p, y):
    return IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(p)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(-0.5, 2), st.sampled_from([None, 255, 10]))
def test_refinement_is_the_score_after_isotonic_regression(seed, slope, levels):
    p, y = make(seed, slope, 400)
    if levels:
        p = np.clip(np.round(p * levels) / levels, 1e-7, 1 - 1e-7)
    brier, nll = scores(p, y)
    refined_brier, refined_nll = scores(isotonic(p, y), y)
    parts = decompose(brier, nll, [atoms_of(p, y)])
    assert parts["brier_refinement"] == pytest.approx(refined_brier, abs=1e-12)
    assert parts["nll_refinement"] == pytest.approx(refined_nll, abs=1e-12)
    assert parts["brier_calibration"] + parts["brier_refinement"] == pytest.approx(brier, rel=1e-12)
    assert parts["nll_calibration"] + parts["nll_refinement"] == pytest.approx(nll, rel=1e-12)
    assert min(parts.values()) >= 0


def make_classes(seed, count=3000, classes=4, slope=0.6):
    """Draw probabilities (N, K) and labels; logits are too steep by 1 / slope."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (count, classes))
    p, true = (np.exp(s * z) / np.exp(s * z).sum(axis=1, keepdims=True) for s in (1.0, slope))
    return p, (rng.random((count, 1)) > np.cumsum(true, axis=1)).sum(axis=1)


def test_the_parts_of_the_classes_add_up_to_brier_and_nll():
    p, y = make_classes(0)
    classes = [class_scores(atoms_of(p[:, k], y == k)) for k in range(4)]
    one_hot = np.eye(4)[y]
    assert sum(c.brier for c in classes) == pytest.approx(((p - one_hot) ** 2).sum(), rel=1e-12)
    assert sum(c.nll for c in classes) == pytest.approx(-np.log(p[np.arange(len(y)), y]).sum(), rel=1e-9)
    for k, parts in enumerate(classes):
        q = isotonic(p[:, k], (y == k).astype(float))
        assert parts.brier_refined == pytest.approx(((q - one_hot[:, k]) ** 2).sum(), rel=1e-10)
        assert parts.nll_refined == pytest.approx(-np.log(q[y == k]).sum(), rel=1e-10)


def test_two_classes_are_a_foreground_and_its_complement():
    p, y = make(3)
    brier, nll = scores(p, y)
    one = decompose(brier, nll, [atoms_of(p, y)])
    two = decompose(2 * brier, nll, [atoms_of(1 - p, 1 - y), atoms_of(p, y)])
    for name in one:
        factor = 2 if name.startswith("brier") else 1
        assert two[name] == pytest.approx(factor * one[name], abs=1e-9), name


def test_a_rising_map_changes_calibration_and_not_refinement():
    p, y = make(4)
    before, after = (decompose(*scores(q, y), [atoms_of(q, y)]) for q in (p, p**2))
    assert before["brier_refinement"] == pytest.approx(after["brier_refinement"], rel=1e-12)
    assert before["nll_refinement"] == pytest.approx(after["nll_refinement"], rel=1e-12)
    assert after["nll_calibration"] > before["nll_calibration"] + 0.01


def test_the_best_rising_map_has_nothing_left_to_calibrate():
    p, y = make(5)
    q = isotonic(p, y)
    parts = decompose(*scores(q, y), [atoms_of(q, y)])
    assert parts["brier_calibration"] == pytest.approx(0, abs=1e-12)
    assert parts["nll_calibration"] == pytest.approx(0, abs=1e-12)


def test_probabilities_of_0_and_1_that_are_right_cost_nothing():
    parts = decompose(0.0, 0.0, [Atoms(np.array([0.0, 1.0]), np.array([5, 5]), np.array([0, 5]))])
    assert set(parts.values()) == {0.0}


def test_the_calibration_part_of_the_nll_is_that_of_the_temperature_and_more():
    """A temperature is a rising map, so the best of them cannot remove more."""
    p, y = make(6)
    z = np.log(p / (1 - p))
    nll = scores(p, y)[1]
    cooler = min(scores(1 / (1 + np.exp(-z * s)), y)[1] for s in np.linspace(0.2, 1.5, 200))
    parts = decompose(*scores(p, y), [atoms_of(p, y)])
    assert 0.005 < nll - cooler <= parts["nll_calibration"]
    assert parts["nll_calibration"] - (nll - cooler) < 0.01  # with 4,000 pixels isotonic regression fits little noise
