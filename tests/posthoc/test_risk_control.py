"""Conformal risk control: the vector, brute force, and the guarantee itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.errors import InputError
from densecal.posthoc.risk_control import RiskCurve, highest_threshold


def test_vector(vectors):
    case = vectors["crc_fnr"]
    curve = RiskCurve(steps=100)
    for p in case["inputs"]["foreground_probabilities_per_image"]:
        curve.update(np.array(p), np.ones(len(p), dtype=bool))
    found = curve.control(case["params"]["alpha"])
    n, alpha = found.images, case["params"]["alpha"]
    assert found.lam == case["expected"]["lambda_hat"]
    assert found.threshold == pytest.approx(1 - found.lam)
    assert found.risk == pytest.approx(case["expected"]["risk_at_lambda_hat"])
    assert found.risk <= ((n + 1) * alpha - 1) / n
    assert ((n + 1) * alpha - 1) / n == pytest.approx(case["expected"]["required_Rhat"])
    assert math.isnan(found.fpr)
    few = RiskCurve(steps=100)
    for p in case["inputs"]["foreground_probabilities_per_image"][: case["expected"]["min_n_for_alpha"]]:
        few.update(np.array(p), np.ones(len(p), dtype=bool))
    few.control(alpha)


def images(seed, count, size=12):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        p = rng.random((size, size)) ** rng.uniform(0.3, 3)
        yield p, rng.random((size, size)) < p * (rng.random() > 0.1)


def brute_force(pairs, alpha, steps):
    """The definition, one grid value after the other."""
    for j in range(steps + 1):
        threshold = (steps - j) / steps
        losses = [0.0 if not y.any() else 1 - (y & (p >= threshold)).sum() / y.sum() for p, y in pairs]
        if (np.sum(losses) + 1) / (len(pairs) + 1) <= alpha + 1e-12:
            size = np.mean([(p >= threshold).mean() for p, _ in pairs])
            fpr = np.mean([(p >= threshold)[~y].mean() for p, y in pairs if not y.all()])
            return j / steps, np.mean(losses), size, fpr
    raise AssertionError


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(10, 30), st.sampled_from([0.1, 0.2, 0.5]), st.sampled_from([7, 100, 1000]))
def test_brute_force_agrees(seed, count, alpha, steps):
    pairs = list(images(seed, count))
    curve = RiskCurve(steps)
    for pair in pairs:
        curve.update(*pair)
    found = curve.control(alpha)
    assert (found.lam, found.risk, found.set_size, found.fpr) == pytest.approx(brute_force(pairs, alpha, steps))
    assert found.bound <= alpha + 1e-12


@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 65535)])
def test_levels_and_their_floats_are_the_same(kind, top):
    levels = np.arange(top + 1, dtype=kind)
    for steps in (10, 255, 1000):
        assert np.array_equal(highest_threshold(levels, steps), highest_threshold(levels / top, steps))


def test_merging_is_adding_images():
    whole, left, right = RiskCurve(), RiskCurve(), RiskCurve()
    for i, pair in enumerate(images(0, 40)):
        whole.update(*pair)
        (left if i % 3 else right).update(*pair)
    left.merge(right)
    assert vars(left.control(0.1)) == pytest.approx(vars(whole.control(0.1)))
    with pytest.raises(ValueError, match="cannot merge"):
        whole.merge(RiskCurve(10))


def test_the_false_negative_rate_of_new_images_is_below_alpha():
    """Over 400 draws of 30 calibration images and one new image."""
    rng = np.random.default_rng(0)
    alpha, losses = 0.15, []
    for _ in range(400):
        pairs = list(images(rng.integers(10**9), 31, size=8))
        curve = RiskCurve(200)
        for pair in pairs[:-1]:
            curve.update(*pair)
        p, y = pairs[-1]
        threshold = curve.control(alpha).threshold
        losses.append(1 - (y & (p >= threshold)).sum() / y.sum() if y.any() else 0.0)
    mean, error = np.mean(losses), np.std(losses) / 20
    assert mean <= alpha + 2 * error
    assert mean >= alpha - 1 / 31 - 4 * error


def test_too_few_images_are_refused_with_the_number_needed():
    curve = RiskCurve()
    with pytest.raises(InputError, match=r"0 images for alpha 0\.1; expected at least 9"):
        curve.control(0.1)
    for p, y in images(0, 9):
        curve.update(p, y)
    curve.control(0.1)
    with pytest.raises(InputError, match=r"9 images for alpha 0\.05; expected at least 19"):
        curve.control(0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_is_a_rate(alpha):
    with pytest.raises(InputError, match="alpha"):
        RiskCurve().control(alpha)


def test_map_and_mask_must_match():
    with pytest.raises(ValueError, match="expected the same pixels"):
        RiskCurve().update(np.zeros((2, 3)), np.zeros((3, 2), dtype=bool))


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1, math.inf])
def test_what_is_no_probability_is_refused_and_changes_nothing(wrong):
    curve = RiskCurve()
    with pytest.raises(ValueError, match="expected 0 to 1"):
        curve.update(np.array([[0.5, wrong]]), np.array([[True, False]]))
    assert curve.images == 0
