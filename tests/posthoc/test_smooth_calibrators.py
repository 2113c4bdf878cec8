"""Spline calibration, Venn-Abers and prior shift, against other ways to compute them."""

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.special import expit

from densecal.errors import InputError
from densecal.posthoc import LogitHistogram, create, load, save, venn_abers
from densecal.posthoc.mixture import mixture_weights
from densecal.posthoc.pixel_sample import PixelSample

from .common import crooked, histogram_of, probabilities


def nll(p, y):
    return -np.log(np.where(y == 1, p, 1 - p)).mean()


# ------------------------------------------------------------------ Venn-Abers


@pytest.mark.parametrize("decimals", [12, 1])
def test_venn_abers_is_two_isotonic_regressions_per_value(decimals):
    """scikit-learn, fitted with the value once as background and once as foreground; with and without ties."""
    from sklearn.isotonic import IsotonicRegression

    z, y = crooked(300)
    z = z.round(decimals)
    fitted = create("venn-abers").fit(histogram_of(z, y))
    values = np.r_[z[:25], np.random.default_rng(1).normal(size=25) * 4, -90.0, 90.0]
    p0, p1 = fitted.interval(values)
    for value, low, high in zip(values, p0, p1, strict=True):
        both = [IsotonicRegression().fit(np.r_[z, value], np.r_[y, label]).predict([value])[0] for label in (0, 1)]
        assert (low, high) == pytest.approx(both, abs=2e-8)
    np.testing.assert_allclose(probabilities(fitted, values), p1 / (1 - p0 + p1))


def test_venn_abers_is_never_sure_and_close_to_isotonic_regression():
    z, y = crooked(20_000)
    histogram = histogram_of(z, y)
    p, isotonic = (probabilities(create(name).fit(histogram), z) for name in ("venn-abers", "isotonic"))
    assert 0 < p.min() <= p.max() < 1
    assert np.abs(p - isotonic).max() < 0.2
    assert np.abs(p - isotonic).mean() < 0.01


def test_many_logits_are_binned_first(monkeypatch):
    z, y = crooked(3000)
    exact = probabilities(create("venn-abers").fit(histogram_of(z, y)), z)
    monkeypatch.setattr(venn_abers, "_MOST", 100)
    binned = create("venn-abers").fit(histogram_of(z, y))
    assert np.abs(probabilities(binned, z) - exact).mean() < 0.01


def test_nan_stays_nan():
    fitted = create("venn-abers").fit(histogram_of(*crooked(100)))
    assert np.isnan(probabilities(fitted, [np.nan])).all()


# ------------------------------------------------------------------ spline


def test_the_spline_is_that_of_the_paper():
    """Every pixel on its own, a least-squares spline through its points, evaluated between them."""
    z, y = crooked(4000)
    order = np.argsort(z)
    p, label = expit(z[order]), y[order]
    t = np.arange(1, len(z) + 1) / len(z)
    h = np.cumsum(label - p) / len(z)
    basis = CubicSpline(np.linspace(0, 1, 6), np.eye(6), bc_type="natural")
    values = np.linalg.lstsq(basis(t), h, rcond=None)[0]
    expected = p + basis(t, 1) @ values
    fitted = create("spline").fit(histogram_of(z, y))
    ours = probabilities(fitted, z[order])
    inside = (expected > 0.01) & (expected < 0.99)
    assert np.abs(ours - expected)[inside].max() < 2e-3
    assert nll(ours, label) < nll(p, label) - 0.02


def test_levels_with_many_pixels_are_straight_pieces():
    """8-bit maps: the same as many pixels of equal logit in a random order, on average."""
    counts = np.zeros((2, 256), np.int64)
    counts[0, [0, 40, 200, 255]], counts[1, [0, 40, 200, 255]] = [900, 300, 60, 10], [20, 80, 90, 400]
    histogram = LogitHistogram()
    histogram.add_levels(counts)
    fitted = create("spline", knots=4).fit(histogram)
    z, n, k = histogram.by_logit()
    rng, values = np.random.default_rng(0), []
    basis = CubicSpline(np.linspace(0, 1, 4), np.eye(4), bc_type="natural")
    for _ in range(200):
        label = np.concatenate([rng.permutation(np.arange(n) < k) for n, k in zip(n.astype(int), k, strict=True)])
        p = np.repeat(expit(z), n.astype(int))
        h = np.cumsum(label - p) / n.sum()
        values.append(np.linalg.lstsq(basis(np.arange(1, len(p) + 1) / len(p)), h, rcond=None)[0])
    middle = (np.cumsum(n) - n / 2) / n.sum()
    expected = (expit(z) + basis(middle, 1) @ np.mean(values, axis=0)).clip(fitted.least, 1 - fitted.least)
    np.testing.assert_allclose(probabilities(fitted, z), expected, atol=5e-3)


