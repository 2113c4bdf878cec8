"""Figures of single classes, and the thresholded adaptive error, against the definitions pixel by pixel."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics import CalibrationMeter
from densecal.metrics.binned import class_atoms
from densecal.metrics.class_tables import (
    class_figures,
    thresholded_adaptive_error,
    thresholded_error,
)
from tests.metrics import reference
from tests.metrics.test_decomposition import make_classes
from tests.metrics.test_smooth import atoms_of, make


def brute_force(p, y, bins, threshold):
    """Return the mean gap over equal-mass bins of the probabilities above a threshold."""
    p, exact = reference.tie_averaged(p[p > threshold], y[p > threshold])
    share = np.array([float(v) for v in exact])
    return np.mean([abs(p[g].mean() - share[g].mean()) for g in reference.mass_groups(len(p), bins)])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([3, 10]), st.sampled_from([0.01, 0.3]), st.sampled_from([None, 50]))
def test_the_thresholded_error_is_that_of_the_larger_probabilities(seed, bins, threshold, levels):
    p, y = make(seed, 0.5, 150, 4.0)
    p = np.round(p * levels) / levels if levels else p
    assert thresholded_error(atoms_of(p, y), bins, threshold) == pytest.approx(brute_force(p, y, bins, threshold))


def test_it_is_the_mean_over_classes_that_are_ever_likely():
    p, y = make_classes(0)
    p = np.column_stack([p, np.full(len(p), 0.001)])  # never above 1 %
    atoms = [atoms_of(p[:, k], y == k) for k in range(5)]
    expected = np.mean([brute_force(p[:, k], y == k, 10, 0.01) for k in range(4)])
    assert thresholded_adaptive_error(atoms, 10) == pytest.approx(expected)
    assert math.isnan(thresholded_error(atoms[4], 10))


def test_many_sure_pixels_of_other_classes_hide_an_error_from_the_error_without_a_threshold():
    p = np.concatenate([np.full(10_000, 1e-4), np.full(100, 0.9)])
    atoms = atoms_of(p, np.concatenate([np.zeros(10_000), np.ones(50), np.zeros(50)]))
    figures = class_figures(atoms, 10)
    assert figures.ace < 0.005
    assert figures.tace == pytest.approx(0.4)


def test_the_figures_of_a_class():
    p, y = make_classes(2)
    hit = (y == 1).astype(float)
    figures = class_figures(atoms_of(p[:, 1], hit), 10)
    assert figures.share == pytest.approx(hit.mean())
    assert figures.mean_probability == pytest.approx(p[:, 1].mean())
    assert figures.brier == pytest.approx(((p[:, 1] - hit) ** 2).mean())
    assert figures.nll == pytest.approx((-hit * np.log(p[:, 1]) + p[:, 1] - hit).mean())
    assert 0 < figures.brier_calibration < figures.brier
    assert 0 < figures.nll_calibration < figures.nll


def test_a_binary_map_has_two_classes():
    p, y = make(3)
    meter = CalibrationMeter()
    meter.update(p, y)
    background, foreground = class_atoms(meter.sketch)
    assert np.array_equal(foreground.value, np.unique(p))
    assert np.array_equal(background.value, np.unique(1 - p))
    assert background.hits.sum() == (y == 0).sum()
