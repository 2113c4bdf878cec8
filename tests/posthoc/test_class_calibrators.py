"""Calibrators of K classes that are fitted on a sample of pixels, and those of one logit by chosen class."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from densecal.errors import InputError
from densecal.posthoc import Batch, create, load, save
from densecal.posthoc.experts import MOST_CLASSES
from densecal.posthoc.softmax_regression import Problem, solve

from .common import class_batches, crooked, histogram_of, honest

SAMPLED = [
    "argmax-preserving",
    "class-matrix",
    "class-temperature",
    "dirichlet",
    "ensemble-temperature",
    "matrix",
    "order-preserving",
    "prior-shift",
]
EXPERTS = ["argmax-preserving", "class-matrix", "order-preserving"]


def nll(calibrator, batches):
    total = count = 0
    for z, y, _ in batches:
        z, y = np.asarray(z), np.asarray(y)
        p = z_softmax(z) if calibrator is None else calibrator(z)
        own = np.take_along_axis(p, np.where(y == 255, 0, y)[:, None], 1)[:, 0][y != 255]
        total, count = total - np.log(own).sum(), count + own.size
    return total / count


def z_softmax(z):
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def skewed_batches(classes=4, seed=0, **given):
    """Return logits that are wrong in a way that depends on the class that they choose."""
    scale = np.linspace(0.6, 2.5, classes)
    out = []
    for z, y, _ in class_batches(classes, seed=seed, temperature=1.0, **given):
        z = np.asarray(z)
        z = z * scale[z.argmax(1)][:, None] + 0.2 * np.arange(classes)[:, None, None]
        out.append(Batch(z, np.asarray(y)))
    return out


@pytest.mark.parametrize("name", SAMPLED)
def test_a_fit_lowers_the_nll_and_survives_its_file(name, tmp_path):
    batches = skewed_batches(size=40)
    calibrator = create(name, num_classes=4).fit(lambda: batches)
    if name != "prior-shift":  # which a fit alone does not change
        assert nll(calibrator, batches) < nll(None, batches) - 0.01
        assert nll(calibrator, skewed_batches(seed=9, size=40)) < nll(None, skewed_batches(seed=9, size=40)) - 0.01
    save(calibrator, tmp_path / "cal.json")
    z = batches[0].logits
    np.testing.assert_array_equal(load(tmp_path / "cal.json")(z), calibrator(z))
    assert json.loads((tmp_path / "cal.json").read_text())["classes"] == 4


@pytest.mark.parametrize("name", SAMPLED)
def test_unfitted_it_changes_nothing_and_a_constant_on_all_logits_never_matters(name):
    z = np.random.default_rng(0).normal(size=(2, 5, 7, 3)) * 3
    np.testing.assert_allclose(create(name, num_classes=5)(z), z_softmax(z), atol=1e-12)
    batches = skewed_batches(5)
    fitted = create(name, num_classes=5).fit(lambda: batches)
    np.testing.assert_allclose(fitted(z + 7.0), fitted(z), atol=1e-12)
    np.testing.assert_allclose(fitted(np.log(z_softmax(z))), fitted(z), atol=1e-12)
    moved = [Batch(batch.logits + 3.0, batch.masks) for batch in batches]
    np.testing.assert_allclose(create(name, num_classes=5).fit(lambda: moved)(z), fitted(z), atol=1e-4)


@pytest.mark.parametrize("name", SAMPLED)
def test_tensors_and_arrays_give_the_same(name):
    torch = pytest.importorskip("torch")
    fitted = create(name, num_classes=4).fit(lambda: skewed_batches())
    z = np.random.default_rng(1).normal(size=(2, 4, 9, 5)) * 3
    np.testing.assert_allclose(fitted(torch.from_numpy(z)).numpy(), fitted(z), atol=1e-12)
    np.testing.assert_allclose(fitted(z.astype(np.float32)), fitted(z), atol=2e-5)
    assert fitted(z.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("name", ["argmax-preserving", "order-preserving", "class-temperature", "ensemble-temperature"])
def test_the_chosen_class_is_kept(name):
    fitted = create(name, num_classes=4).fit(lambda: skewed_batches(size=40))
    z = np.random.default_rng(2).normal(size=(4, 4, 50, 50)) * 4
    p = fitted(z)
    np.testing.assert_array_equal(p.argmax(1), z.argmax(1))
    if name != "argmax-preserving":
        np.testing.assert_array_equal(np.argsort(p, 1), np.argsort(z, 1))


def test_order_is_kept_where_probabilities_are_equal_or_infinite():
    fitted = create("order-preserving", num_classes=3).fit(lambda: skewed_batches(3))
    z = np.array([[1.0, 1.0, 0.0], [5.0, 5.0, 5.0], [0.0, -np.inf, 2.0]]).T[None, :, :, None]
    p = fitted(z)
    assert np.isfinite(p).all()
    np.testing.assert_array_equal(p.argmax(1), z.argmax(1))
    assert p[0, 1, 2, 0] < 1e-6


@pytest.mark.parametrize("name", ["argmax-preserving", "class-matrix", "dirichlet", "matrix", "order-preserving"])
def test_impossible_classes_give_probabilities(name):
    """A logit of minus infinity is allowed; a weight of 0 times it would be NaN."""
    fitted = create(name, num_classes=3).fit(lambda: skewed_batches(3))
    z = np.array([0.0, -np.inf, 2.0]).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(fitted(z).sum(), 1.0)


def test_void_pixels_do_not_matter():
    batches = skewed_batches()
    spoiled = []
    for z, y, _ in batches:
        z, y = z.copy(), y.copy()
        y[:, 3] = 255
        z[:, :, 3] = np.nan
        spoiled.append(Batch(z, y))
    left = [Batch(np.delete(z, 3, axis=2), np.delete(y, 3, axis=1)) for z, y, _ in batches]
    for name in ("matrix", "class-temperature"):
        one, other = (create(name, num_classes=4).fit(lambda b=b: b) for b in (spoiled, left))
        z = batches[0].logits
        np.testing.assert_allclose(one(z), other(z), atol=1e-4)


# ------------------------------------------------------------------ against independent references


def flat(batches):
    z = np.concatenate([np.moveaxis(np.asarray(b.logits), 1, -1).reshape(-1, b.logits.shape[1]) for b in batches])
    return np.log(z_softmax(z)), np.concatenate([np.asarray(b.masks).ravel() for b in batches])


def test_dirichlet_is_the_minimum_of_its_loss():
    """scipy's BFGS on the penalised NLL, written out."""
    batches, K = skewed_batches(3), 3
    log_p, y = flat(batches)

    def loss(x):
        W, b = x[:9].reshape(3, 3), x[9:]
        q = z_softmax(log_p @ W.T + b)
        off = W[~np.eye(3, dtype=bool)]
        return -np.log(q[np.arange(len(y)), y]).mean() + 0.01 * (off**2).mean() + 0.02 * (b**2).mean()

    best = minimize(loss, np.r_[np.eye(3).ravel(), np.zeros(3)], method="BFGS", options={"gtol": 1e-8})
    ours = create("dirichlet", num_classes=K, lam=0.01, mu=0.02).fit(lambda: batches)
    assert loss(np.r_[ours.weight, ours.bias]) == pytest.approx(best.fun, abs=1e-7)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_the_minimum_of_their_loss(name):
    """scipy's L-BFGS-B over all experts together, on the NLL of the calibrator itself."""
    batches, K = skewed_batches(3, images=2), 3
    log_p, y = flat(batches)
    ours = create(name, num_classes=K, strength=0.05).fit(lambda: batches)
    other = create(name, num_classes=K)
    start = np.r_[other.weight, other.bias]
    free = np.concatenate([np.isin(np.arange(3), ours.active_rows(c)) for c in range(3)])
    free = np.r_[(free.reshape(3, 3, 1) & free.reshape(3, 1, 3)).ravel(), free]
    R = len(ours.active_rows(0))

    def loss(x):
        values = start.copy()
        values[free] = x
        other.set_table("weight", values[:27])
        other.set_table("bias", values[27:])
        p = other(log_p.T[None, :, None])[0, :, 0]
        away = values - start
        penalty = (away[:27] ** 2).sum() / (R * R) + (away[27:] ** 2).sum() / R
        return -np.log(p[y, np.arange(len(y))]).mean() + 0.05 * penalty / K

    least = np.r_[np.tile(1e-3 * np.eye(3).ravel(), 3), np.zeros(9)][free]
    bounds = [(None if name == "class-matrix" else low, None) for low in least]
    best = minimize(loss, start[free], method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-8})
    assert loss(np.r_[ours.weight, ours.bias][free]) == pytest.approx(best.fun, abs=1e-6)


