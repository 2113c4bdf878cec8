"""Consistency bands: a calibrated model lies in them as often as they say, and a miscalibrated one does not."""

import numpy as np
import pytest
from scipy.stats import binom

from densecal.metrics import calibration_errors
from densecal.metrics.consistency import consistency
from densecal.metrics.curves import ReliabilityCurve

CONFIDENCE = np.array([0.1, 0.2, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.99])


def images(rng, count, shared=0.3, gap=0.0):
    """Return rows and diagram of images whose pixels are wrong together, of a model with the given gap."""
    pixels = rng.lognormal(3, 0.8, (count, 10)).astype(int)
    effect = np.clip(rng.normal(0, 1, (count, 1)) + rng.normal(0, 0.5, (count, 10)), -3, 3)
    accuracy = np.clip(CONFIDENCE - gap + effect * shared * np.minimum(CONFIDENCE, 1 - CONFIDENCE), 0, 1)
    correct = rng.binomial(pixels, accuracy)
    confidence = pixels * CONFIDENCE
    sums = [a.sum(axis=1) for a in (pixels, correct, confidence, 0 * confidence, 0 * confidence)]
    rows = np.column_stack([*sums, confidence - correct]).astype(float)
    return rows, ReliabilityCurve.from_sums(pixels.sum(axis=0), confidence.sum(axis=0), correct.sum(axis=0))


def inside(rows, curve):
    band = consistency(rows, curve)
    return (curve.accuracy >= band.low - 1e-12) & (curve.accuracy <= band.high + 1e-12), band.p_value <= 0.05


def test_a_calibrated_model_is_in_its_band_in_95_per_cent_of_cases():
    rng = np.random.default_rng(0)
    within, rejected = zip(*(inside(*images(rng, 30)) for _ in range(150)), strict=True)
    assert np.mean(within) == pytest.approx(0.95, abs=0.02)
    assert sum(rejected) <= binom.ppf(0.999, 150, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 60, 300])
def test_the_band_and_the_test_hold_their_level(count):
    rng = np.random.default_rng(count)
    within, rejected = zip(*(inside(*images(rng, count)) for _ in range(1000)), strict=True)
    print(f"{count} images: in the band {np.mean(within):.3f}, rejected {np.mean(rejected):.3f}")
    assert 0.93 <= np.mean(within) <= 0.97
    assert np.mean(rejected) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_pixels_that_are_wrong_together_widen_the_band():
    """A band that took every pixel for itself would be as narrow for both."""
    rng = np.random.default_rng(1)
    alone, together = (consistency(*images(rng, 200, shared)) for shared in (0.0, 0.5))
    assert np.median((together.high - together.low) / (alone.high - alone.low)) > 1.8
    assert together.ece > 1.5 * alone.ece


def test_a_miscalibrated_model_is_outside_and_rejected():
    rows, curve = images(np.random.default_rng(2), 40, gap=0.15)
    band = consistency(rows, curve)
    assert (curve.accuracy < band.low)[1:].all()
    assert band.p_value == pytest.approx(1 / 1001)
    assert curve.ece > band.ece_high > band.ece


def test_the_order_of_images_changes_nothing_and_groups_are_units():
    rows, curve = images(np.random.default_rng(3), 40)
    whole = consistency(rows, curve)
    shuffled = consistency(rows[np.random.default_rng(0).permutation(40)], curve)
    assert np.array_equal(whole.low, shuffled.low)
    assert whole.p_value == shuffled.p_value
    alone = consistency(rows, curve, [f"{i}" for i in range(40)])
    assert np.array_equal(whole.high, alone.high)
    # Every image four times over is no more evidence than once.
    four = consistency(np.tile(rows, (4, 1)), ReliabilityCurve(4 * curve.count, curve.confidence, curve.accuracy),
                       [f"{i}" for i in range(40)] * 4)  # fmt: skip
    assert four.low == pytest.approx(whole.low, abs=1e-12)
    assert consistency(np.tile(rows, (4, 1)), curve).ece < 0.7 * whole.ece


def test_one_image_has_no_band():
    r = calibration_errors(np.array([[0.9, 0.2]]), np.array([[1, 0]]))
    band = consistency(r.rows, r.reliability)
    assert np.isnan(band.low).all()
    assert np.isnan(band.p_value)
