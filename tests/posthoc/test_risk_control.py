"""Conformal risk control: the vector, brute force, and the guarantee itself."""

import dataclasses
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
    control = curve.control(case["params"]["alpha"])
    n, alpha = control.images, case["params"]["alpha"]
    assert control.lam == case["expected"]["lambda_hat"]
    assert control.threshold == pytest.approx(1 - control.lam)
    assert control.risk == pytest.approx(case["expected"]["risk_at_lambda_hat"])
    assert control.risk <= ((n + 1) * alpha - 1) / n
    assert ((n + 1) * alpha - 1) / n == pytest.approx(case["expected"]["required_Rhat"])
    assert math.isnan(control.fpr)
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
    """Apply the definition to one grid value after the other."""
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
    control = curve.control(alpha)
    assert (control.lam, control.risk, control.set_size, control.fpr) == pytest.approx(brute_force(pairs, alpha, steps))
    assert control.bound <= alpha + 1e-12


@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 65535)])
def test_levels_have_the_thresholds_of_the_same_floats(kind, top):
    levels = np.arange(top + 1, dtype=kind)
    for steps in (10, 255, 1000):
        assert np.array_equal(highest_threshold(levels, steps), highest_threshold(levels / top, steps))


def test_merging_equals_adding_the_images():
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


def sure_and_right(count, steps=1000):
    curve = RiskCurve(steps)
    for _ in range(count):
        curve.update(np.array([1.0, 0.0]), np.array([True, False]))
    return curve


@pytest.mark.parametrize(("alpha", "needed"), [(0.1, 9), (0.05, 19), (0.3, 3), (0.5, 1), (1 - 0.9, 9), (1 - 0.95, 19)])
def test_the_number_of_images_needed_is_enough_and_one_less_is_not(alpha, needed):
    """1 - 0.9 is slightly less than 0.1 in floats, but does not need another image."""
    control = sure_and_right(needed).control(alpha)
    assert (control.threshold, control.lam, control.risk, control.images) == (1.0, 0.0, 0.0, needed)
    assert control.bound == pytest.approx(1 / (needed + 1))
    with pytest.raises(InputError, match=f"{needed - 1} images for alpha .*; expected at least {needed} "):
        sure_and_right(needed - 1).control(alpha)


def test_every_alpha_for_which_the_images_suffice_has_a_threshold():
    alpha = 0.25 - 1e-12  # as far below 1/4 as rounding may take it
    assert alpha + 1e-12 == 1 / 4
    assert sure_and_right(3).control(alpha).threshold == 1.0


def test_thresholds_are_thousandths_by_default():
    curve = RiskCurve()
    for _ in range(9):
        curve.update(np.array([0.4567, 0.1]), np.array([True, False]))
    control = curve.control(0.1)
    assert (control.threshold, control.lam) == (0.456, 0.544)


@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 65535)])
def test_integer_maps_are_controlled_like_the_same_floats(kind, top):
    levels, floats = RiskCurve(steps=51), RiskCurve(steps=51)
    for p, mask in images(3, 20):
        values = np.rint(p * top).astype(kind)
        levels.update(values, mask)
        floats.update(values / top, mask)
    assert vars(levels.control(0.2)) == pytest.approx(vars(floats.control(0.2)))


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_is_a_rate(alpha):
    with pytest.raises(InputError, match="alpha"):
        RiskCurve().control(alpha)


def test_map_and_mask_must_match():
    with pytest.raises(ValueError, match="expected the same pixels"):
        RiskCurve().update(np.zeros((2, 3)), np.zeros((3, 2), dtype=bool))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_a_map_without_pixels_is_refused_and_changes_nothing(shape, kind):
    curve = RiskCurve()
    with pytest.raises(ValueError, match="expected the same pixels"):
        curve.update(np.zeros(shape, dtype=kind), np.zeros(shape, dtype=bool))
    assert curve.images == 0


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_map_of_one_pixel_counts_like_any_other(shape):
    curve, pairs = RiskCurve(steps=10), []
    for p, y in ((0.35, True), (0.8, False), (0.1, False), (1.0, True), (0.0, True)):
        pairs += [(np.full(shape, p), np.full(shape, y))] * 3
    for pair in pairs:
        curve.update(*pair)
    assert curve.images == 15
    for alpha in (0.1, 0.3, 0.6):
        control = curve.control(alpha)
        assert (control.lam, control.risk, control.set_size, control.fpr) == pytest.approx(
            brute_force(pairs, alpha, 10)
        )


