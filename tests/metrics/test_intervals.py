"""Intervals by resampling images: their width, their ends, and what they are intervals of."""

import numpy as np
import pytest
import torch

from densecal.metrics import CalibrationMeter, calibration_errors, intervals, paired_intervals
from tests.metrics.test_calibration import make_maps

FIGURES = ("ece_ew", "oe_ew", "ue_ew", "brier", "nll", "accuracy", "mean_confidence", "ece_image_mean")


def rows_of(accuracies, pixels=40, p=0.8):
    """Return the rows of images with one confidence and the given shares of right pixels."""
    meter = CalibrationMeter(boundary=False)
    for accuracy in accuracies:
        y = (torch.arange(pixels) < round(accuracy * pixels)).long()
        meter.update(torch.full((pixels,), p, dtype=torch.float64), y)
    return meter.sketch.image_rows()


@pytest.mark.parametrize("kind", ["float", "uint8", "classes"])
def test_one_image_has_intervals_without_width_around_its_own_figures(kind):
    p, y = make_maps(1, 9, 8, 1)
    if kind == "uint8":
        p = (p * 255).round().to(torch.uint8)
    if kind == "classes":
        p, y = torch.cat([p / 3, 2 * p / 3, 1 - p], dim=1), 2 - y[:, 0]
    r = calibration_errors(p, y, num_classes=3 if kind == "classes" else 1)
    assert set(r.ci) == set(FIGURES)
    for name, (low, high) in r.ci.items():
        assert low == pytest.approx(high, abs=1e-12)
        assert low == pytest.approx(getattr(r, name), abs=1e-12), name
    assert r.ece_ew == pytest.approx(r.oe_ew + r.ue_ew)
    assert len({round(getattr(r, name), 6) for name in FIGURES}) == 7  # the error of one image is the error of all


def test_an_interval_ends_where_the_normal_distribution_puts_it():
    rng = np.random.default_rng(0)
    accuracies = rng.integers(10, 41, 200) / 40
    low, high = intervals(rows_of(accuracies))["accuracy"]
    mean, error = accuracies.mean(), accuracies.std() / np.sqrt(200)
    assert (low - mean) / error == pytest.approx(-1.96, abs=0.2)
    assert (high - mean) / error == pytest.approx(1.96, abs=0.2)


def test_every_image_can_be_drawn_and_none_is_always_drawn():
    low, high = intervals(rows_of([0.25, 1.0]))["accuracy"]
    assert (low, high) == (0.25, 1.0)


def test_images_count_by_their_pixels_except_in_the_mean_of_image_errors():
    meter = CalibrationMeter(boundary=False)
    meter.update(torch.full((30,), 0.8), torch.ones(30, dtype=torch.int64))
    meter.update(torch.full((10,), 0.8), torch.zeros(10, dtype=torch.int64))
    r = meter.compute()
    assert r.accuracy == 0.75
    assert r.ece_image_mean == pytest.approx((0.2 + 0.8) / 2)
    assert r.ci["ece_image_mean"] == pytest.approx((0.2, 0.8))
    assert r.ci["accuracy"] == (0.0, 1.0)


def test_intervals_are_the_same_at_every_call_and_in_every_order():
    rows = rows_of(np.linspace(0.4, 1.0, 25))
    assert intervals(rows) == intervals(rows[::-1])
    assert paired_intervals(rows, rows) == dict.fromkeys(FIGURES, (0.0, 0.0))


def test_a_difference_is_first_minus_second_on_the_same_images():
    accuracies = np.linspace(0.4, 0.7, 30)
    better, worse = rows_of(accuracies + 0.1), rows_of(accuracies)
    assert paired_intervals(better, worse)["accuracy"] == pytest.approx((0.1, 0.1))
    assert paired_intervals(worse, better)["accuracy"] == pytest.approx((-0.1, -0.1))
    order = np.random.default_rng(0).permutation(30)
    assert paired_intervals(better[order], worse[order]) == paired_intervals(better, worse)


def test_pairs_need_the_same_images_and_bins():
    rows = rows_of([0.5, 0.75])
    for other in (rows[:1], rows[:, :-1]):
        with pytest.raises(ValueError, match="the same images and bins"):
            paired_intervals(rows, other)
