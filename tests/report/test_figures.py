"""Figures of records: the two joint densities, ours over images and the authors' over bins."""

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from densecal.evaluation.record import Curve
from densecal.report.figures import bin_density, joint_bins_figure, joint_figure
from tests.records import small_record

TICKS = np.linspace(0.3, 1.0, 41)


def test_the_density_over_bins_is_the_kernel_estimate_of_every_bin_repeated_by_its_share_of_the_pixels():
    counts, images = np.array([0, 60, 20, 120]), 200
    confidence, accuracy = np.array([0, 0.55, 0.75, 0.97]), np.array([0, 0.45, 0.95, 0.7])
    points = np.repeat([confidence, accuracy], counts, axis=1)  # one point per image, as the authors' program has it
    kernel = gaussian_kde(points, bw_method="scott")
    expected = np.array([[kernel([x, y])[0] for x in TICKS] for y in TICKS])
    curve = Curve(tuple(counts * 1000), tuple(confidence), tuple(accuracy))
    density = bin_density(curve, images, TICKS)
    assert np.abs(density - expected).max() < 0.01 * expected.max()


def test_a_single_bin_is_a_spot():
    density = bin_density(Curve((0, 7), (0.0, 0.9), (0.0, 0.6)), 3, TICKS)
    y, x = np.unravel_index(density.argmax(), density.shape)
    assert (TICKS[x], TICKS[y]) == (pytest.approx(0.9, abs=0.02), pytest.approx(0.6, abs=0.02))


def test_each_joint_density_says_what_it_counts():
    records = [small_record(name="a"), small_record(name="b")]
    assert joint_figure(records).get_suptitle() == "Density of images"
    assert "pixels over the means of their bins" in joint_bins_figure(records).get_suptitle()