def test_0_and_1_are_probabilities():
    curve = RiskCurve(steps=4)
    for _ in range(3):
        curve.update(np.array([1.0, 1.0, 0.0, 0.0]), np.array([True, True, False, False]))
    control = curve.control(0.25)
    assert (control.threshold, control.risk, control.set_size, control.fpr) == (1.0, 0.0, 0.5, 0.0)


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1, math.inf])
def test_values_that_are_not_probabilities_are_refused_and_change_nothing(wrong):
    curve = RiskCurve()
    with pytest.raises(ValueError, match="expected 0 to 1"):
        curve.update(np.array([[0.5, wrong]]), np.array([[True, False]]))
    assert curve.images == 0


# ------------------------------------------------------------------ groups and useless guarantees


def grouped_curve(units, steps=100):
    curve = RiskCurve(steps)
    for unit in units:
        part = RiskCurve(steps)
        for pair in unit:
            part.update(*pair)
        curve.add_group(part)
    return curve


def test_groups_of_one_image_are_images():
    pairs = list(images(0, 15))
    alone = RiskCurve(100)
    for pair in pairs:
        alone.update(*pair)
    control = grouped_curve([[pair] for pair in pairs]).control(0.2, grouped=True)
    assert control.groups == control.images == 15
    assert dataclasses.replace(control, groups=None) == alone.control(0.2)


def test_the_loss_of_a_group_is_the_mean_loss_of_its_images():
    rng = np.random.default_rng(0)
    units = [list(images(100 + i, int(rng.integers(1, 5)))) for i in range(14)]
    control = grouped_curve(units).control(0.2, grouped=True)

    def bound(threshold):
        losses = [np.mean([1 - (p >= threshold)[y].mean() if y.any() else 0.0 for p, y in unit]) for unit in units]
        return (np.sum(losses) + 1) / (len(units) + 1)

    assert (control.groups, control.images) == (14, sum(map(len, units)))
    assert control.bound == pytest.approx(bound(control.threshold))
    assert bound(control.threshold) <= 0.2 < bound(control.threshold + 0.01)
    with pytest.raises(InputError, match=r"14 groups for alpha 0\.05; expected at least 19"):
        grouped_curve(units).control(0.05, grouped=True)


def test_a_new_patient_is_missed_as_rarely_as_promised_and_images_alone_promise_too_much():
    """Patients differ, images of a patient hardly: the mean loss of new patients stays below alpha."""
    rng = np.random.default_rng(0)
    grouped, alone = [], []
    for _ in range(400):
        level = rng.beta(2, 2, 11)[:, None, None] * np.ones((1, 3, 1)) + 0.001 * rng.random((11, 3, 4))
        p = np.clip(level, 0, 1)
        truth = np.ones(4, bool)
        units = [[(image, truth) for image in patient] for patient in p]
        threshold = grouped_curve(units[:10], 1000).control(0.15, grouped=True).threshold
        grouped.append(np.mean(p[10] < threshold))
        curve = RiskCurve(1000)
        for unit in units[:10]:
            for pair in unit:
                curve.update(*pair)
        alone.append(np.mean(p[10] < curve.control(0.15).threshold))
    assert np.mean(grouped) <= 0.15
    assert np.mean(alone) > 0.16


def test_a_bound_met_only_by_calling_everything_foreground_is_trivial():
    p, y = np.array([0.0, 0.3, 0.6, 0.9]), np.array([True, True, False, True])
    curve = RiskCurve(100)
    for _ in range(9):
        curve.update(p, y)
    control = curve.control(0.3)
    assert (control.threshold, control.is_trivial) == (0.0, True)
    # the background is left out from p >= 0.61 on, where two of three foreground pixels are missed
    assert control.smallest_alpha == pytest.approx((9 * 2 / 3 + 1) / 10)
    assert not curve.control(control.smallest_alpha).is_trivial
    assert curve.control(control.smallest_alpha - 1e-4).is_trivial
    hopeless = RiskCurve(100)
    for _ in range(9):
        hopeless.update(np.array([0.0, 0.5]), np.array([True, False]))
    assert hopeless.control(0.9).is_trivial
    assert math.isnan(hopeless.control(0.9).smallest_alpha)


def test_without_background_nothing_is_trivial():
    curve = RiskCurve(100)
    for _ in range(9):
        curve.update(np.array([0.0, 0.5]), np.array([True, True]))
    assert not curve.control(0.2).is_trivial
