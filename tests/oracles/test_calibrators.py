"""Our calibrators against those of fiducio, and our guarantees against those of MAPIE, on the same pixels."""

import numpy as np
import pytest
from scipy.special import log_softmax

from densecal.posthoc import create
from densecal.posthoc.high_probability import hoeffding_bentkus
from densecal.posthoc.pixel_sample import PixelSample
from densecal.posthoc.prediction_sets import STEPS, SetCurve
from densecal.posthoc.risk_control import RiskCurve

pytestmark = pytest.mark.slow

REASON = "pip install 'densecal[oracles]'"
PIXELS = 20_000
LAM = MU = 1e-3
BOTH = {
    "temperature": ("TemperatureScaling", {}, {}),
    "ensemble-temperature": ("EnsembleTemperatureScaling", {}, {}),
    "vector": ("VectorScaling", {}, {}),
    "matrix": ("TranslationInvariantMatrixScaling", {}, {}),
    "dirichlet": ("DirichletCalibration", {"lam": LAM, "mu": MU}, {"lambda_reg": LAM, "mu_reg": MU}),
    "class-matrix": ("ClassConditionalMatrixScaling", {"strength": 0.0}, {}),
    "argmax-preserving": ("ArgmaxPreservingMatrixScaling", {"strength": 0.0}, {}),
    "order-preserving": ("OrderPreservingMatrixScaling", {"strength": 0.0}, {}),
}
"""What fiducio calls those that both have, our settings and theirs, which make the problems the same."""


def pixels(classes, seed=0):
    """Return log-probabilities (N, K) of a model that mixes classes up, and labels (N,).

    fiducio's vector scaling depends on a constant that is added to all logits, and ours does not, so there is none.
    """
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(PIXELS, classes))
    mixed = 0.6 * z + 0.3 * np.tanh(z) @ rng.normal(size=(classes, classes)) + 0.5 * rng.normal(size=classes)
    labels = (mixed + rng.gumbel(size=z.shape)).argmax(1)
    return log_softmax(z, axis=1).astype(np.float32), labels


def nll(p, labels):
    """Return the mean NLL of probabilities (N, K)."""
    return -np.log(np.asarray(p, np.float64)[np.arange(len(labels)), labels]).mean()


def dirichlet_penalty(weight, bias):
    off = ~np.eye(len(bias), dtype=bool)
    return LAM * np.square(weight[off]).mean() + MU * np.square(bias).mean()


def fit_ours(name, settings, z, labels):
    """Return our calibrator of K classes, fitted on pixels (N, K), and what it makes of them."""
    sample = PixelSample(z.shape[1], len(z))
    sample.update(z.T[None, :, :, None], labels[None, :, None], 255)
    calibrator = create(name, num_classes=z.shape[1], **settings).fit(sample)
    return calibrator, calibrator(z.T[None, :, :, None].astype(np.float64))[0, :, :, 0].T


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", BOTH)
def test_nll_is_not_higher_than_fiducios(name, classes):
    fiducio = pytest.importorskip("fiducio", reason=REASON)
    import torch

    z, labels = pixels(classes)
    theirs_name, ours_settings, theirs_settings = BOTH[name]
    calibrator, p = fit_ours(name, ours_settings, z, labels)
    theirs = getattr(fiducio, theirs_name)(device="cpu", **theirs_settings)
    theirs.fit(torch.from_numpy(z), torch.from_numpy(labels))
    q = theirs.transform(torch.from_numpy(z)).numpy()
    ours_loss, theirs_loss = nll(p, labels), nll(q, labels)
    if name == "dirichlet":
        ours_loss += dirichlet_penalty(np.reshape(calibrator.weight, (classes, classes)), np.ravel(calibrator.bias))
        theirs_loss += dirichlet_penalty(theirs._weight.numpy(), theirs._bias.numpy())
    before = nll(torch.from_numpy(z).softmax(1), labels)
    assert ours_loss < before
    assert ours_loss <= theirs_loss * (1 + 1e-6), f"{ours_loss:.9f} against {theirs_loss:.9f}"
    assert ours_loss > theirs_loss - 0.5 * (before - theirs_loss) - 1e-3, "not the same problem"


# ------------------------------------------------------------------ guarantees


def images(count=60, size=40, seed=0):
    """Return foreground maps of images that differ in how hard they are, and their masks."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(count, size, size))
    hard = rng.uniform(0.3, 1.5, size=(count, 1, 1))
    return 1 / (1 + np.exp(-z)), rng.random(z.shape) < 1 / (1 + np.exp(-hard * z))


@pytest.mark.parametrize("alpha", [0.093, 0.157, 0.21])
def test_the_threshold_of_conformal_risk_control_is_mapies(alpha):
    control = pytest.importorskip("mapie.risk_control", reason=REASON)
    p, y = images()
    grid = np.arange(1001) / 1000
    theirs = control.SemanticSegmentationController(
        lambda maps: maps[:, None], risk="recall", method="crc", target_level=1 - alpha, predict_params=grid
    )
    theirs.calibrate(p, y.reshape(len(y), -1, 1).astype(int))
    curve = RiskCurve()
    for one, mask in zip(p, y, strict=True):
        curve.update(one, mask)
    ours = curve.control(alpha)
    assert ours.threshold == pytest.approx(float(theirs.best_predict_param[0]), abs=1e-9)
    assert curve.risks("misses") == pytest.approx(theirs.r_hat, abs=1e-12)


@pytest.mark.parametrize("n", [20, 200])
def test_p_values_are_mapies(n):
    methods = pytest.importorskip("mapie.risk_control.methods", reason=REASON)
    risk = np.linspace(0, 0.99, 37)
    for alpha in (0.05, 0.2):
        theirs = methods.compute_hoeffding_bentkus_p_value(risk, n, alpha)[:, 0]
        assert hoeffding_bentkus(risk, n, alpha) == pytest.approx(np.minimum(theirs, 1), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.07, 0.15])
def test_sets_of_images_with_one_pixel_are_mapies(alpha):
    """Conformal risk control of `thr` is then split conformal prediction with the score 1 - p (LAC)."""
    classification = pytest.importorskip("mapie.classification", reason=REASON)
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Softmax(ClassifierMixin, BaseEstimator):
        def __init__(self):
            self.classes_ = np.arange(4)

        def fit(self, X, y):
            return self

        def predict_proba(self, X):
            return np.exp(X) / np.exp(X).sum(1, keepdims=True)

        def predict(self, X):
            return X.argmax(1)

        def __sklearn_is_fitted__(self):
            return True

    z, labels = pixels(4)
    model = Softmax()
    theirs = classification.SplitConformalClassifier(
        model, confidence_level=1 - alpha, conformity_score="lac", prefit=True
    )
    theirs.conformalize(z[:500], labels[:500])
    curve = SetCurve(4)
    for one, label in zip(model.predict_proba(z[:500]), labels[:500], strict=True):
        curve.update(one[:, None], label[None])
    ours = curve.control(alpha)
    p = model.predict_proba(z[500:5000])
    sets = theirs.predict_set(z[500:5000])[1][:, :, 0]
    # scores are rounded up to a grid of ours, so a set may hold more, by classes within a step of the threshold
    agree = sets == ours.sets(p.T).T
    near = np.abs(1 - p - ours.threshold) <= 1.5 / STEPS
    assert np.all(agree | near)
    assert 1 < sets.sum(1).mean() < 4
    assert ours.sets(p.T).T[sets].all()