def test_an_expert_that_is_never_chosen_changes_nothing():
    batches = [Batch(batch.logits - np.array([0, 0, 99.0])[:, None, None], batch.masks) for batch in skewed_batches(3)]
    fitted = create("class-matrix", num_classes=3).fit(lambda: batches)
    np.testing.assert_array_equal(fitted.weight.reshape(3, 3, 3)[2], np.eye(3))


def test_class_temperatures_recover_those_that_were_applied():
    scales = np.array([0.5, 1.0, 2.0, 3.0])
    batches = []
    for z, y, _ in class_batches(4, size=60, temperature=1.0):
        z = np.asarray(z)
        batches.append(Batch(z * scales[z.argmax(1)][:, None], np.asarray(y)))
    fitted = create("class-temperature", num_classes=4).fit(lambda: batches)
    np.testing.assert_allclose(fitted.temperatures, scales, rtol=0.1)


def test_one_logit_has_a_temperature_for_each_side():
    z, y = honest(200_000, scale=2.0)
    z, y = np.asarray(z, np.float64), np.asarray(y)
    fitted = create("class-temperature").fit(histogram_of(np.where(z > 0, 3 * z, 0.5 * z), y))
    np.testing.assert_allclose(fitted.temperatures, [0.5, 3.0], rtol=0.03)
    p = fitted(np.array([-4.0, 4.0]).reshape(1, 1, 1, 2)).ravel()
    np.testing.assert_allclose(p, 1 / (1 + np.exp([8.0, -4 / 3])), rtol=0.1)


