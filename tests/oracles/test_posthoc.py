"""Our calibrators against scikit-learn's and netcal's: equal where conventions agree, and the numbers of the docs."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from densecal.posthoc import create
from tests.posthoc.common import crooked, histogram_of, probabilities

with warnings.catch_warnings(action="ignore"):
    import netcal.binning
    import netcal.scaling

GRID = np.linspace(-9, 9, 2001)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def netcal_probabilities(calibrator, p, y, at):
    """Fit with netcal, which uses scipy's default tolerance and warns about its own dependencies."""
    with warnings.catch_warnings(action="ignore"):
        calibrator.fit(p, y)
        return calibrator.transform(at)


@pytest.fixture(params=["vector", *range(3)])
def pixels(request, vectors):
    """Return the 32 pixels of the specification, or thousands."""
    if request.param == "vector":
        inputs = vectors["temperature"]["inputs"]
        return np.array(inputs["z"]), np.array(inputs["y"]).astype(int)
    return crooked(4000, request.param)


def test_isotonic_equals_sklearn_and_netcal(pixels):
    z, y = pixels
    ours = probabilities(create("isotonic").fit(histogram_of(z, y)), GRID)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(sigmoid(z), y).predict(sigmoid(GRID))
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert ours == pytest.approx(
        netcal_probabilities(netcal.binning.IsotonicRegression(), sigmoid(z), y, sigmoid(GRID)), abs=1e-12
    )


def test_isotonic_merges_ties_like_sklearn():
    z, y = crooked(4000)
    z = np.round(2 * z) / 2
    ours = probabilities(create("isotonic").fit(histogram_of(z, y)), GRID)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(sigmoid(z), y).predict(sigmoid(GRID))
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_platt_equals_sklearn(pixels):
    z, y = pixels
    fitted = create("platt").fit(histogram_of(z, y))
    theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(z[:, None], y)
    assert float(fitted.a) == pytest.approx(theirs.coef_[0, 0], abs=1e-6)
    assert float(fitted.b) == pytest.approx(theirs.intercept_[0], abs=1e-6)


def identity_classifier():
    """Return a classifier whose decision function is its input."""
    classifier = LogisticRegression().fit([[-1.0], [1.0]], [0, 1])
    classifier.coef_, classifier.intercept_ = np.ones((1, 1)), np.zeros(1)
    return FrozenEstimator(classifier)


def test_platt_with_targets_equals_sklearns_sigmoid_calibration(pixels):
    z, y = pixels
    fitted = create("platt", targets=True).fit(histogram_of(z, y))
    theirs = CalibratedClassifierCV(identity_classifier(), method="sigmoid").fit(z[:, None], y)
    assert probabilities(fitted, GRID) == pytest.approx(theirs.predict_proba(GRID[:, None])[:, 1], abs=1e-5)


def test_temperature_equals_netcal_up_to_its_tolerance(pixels):
    z, y = pixels
    ours = probabilities(create("temperature").fit(histogram_of(z, y)), GRID)
    theirs = netcal_probabilities(netcal.scaling.TemperatureScaling(), sigmoid(z), y, sigmoid(GRID))
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_beta_equals_netcal_up_to_its_tolerance(pixels):
    z, y = pixels
    ours = probabilities(create("beta").fit(histogram_of(z, y)), GRID)
    theirs = netcal_probabilities(netcal.scaling.BetaCalibration(), sigmoid(z), y, sigmoid(GRID))
    assert ours == pytest.approx(theirs, abs=2e-4)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_histogram_equals_netcal_away_from_edges(pixels, bins):
    z, y = pixels
    ours = probabilities(create("histogram", bins=bins).fit(histogram_of(z, y)), GRID)
    theirs = netcal_probabilities(netcal.binning.HistogramBinning(bins=bins), sigmoid(z), y, sigmoid(GRID))
    off_edge = np.abs(sigmoid(GRID) * bins - np.round(sigmoid(GRID) * bins)) > 1e-9
    assert ours[off_edge] == pytest.approx(theirs[off_edge], abs=1e-12)


# ------------------------------------------------------------------ rows of docs/posthoc.md


def test_doc_row_edges():
    """A: netcal fits on [l, u) and looks up in (l, u]."""
    p, y = np.array([0.1, 0.2, 0.2, 0.3, 0.3, 0.3]), np.array([0, 1, 1, 0, 0, 1])
    z = np.log(p) - np.log1p(-p)
    theirs = netcal_probabilities(netcal.binning.HistogramBinning(bins=10), p, y, p)
    assert theirs[[0, 1, 3]] == pytest.approx([0.05, 0.0, 0.6], abs=1e-3)
    ours = probabilities(create("histogram").fit(histogram_of(z, y)), z)
    assert ours[[0, 1, 3]] == pytest.approx([0.0, 1.0, 1 / 3])


def test_doc_row_equal_mass():
    """B: netcal can fit equal-mass bins but cannot apply them."""
    z, y = crooked(4000)
    binning = netcal.binning.HistogramBinning(bins=4, equal_intervals=False)
    with pytest.raises(ValueError, match="not implemented"):
        netcal_probabilities(binning, sigmoid(z), y, sigmoid(GRID))
    ours = create("histogram", bins=4, mass=True).fit(histogram_of(z, y))
    assert np.bincount(np.searchsorted(ours.edges, z)).tolist() == [1000] * 4


def test_doc_row_beta(vectors):
    """C: the minimiser stops early."""
    inputs = vectors["temperature"]["inputs"]
    z, y = np.array(inputs["z"]), np.array(inputs["y"]).astype(int)
    theirs = netcal.scaling.BetaCalibration()
    netcal_probabilities(theirs, sigmoid(z), y, sigmoid(z))
    assert theirs._sites["weights"]["values"] == pytest.approx([2.02719, 0.0], abs=1e-5)
    ours = create("beta").fit(histogram_of(z, y))
    assert [float(ours.a), float(ours.b), float(ours.c)] == pytest.approx([2.0271741, 0.0, 1.4285048], abs=1e-7)


def test_doc_row_temperature(vectors):
    """D: netcal's temperature is 1/T."""
    inputs = vectors["temperature"]["inputs"]
    z, y = np.array(inputs["z"]), np.array(inputs["y"]).astype(int)
    theirs = netcal.scaling.TemperatureScaling()
    netcal_probabilities(theirs, sigmoid(z), y, sigmoid(z))
    assert float(theirs.temperature[0]) == pytest.approx(0.72720, abs=1e-5)
    assert float(create("temperature").fit(histogram_of(z, y)).temperature) == pytest.approx(1.3751460, abs=1e-7)


def test_doc_row_regularisation(vectors):
    """E: scikit-learn's logistic regression shrinks the slope by default."""
    inputs = vectors["temperature"]["inputs"]
    z, y = np.array(inputs["z"]), np.array(inputs["y"]).astype(int)
    default = LogisticRegression().fit(z[:, None], y)
    assert [default.coef_[0, 0], default.intercept_[0]] == pytest.approx([0.6865, -0.4544], abs=1e-4)
    ours = create("platt").fit(histogram_of(z, y))
    assert [float(ours.a), float(ours.b)] == pytest.approx([0.7305, -0.4639], abs=1e-4)
