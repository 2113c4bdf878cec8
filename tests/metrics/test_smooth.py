"""smECE: the integral of its definition by brute force, its fixed point, and the numbers of the authors' package."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics.curves import Atoms
from densecal.metrics.smooth import MESH, smooth_curve, smooth_error


def atoms_of(f, y):
    return Atoms.from_counts(np.asarray(f, float), np.ones(len(f), np.int64), np.asarray(y, np.int64))


def make(seed, slope=0.6, count=4000, spread=2.0):
    """Draw foreground probabilities whose logits are too steep by 1 / slope."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.3, spread, count)
    return 1 / (1 + np.exp(-z)), (rng.random(count) < 1 / (1 + np.exp(-slope * z))).astype(int)


def integral(f, y, sigma, points=1001):
    """Return smECE_sigma as the paper defines it: the kernel is a sum over mirror images, and nothing is rounded."""
    t = np.linspace(0, 1, points)
    r = np.zeros(points)
    for shift in (-2, 0, 2):
        for sign in (1, -1):
            r += np.exp(-0.5 * ((t[:, None] - shift - sign * f) / sigma) ** 2) @ (f - y)
    r /= len(f) * sigma * np.sqrt(2 * np.pi)
    return np.trapezoid(np.abs(r), t)


@pytest.mark.parametrize(("slope", "spread"), [(0.6, 2.0), (1.0, 1.5), (1.8, 1.0)])
def test_the_error_is_the_integral_of_the_definition(slope, spread):
    """Within what the grid of 200 points, which gives both ends full weight, leaves."""
    f, y = make(1, slope, 1000, spread)
    error, sigma = smooth_error(atoms_of(f, y))
    assert error == pytest.approx(integral(f, y, sigma), rel=0.01)


def test_the_bandwidth_is_the_smallest_that_is_not_below_its_error():
    f, y = make(2, count=1000)
    error, sigma = smooth_error(atoms_of(f, y))
    assert integral(f, y, sigma) <= sigma
    assert integral(f, y, sigma - 2 / 1024) > sigma - 2 / 1024
    assert error <= sigma <= error + 2 / 1024


@pytest.mark.parametrize("case", range(5))
def test_the_numbers_are_those_of_relplot(case):
    """relplot 1.0.3 on the same pixels; tests/oracles/test_measures.py recomputes them with the package."""
    settings_, expected = RELPLOT[case]
    f, y = make(*settings_)
    if case == 4:
        f = np.round(f * 255) / 255
    error, sigma = smooth_error(atoms_of(f, y))
    assert error == pytest.approx(expected[0], abs=1e-7)
    assert sigma == expected[1]


RELPLOT = [
    ((0, 0.6, 4000, 2.0), (0.07699311512952216, 0.0771484375)),
    ((1, 1.0, 4000, 2.0), (0.019199220860791545, 0.01953125)),
    ((2, 0.9, 60000, 7.0), (0.009714320808492494, 0.009765625)),
    ((3, 3.0, 4000, 0.4), (0.11605440642594651, 0.1162109375)),
    ((4, -0.5, 4000, 5.0), (0.6044773950571173, 0.60546875)),
]
"""Arguments of ``make``, and smECE and bandwidth."""


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(-1, 3), st.floats(0.05, 8))
def test_the_order_and_grouping_of_pixels_change_nothing(seed, slope, spread):
    f, y = make(seed, slope, 300, spread)
    whole = smooth_error(atoms_of(f, y))
    order = np.random.default_rng(seed).permutation(len(f))
    assert smooth_error(atoms_of(f[order], y[order])) == whole
    assert smooth_error(atoms_of(np.tile(f, 3), np.tile(y, 3))) == pytest.approx(whole, rel=1e-12)
    assert 0 <= whole[0] <= 1


def test_a_calibrated_model_has_an_error_near_0_and_a_curve_on_the_diagonal():
    rng = np.random.default_rng(0)
    f = rng.random(400_000)
    y = rng.random(f.size) < f
    curve = smooth_curve(atoms_of(f, y))
    assert curve.error < 0.005
    inner = slice(10, MESH - 10)
    assert curve.accuracy[inner] == pytest.approx(np.linspace(0, 1, MESH)[inner], abs=0.04)
    assert curve.density[inner] == pytest.approx(1.0, abs=0.1)


def test_one_value_has_the_gap_between_it_and_its_outcomes():
    error, sigma = smooth_error(Atoms(np.array([0.7]), np.array([1000]), np.array([400])))
    assert error == pytest.approx(0.3, abs=1e-6)
    assert sigma == pytest.approx(0.3, abs=1 / 1024)


def test_the_curve_says_nothing_where_there_are_no_values():
    curve = smooth_curve(Atoms(np.array([0.9, 0.95]), np.array([10**6, 10**6]), np.array([900_000, 950_000])))
    assert np.isnan(curve.accuracy[:60]).all()
    assert curve.accuracy[[90, 95]] == pytest.approx([0.9, 0.95], abs=1e-3)


# ------------------------------------------------------------------ the formula where relplot does not follow it


@pytest.mark.parametrize("spread", [2.0, 7.0, 15.0])
@pytest.mark.parametrize("levels", [None, 255])
def test_the_exact_error_is_the_integral_however_many_pixels_are_at_0_and_1(spread, levels):
    f, y = make(3, 0.6, 3000, spread)
    f = np.round(f * levels) / levels if levels else f
    error, sigma = smooth_error(atoms_of(f, y), exact=True)
    assert error == pytest.approx(integral(f, y, sigma), rel=3e-4)
    below = sigma - 1 / 1024
    assert integral(f, y, below) > below * (1 - 3e-4)


def test_relplot_counts_pixels_at_0_and_1_by_half():
    """90 of 100 pixels are surely and rightly background; of the others, which are 0.7, 4 in 10 are foreground."""
    atoms = Atoms(np.array([0.0, 0.7]), np.array([90, 10]), np.array([0, 4]))
    assert smooth_error(atoms, exact=True)[0] == pytest.approx(0.03, abs=1e-4)
    assert smooth_error(atoms)[0] == pytest.approx(0.03 / 0.55, abs=2e-3)


def test_a_wide_kernel_is_reflected_at_both_ends():
    f, y = np.array([0.05, 0.9, 1.0]), np.array([1, 0, 0])
    error, sigma = smooth_error(atoms_of(f, y), exact=True)
    assert error == pytest.approx(integral(f, y, sigma), rel=2e-3)
