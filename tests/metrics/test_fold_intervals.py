"""Intervals from folds: their tables have the figures of the pixels, and they allow for what a fit makes of noise."""

import numpy as np
import pytest
from scipy.special import expit

from densecal.evaluation.folds import FOLDS, ClassCounter, FoldSums
from densecal.metrics import CalibrationMeter
from densecal.metrics.bootstrap import figures, with_image_ece
from densecal.metrics.fold_intervals import _smooth_rows, _thresholded_rows, _View, fold_intervals
from densecal.metrics.segmentation import count_levels

FOREGROUND = {
    "smece", "smece_exact", "smece_foreground", "smece_foreground_exact", "tace",
    "brier_calibration", "brier_refinement", "nll_calibration", "nll_refinement",
}  # fmt: skip


def foreground(slope, images=60, seed=0, levels=65535):
    """Return the figures of maps whose logits are too large by a factor, and their counts by fold."""
    rng, meter, folds = np.random.default_rng(seed), CalibrationMeter(boundary=False), FoldSums()
    for i in range(images):
        z = rng.normal(-1, 2.5, (30, 30)) + rng.normal()
        y = rng.random(z.shape) < expit(z + 0.5 * rng.normal())
        p = np.rint(expit(slope * z) * levels).astype(np.uint8 if levels == 255 else np.uint16)
        meter.update(p, y.astype(np.uint8))
        folds.add_map(f"image {i}", count_levels(p, y)[0])
    return meter.compute().scalars(), folds.table()


def classes(temperature, images=40, K=4):
    """Return the figures of softmax maps, and their counts by fold."""
    rng, meter, folds = np.random.default_rng(1), CalibrationMeter(num_classes=K, boundary=False), FoldSums(K + 1)
    for i in range(images):
        z = rng.normal(0, 2, (K, 30, 30))
        y = (z / temperature + rng.gumbel(0, 1, z.shape)).argmax(axis=0)
        p = np.exp(z) / np.exp(z).sum(axis=0)
        meter.update(p[None], y[None])
        counter = ClassCounter(K)
        counter.add(p, p.argmax(axis=0), y, 255)
        folds.add_image(f"image {i}", counter.counts)
    return meter.compute().scalars(), folds.table()


@pytest.mark.parametrize("levels", [255, 65535])
@pytest.mark.parametrize("slope", [1.1, 2.0])
def test_the_tables_that_are_resampled_add_up_to_the_figures(levels, slope):
    scalars, counts = foreground(slope, levels=levels)
    view = _View.of(counts[counts.any(axis=(1, 2, 3))][:, 0])
    tables = {
        "smece": _smooth_rows(view.top(), scalars["smece"], halved=True),
        "smece_exact": _smooth_rows(view.top(), scalars["smece_exact"]),
        "smece_foreground": _smooth_rows(view, scalars["smece_foreground"], halved=True),
        "smece_foreground_exact": _smooth_rows(view, scalars["smece_foreground_exact"]),
        "tace": _thresholded_rows([view.mirror(), view], 10),
    }
    for name, rows in tables.items():
        value = figures(with_image_ece(rows).sum(axis=0))["ece_ew"]
        assert value == pytest.approx(scalars[name], abs=1e-3, rel=0.03)


def test_the_table_of_classes_adds_up_to_their_figures():
    scalars, counts = classes(2.0)
    *views, top = (_View.of(counts[counts.any(axis=(1, 2, 3))][:, k]) for k in range(5))
    for name, rows in {
        "tace": _thresholded_rows(views, 10),
        "smece": _smooth_rows(top, scalars["smece"], True),
    }.items():
        value = figures(with_image_ece(rows).sum(axis=0))["ece_ew"]
        assert value == pytest.approx(scalars[name], abs=1e-3, rel=0.03)


@pytest.mark.parametrize("make", [foreground, classes])
def test_intervals_hold_the_figures_and_shrink_with_images(make):
    few, many = (make(2.0, images=n) for n in (30, 270))
    ends, narrow = fold_intervals(few[1], few[0], 10), fold_intervals(many[1], many[0], 10)
    names = FOREGROUND if make is foreground else {name for name in FOREGROUND if "foreground" not in name}
    assert ends.keys() == narrow.keys() == names
    for name in names:
        assert 0 <= ends[name][0] <= few[0][name] <= ends[name][1]
        shrinkage = (ends[name][1] - ends[name][0]) / (narrow[name][1] - narrow[name][0])
        assert 1.5 < shrinkage < 6  # 3, but for the noise of both


def test_what_a_fit_makes_of_noise_is_not_taken_for_miscalibration():
    """Each fold is judged under the map of the others: the calibration of a calibrated model may be 0."""
    scalars, counts = foreground(1.0, images=20, seed=1)
    ends = fold_intervals(counts, scalars, 10)
    assert scalars["nll_calibration"] > 0.001
    assert ends["nll_calibration"][0] == ends["brier_calibration"][0] == 0
    over = foreground(2.0, images=40)
    assert fold_intervals(over[1], over[0], 10)["nll_calibration"][0] > 0.05


def test_one_fold_says_nothing():
    scalars, counts = foreground(1.0, images=1)
    assert counts.shape[0] == FOLDS
    assert fold_intervals(counts, scalars, 10) == {}


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_figure_that_is_not_defined_has_no_interval():
    """None of 150 equally probable classes is given more than 1 %, so there is no TACE."""
    rng, meter, folds = np.random.default_rng(0), CalibrationMeter(num_classes=150, boundary=False), FoldSums(151)
    p = np.full((150, 2, 3), 1 / 150)
    for i in range(12):
        y = rng.integers(0, 150, (2, 3))
        meter.update(p[None], y[None])
        counter = ClassCounter(150)
        counter.add(p, p.argmax(axis=0), y, 255)
        folds.add_image(str(i), counter.counts)
    scalars = meter.compute().scalars()
    assert np.isnan(scalars["tace"])
    ends = fold_intervals(folds.table(), scalars, 10)
    assert "tace" not in ends
    assert "smece" in ends


def test_a_value_lies_in_the_bin_of_its_middle_pixel():
    """Of 20 pixels in two bins, the middle of the second value is the ninth, and its third quarter beyond the tenth."""
    count = np.array([[3, 12, 5]])
    view = _View(np.array([0.2, 0.5, 0.8]), count, np.array([[1, 2, 5]]), count * [0.2, 0.5, 0.8])
    gaps = view.gaps[0]
    rows = _thresholded_rows([view], 2)
    np.testing.assert_allclose(rows[0, -2:], [gaps[0] + gaps[1], gaps[2]])
