"""The meter's smooth errors, decomposition and thresholded error: the pure functions on the pixels themselves."""

import math

import numpy as np
import pytest

from densecal.metrics import CalibrationMeter, calibration_errors, sketch
from densecal.metrics.class_tables import thresholded_adaptive_error
from densecal.metrics.decomposition import decompose
from densecal.metrics.smooth import smooth_error
from tests.metrics.test_decomposition import make_classes
from tests.metrics.test_smooth import atoms_of, make

FIGURES = (
    "smece", "smece_exact", "smece_foreground", "smece_foreground_exact", "tace",
    "brier_calibration", "brier_refinement", "nll_calibration", "nll_refinement",
)  # fmt: skip


def figures_of(top, classes, foreground, brier, nll, softmax):
    """Return what the pure functions make of all pixels."""
    smooth = {"smece": smooth_error(top)[0], "smece_exact": smooth_error(top, exact=True)[0]}
    of_foreground = (
        (math.nan, math.nan)
        if foreground is None
        else (smooth_error(foreground)[0], smooth_error(foreground, exact=True)[0])
    )
    shared = classes if softmax or len(classes) > 2 else classes[1:]
    return {
        **smooth,
        "smece_foreground": of_foreground[0],
        "smece_foreground_exact": of_foreground[1],
        "tace": thresholded_adaptive_error(classes, 10),
        **decompose(brier, nll, shared, softmax),
    }


def close(result, expected, tolerance=1e-12):
    actual = {name: getattr(result, name) for name in FIGURES}
    assert actual == pytest.approx(expected, abs=tolerance, nan_ok=True)


def test_foreground_maps():
    p, y = make(0, count=3000, spread=6.0)
    result = calibration_errors(p, y)
    top = atoms_of(np.maximum(p, 1 - p), (p > 0.5) == y)
    classes = [atoms_of(1 - p, 1 - y), atoms_of(p, y)]
    close(result, figures_of(top, classes, classes[1], result.brier, result.nll, False))
    assert result.smece > 1.05 * result.smece_exact


def test_softmax_maps():
    p, y = make_classes(1, classes=4)
    result = calibration_errors(p, y, num_classes=4)
    top = atoms_of(p.max(axis=1), p.argmax(axis=1) == y)
    classes = [atoms_of(p[:, k], y == k) for k in range(4)]
    close(result, figures_of(top, classes, None, result.brier, result.nll, True))
    assert result.brier_calibration + result.brier_refinement == pytest.approx(result.brier, rel=1e-12)
    assert result.nll_calibration > 0.01


def test_multilabel_maps_are_pooled_as_foreground_maps():
    pairs = [make(seed, slope, count=1000) for seed, slope in ((2, 0.5), (3, 1.0), (4, 2.0))]
    p, y = (np.stack(column)[None] for column in zip(*pairs, strict=True))
    result = calibration_errors(p[..., None], y[..., None], num_classes=3, multilabel=True)
    classes = [atoms_of(*pair) for pair in pairs]
    top = atoms_of(np.maximum(p, 1 - p).ravel(), ((p > 0.5) == y).ravel())
    everything = atoms_of(p.ravel(), y.ravel())
    close(result, figures_of(top, classes, everything, result.brier, result.nll, False))
    each = [calibration_errors(*pair).nll_calibration for pair in pairs]
    assert result.nll_calibration == pytest.approx(np.mean(each), rel=1e-9)


@pytest.mark.parametrize("classes", [1, 4])
def test_fine_bins_change_them_little(classes, monkeypatch):
    """Isotonic regression has fewer values to fit in fine bins, so that its part differs most, with few pixels."""
    p, y = make(5, count=60_000, spread=6.0) if classes == 1 else make_classes(6, 60_000, classes)
    exact = calibration_errors(p, y, num_classes=classes)
    monkeypatch.setattr(sketch, "EXACT_PIXELS", 1000)
    fine = calibration_errors(p, y, num_classes=classes)
    assert fine.sketch.is_binned
    for name in FIGURES:
        tolerance = 5e-4 if "_calibration" in name or "_refinement" in name else 1e-4
        assert getattr(fine, name) == pytest.approx(getattr(exact, name), abs=tolerance, nan_ok=True), name


def test_merged_parts_give_the_same_bits():
    p, y = make(7, count=4000, spread=6.0)
    p, y = p.reshape(10, 20, 20), y.reshape(10, 20, 20)
    whole, left, right = CalibrationMeter(), CalibrationMeter(), CalibrationMeter()
    whole.update(p, y)
    right.update(p[4:], y[4:])
    left.update(p[:4], y[:4])
    right.merge(left)
    close(right.compute(), {name: getattr(whole.compute(), name) for name in FIGURES})