def test_a_spline_stays_inside_its_limits():
    z, y = crooked(500)
    p = probabilities(create("spline").fit(histogram_of(z, y)), np.linspace(-500, 500, 999))
    assert p.min() >= 1 / 502 - 1e-12
    assert p.max() <= 501 / 502 + 1e-12


@pytest.mark.parametrize("name", ["spline", "venn-abers", "prior-shift"])
def test_files_give_the_same(name, tmp_path):
    z, y = crooked(800)
    fitted = create(name).fit(histogram_of(z, y))
    save(fitted, tmp_path / "cal.json")
    np.testing.assert_array_equal(probabilities(load(tmp_path / "cal.json"), z), probabilities(fitted, z))


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("spline", {"z": [1.0, 0.0]}, "do not rise"),
        ("spline", {"gap": [0.0]}, "1 gaps"),
        ("spline", {"least": 0.7}, "from 0 to 0.5"),
        ("venn-abers", {"p0": [0.0, 0.5, 1.0]}, "one more than z"),
        ("venn-abers", {"p0": [0.5, 0.0]}, "p0 that fall"),
        ("venn-abers", {"p1": [0.0, 2.0]}, "leave"),
        ("venn-abers", {"p0": [0.5, 1.0], "p1": [0.2, 1.0]}, "p0 above p1"),
        ("prior-shift", {"target": [0.5, 0.6]}, "sum to 1"),
    ],
)
def test_senseless_files_are_refused(name, change, problem):
    calibrator = create(name)
    with pytest.raises(InputError, match=problem):
        type(calibrator).from_json(calibrator.to_json() | change)


def test_one_value_is_refused():
    with pytest.raises(InputError, match="one value at all pixels"):
        create("spline").fit(histogram_of(np.ones(4), np.array([0, 1, 1, 1])))
    for knots in (2, 101):
        with pytest.raises(InputError, match="3 to 100"):
            create("spline", knots=knots)
    assert [create("spline", knots=knots).knots for knots in (3, 100)] == [3, 100]


# ------------------------------------------------------------------ prior shift


def shifted(n, prior, seed):
    """Return logits that are calibrated where half of the pixels are foreground, of data where a share `prior` is."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < prior
    return 4.0 * (rng.normal(size=n) * 0.5 + np.where(y, 0.5, -0.5)), y.astype(int)


@pytest.mark.parametrize("prior", [0.05, 0.3, 0.9])
def test_the_frequency_of_the_target_is_found(prior):
    source, target = shifted(40_000, 0.5, 0), shifted(40_000, prior, 1)
    calibrator = create("prior-shift").fit(histogram_of(*source))
    unlabelled = histogram_of(target[0], np.zeros_like(target[1]))
    calibrator.adapt(unlabelled)
    assert calibrator.target[1] == pytest.approx(prior, abs=0.01)
    p = probabilities(calibrator, target[0])
    best = expit(target[0] + np.log(prior / (1 - prior)))
    np.testing.assert_allclose(p, best, atol=0.02)
    assert p.mean() == pytest.approx(calibrator.target[1], abs=1e-6)  # the fixed point of EM
    assert nll(p, target[1]) < nll(expit(target[0]), target[1])


def test_frequencies_of_classes_are_the_fixed_point_of_em():
    rng = np.random.default_rng(0)
    centres, prior = np.eye(4) * 2.0, np.array([0.7, 0.2, 0.1, 0.0])

    def draw(shares, n):
        y = rng.choice(4, n, p=shares)
        x = centres[y] + rng.normal(size=(n, 4))
        return (x @ centres.T)[None].transpose(0, 2, 1)[..., None], y[None, :, None]

    source, target = draw([0.25] * 4, 8000), draw(prior, 8000)
    calibrator = create("prior-shift", num_classes=4).fit(lambda: [source])
    sample = PixelSample(4)
    sample.update(target[0], np.zeros_like(target[1]))
    p_before = calibrator(target[0])
    calibrator.adapt(sample)
    np.testing.assert_allclose(calibrator.target, prior, atol=0.03)
    pi, p = np.full(4, 0.25), np.moveaxis(p_before, 1, -1).reshape(-1, 4)
    for _ in range(1000):
        w = p * pi / calibrator.source
        pi = (w / w.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(calibrator.target, pi, atol=1e-3)


def test_mixture_weights_reach_the_edge():
    """Where one component explains nothing, its weight is exactly 0."""
    rng = np.random.default_rng(0)
    q = rng.uniform(0.5, 1.0, size=(500, 3))
    q[:, 2] = 0.1
    w = mixture_weights(q)
    assert w[2] == 0
    assert w.sum() == pytest.approx(1)
    gradient = (q / (q @ w)[:, None]).mean(0)
    np.testing.assert_allclose(gradient[w > 0], 1.0, atol=1e-6)
    assert (gradient <= 1 + 1e-6).all()


def test_a_target_without_pixels_is_refused():
    calibrator = create("prior-shift").fit(histogram_of(*crooked(50)))
    with pytest.raises(InputError, match="no pixels of the target"):
        calibrator.adapt(LogitHistogram())