def test_ensemble_weights_are_the_best_of_the_simplex():
    z, y = crooked(4000)
    fitted = create("ensemble-temperature").fit(histogram_of(z, y))
    T, q = float(fitted.temperature), 1 / (1 + np.exp(-z))
    parts = np.stack([1 / (1 + np.exp(-z / T)), q, np.full_like(z, 0.5)], 1)
    own = np.where(y[:, None] == 1, parts, 1 - parts)
    best = min(
        -np.log(own @ np.array([a, b, 1 - a - b])).mean()
        for a in np.linspace(0, 1, 101)
        for b in np.linspace(0, 1 - a, 101)
    )
    ours = -np.log(own @ fitted.weights).mean()
    assert ours <= best + 1e-12
    assert ours > best - 1e-4
    p = fitted(z.reshape(1, 1, 1, -1)).ravel()
    np.testing.assert_allclose(p, parts @ fitted.weights, atol=1e-12)
    np.testing.assert_array_equal(p > 0.5, z > 0)


def test_many_parameters_are_fitted_without_their_curvature():
    """Above 1300 parameters L-BFGS-B gives the same minimum."""
    rng = np.random.default_rng(0)
    f = np.c_[rng.normal(size=(3000, 3)), np.ones(3000)].astype(np.float32)
    y = rng.integers(0, 3, 3000)
    problem = Problem(f, y, np.eye(3), np.full((3, 4), 1e-3), np.eye(3, 4), 0.0)
    from densecal.posthoc import softmax_regression

    expected = solve(problem, np.eye(3, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax_regression, "_LARGEST_CURVATURE", 5)
        np.testing.assert_allclose(solve(problem, np.eye(3, 4)), expected, atol=1e-3)
    assert expected.min() == 0.0  # bounds that hold


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", ["matrix", "dirichlet", *EXPERTS, "ensemble-temperature"])
def test_perfect_logits_are_refused_and_nothing_changes(name):
    z = np.zeros((1, 3, 4, 4))
    y = np.arange(16).reshape(1, 4, 4) % 3
    np.put_along_axis(z, y[:, None], 5.0, 1)
    calibrator = create(name, num_classes=3)
    before = calibrator.to_json()
    with pytest.raises(InputError, match="right class at every pixel"):
        calibrator.fit(lambda: [Batch(z, y)])
    assert calibrator.to_json() == before


@pytest.mark.parametrize("name", ["matrix", "dirichlet", "prior-shift"])
def test_a_missing_class_is_named(name):
    batches = [Batch(batch.logits, np.minimum(batch.masks, 2)) for batch in skewed_batches(4)]
    with pytest.raises(InputError, match="no pixel of class 3"):
        create(name, num_classes=4).fit(lambda: batches)


@pytest.mark.parametrize("name", EXPERTS)
def test_files_of_experts_have_a_limit(name):
    assert create(name, num_classes=MOST_CLASSES).weight.size <= 1 << 20
    with pytest.raises(InputError, match="2 to 100"):
        create(name, num_classes=MOST_CLASSES + 1)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("matrix", {"weight": [1.0, 0.0]}, "2 weights"),
        ("class-matrix", {"bias": [0.0]}, "1 biases"),
        ("argmax-preserving", {"bias": [-1.0] * 9}, "negative"),
        ("order-preserving", {"weight": [-1.0] * 27}, "negative"),
        ("class-temperature", {"temperatures": [1.0, 0.0, 1.0]}, "expected 3 above 0"),
        ("ensemble-temperature", {"weights": [0.5, 0.2, 0.2]}, "sum 1"),
        ("ensemble-temperature", {"temperature": -1.0}, "above 0"),
        ("prior-shift", {"source": [0.0, 0.5, 0.5]}, "3 shares"),
    ],
)
def test_senseless_files_are_refused(name, change, problem):
    calibrator = create(name, num_classes=3)
    with pytest.raises(InputError, match=problem):
        type(calibrator).from_json(calibrator.to_json() | change)
