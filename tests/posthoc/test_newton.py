"""Newton's method: minima that others find, and functions without one."""

from itertools import count

import numpy as np
import pytest
from scipy.optimize import minimize

from densecal.errors import InputError
from densecal.posthoc import create
from densecal.posthoc.logistic import mean_nll, overlap
from densecal.posthoc.newton import NoMinimumError, minimise

from .common import crooked, histogram_of


def quadratic(matrix, centre):
    """x -> (x - centre)' matrix (x - centre) / 2, with its derivatives."""
    matrix, centre = np.array(matrix, float), np.array(centre, float)

    def function(x):
        away = x - centre
        return float(away @ matrix @ away / 2), matrix @ away, matrix

    return function


def test_a_quadratic_is_minimal_at_its_centre():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5):
        root, centre = rng.normal(size=(size, size)), rng.normal(size=size)
        found = minimise(quadratic(root @ root.T + np.eye(size), centre), [1.0] * size)
        assert found == pytest.approx(centre, abs=1e-9)


def test_a_direction_without_curvature_is_left_alone():
    found = minimise(quadratic([[1.0, 1.0], [1.0, 1.0]], [2.0, 0.0]), [0.0, 0.0])
    assert found == pytest.approx([1.0, 1.0])


def test_a_logistic_loss_far_from_its_minimum_is_minimised():
    rng = np.random.default_rng(1)
    features = np.stack([rng.normal(size=500) * 3, np.ones(500)], axis=1)
    targets, pixels = rng.random(500), rng.integers(1, 9, 500).astype(float)
    function = mean_nll(features, targets, pixels)
    expected = minimize(lambda x: function(x)[0], [0.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    for start in ([0.0, 0.0], [20.0, -30.0], [-5.0, 5.0]):
        assert minimise(function, start) == pytest.approx(expected.x, abs=1e-6)


def test_the_derivatives_of_the_logistic_loss_are_those_of_finite_differences():
    rng = np.random.default_rng(2)
    features, targets, pixels = rng.normal(size=(40, 3)), rng.random(40), rng.integers(1, 5, 40).astype(float)
    function = mean_nll(features, targets, pixels)
    x, h = rng.normal(size=3), 1e-6
    z = features @ x
    nll = -(targets * np.log(1 / (1 + np.exp(-z))) + (1 - targets) * np.log(1 / (1 + np.exp(z))))
    value, gradient, hessian = function(x)
    assert value == pytest.approx(np.average(nll, weights=pixels))
    for i, step in enumerate(h * np.eye(3)):
        above, below = function(x + step), function(x - step)
        assert gradient[i] == pytest.approx((above[0] - below[0]) / (2 * h), abs=1e-7)
        assert hessian[i] == pytest.approx((above[1] - below[1]) / (2 * h), abs=1e-7)


def test_rounding_of_the_value_hides_no_minimum():
    numbers = count()

    def function(x):
        """Decreases by 1e-14 towards 3, and every evaluation adds as much noise."""
        value, gradient, hessian = quadratic([[2e-14]], [3.0])(x)
        return 1.0 + value + 2e-14 * next(numbers), gradient, hessian

    assert minimise(function, [1.0]) == pytest.approx([3.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (float("nan"), x * float("nan"), np.eye(1)),
        lambda x: (0.0, x + 1.0, np.eye(1) * float("inf")),
    ],
    ids=["no number", "infinite"],
)
def test_what_has_no_minimum_is_said(function):
    with pytest.raises(NoMinimumError):
        minimise(function, [0.0], evaluations=20)


def test_a_search_gives_up_after_so_many_evaluations():
    numbers = count()

    def function(x):
        next(numbers)
        return float(-x[0]), np.array([-1.0]), np.array([[1.0]])

    with pytest.raises(NoMinimumError):
        minimise(function, [0.0], evaluations=7)
    assert next(numbers) == 7


@pytest.mark.parametrize("name", ["platt", "beta"])
def test_a_fit_that_reaches_no_minimum_is_bad_input(name, monkeypatch):
    def gives_up(*_):
        raise NoMinimumError

    monkeypatch.setattr("densecal.posthoc.platt.minimise", gives_up)
    monkeypatch.setattr("densecal.posthoc.beta._minimum_above_zero", gives_up)
    with pytest.raises(InputError, match=f"{name}: no minimum of the NLL was reached"):
        create(name).fit(histogram_of(*crooked(100)))


@pytest.mark.parametrize(
    ("background", "foreground", "overlapping"),
    [
        ([0.0, 2.0], [1.0, 3.0], True),
        ([1.0, 3.0], [0.0, 2.0], True),
        ([0.0, 1.0], [1.0, 2.0], False),
        ([1.0, 2.0], [0.0, 1.0], False),
        ([0.0, 1.0], [2.0, 3.0], False),
        ([2.0, 3.0], [0.0, 1.0], False),
        ([0.0, 3.0], [1.0], True),
        ([1.0], [0.0, 3.0], True),
        ([1.0], [1.0], False),
    ],
)
def test_classes_overlap_where_no_threshold_parts_them(background, foreground, overlapping):
    z = np.array([*background, *foreground])
    y = np.array([0.0] * len(background) + [1.0] * len(foreground))
    assert overlap(z, y) == overlapping
