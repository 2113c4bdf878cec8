"""The calibrators of one logit: the specification's vectors, other minimisers, and properties of every fit."""

import copy
from bisect import bisect_left
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, minimize, minimize_scalar
from scipy.special import expit

from densecal.errors import InputError
from densecal.posthoc import Batch, create
from densecal.posthoc.scores import score_batches, score_histogram

from .common import crooked, histogram_of, honest, probabilities

BINARY = ("temperature", "platt", "isotonic", "histogram", "beta")
LABELLED = st.lists(
    st.tuples(st.integers(-800, 800).map(lambda i: i / 100), st.booleans()),
    min_size=4,
    max_size=40,
    unique_by=lambda pixel: pixel[0],
)


def pooled_pixels(vectors):
    inputs = vectors["temperature"]["inputs"]
    return np.array(inputs["z"]), np.array(inputs["y"])


def mean_nll(p, y):
    return -np.mean(np.where(y == 1, np.log(p), np.log1p(-p)))


# ------------------------------------------------------------------ vectors


def test_temperature_vector(vectors):
    z, y = pooled_pixels(vectors)
    expected = vectors["temperature"]["expected"]
    fitted = create("temperature").fit(histogram_of(z, y))
    assert float(fitted.temperature) == pytest.approx(expected["T"], rel=1e-12)
    assert mean_nll(probabilities(fitted, z), y) == pytest.approx(expected["nll_after"], rel=1e-12)
    before, after = score_histogram(histogram_of(z, y)), score_histogram(histogram_of(z, y), fitted)
    assert before.nll == pytest.approx(expected["nll_before"], rel=1e-12)
    assert after.nll == pytest.approx(expected["nll_after"], rel=1e-12)
    p = 1 / (1 + np.exp(-z))
    assert -np.mean((p - y) * z) == pytest.approx(expected["d_nll_dT_at_1"], rel=1e-12)


def test_platt_vector(vectors):
    z, y = pooled_pixels(vectors)
    expected = vectors["platt"]["expected"]
    fitted = create("platt").fit(histogram_of(z, y))
    assert [float(fitted.a), float(fitted.b)] == pytest.approx(expected["a_b_mle"], abs=1e-7)
    p = probabilities(fitted, z)
    assert mean_nll(p, y) == pytest.approx(expected["nll_mle"], rel=1e-12)
    assert abs(np.mean((p - y) * z)) < 1e-14
    assert abs(np.mean(p - y)) < 1e-14
    softened = create("platt", targets=True).fit(histogram_of(z, y))
    assert [float(softened.a), float(softened.b)] == pytest.approx(expected["a_b_platt_targets"], abs=1e-7)
    t = np.where(y == 1, expected["t_pos"], expected["t_neg"])
    assert abs(np.mean(probabilities(softened, z) - t)) < 1e-14


def test_isotonic_vector(vectors):
    z, y = pooled_pixels(vectors)
    expected = vectors["isotonic"]["expected"]
    fitted = create("isotonic").fit(histogram_of(z, y))
    p = probabilities(fitted, np.sort(z))
    assert p == pytest.approx([0.0] * 11 + [0.3] * 10 + [10 / 11] * 11)
    assert np.mean((probabilities(fitted, z) - y) ** 2) == pytest.approx(0.094034090909, abs=1e-12)
    assert expected["sorted_p"] == pytest.approx(1 / (1 + np.exp(-np.sort(z))))


def test_histogram_vector(vectors):
    z, y = pooled_pixels(vectors)
    case = vectors["histogram_binning"]
    width = create("histogram", bins=case["params"]["equal_width_bins"]).fit(histogram_of(z, y))
    assert width.values.tolist() == pytest.approx(case["expected"]["ew_bin_values"])
    mass = create("histogram", bins=case["params"]["equal_mass_bins"], mass=True).fit(histogram_of(z, y))
    edges = expit(np.array([-9.0, *mass.edges, 9.0]))
    for (low, high, value), l_edge, u_edge, ours in zip(
        case["expected"]["em_min_max_value"], edges[:-1], edges[1:], mass.values, strict=True
    ):
        assert l_edge < low <= high < u_edge
        assert float(ours) == pytest.approx(value)


def test_beta_vector(vectors):
    z, y = pooled_pixels(vectors)
    case = vectors["beta_calibration"]
    fitted = create("beta").fit(histogram_of(z, y))
    a, b, c = case["expected"]["fit_a_b_c"]
    assert float(fitted.a) == pytest.approx(a, abs=1e-7)
    assert float(fitted.b) == b == 0
    assert float(fitted.c) == pytest.approx(c, abs=1e-7)
    assert mean_nll(probabilities(fitted, z), y) == pytest.approx(case["expected"]["fit_nll"], rel=1e-12)
    calibrator = create("beta")
    for name, value in zip("abc", case["params"]["eval_abc"], strict=True):
        calibrator.set_table(name, value)
    p = probabilities(calibrator, z)
    assert mean_nll(p, y) == pytest.approx(case["expected"]["eval_nll_at_0.8_1.2_0.1"], rel=1e-12)
    assert p[:3] == pytest.approx(case["expected"]["eval_first3"], rel=1e-12)


# ------------------------------------------------------------------ other minimisers


@settings(max_examples=60, deadline=None)
@given(LABELLED)
def test_no_parameters_near_the_fitted_ones_are_better(pixels):
    z, y = (np.array(column, dtype=float) for column in zip(*pixels, strict=True))
    for name in ("temperature", "platt", "beta"):
        try:
            fitted = create(name).fit(histogram_of(z, y))
        except InputError:
            continue
        best = mean_nll(np.clip(probabilities(fitted, z), 1e-300, 1 - 1e-16), y)
        assume(float(getattr(fitted, fitted.tables[0])) < 1e3)
        for table in fitted.tables:
            for factor, shift in ((1.01, 0.001), (0.99, -0.001)):
                other = copy.deepcopy(fitted)
                moved = float(getattr(fitted, table)) * factor + shift
                if moved < 0 and table != "c" and name != "platt":
                    continue
                other.set_table(table, moved)
                assert mean_nll(np.clip(probabilities(other, z), 1e-300, 1 - 1e-16), y) >= best - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_raw_pixels_and_a_general_minimiser_give_the_same(seed):
    z, y = crooked(3000, seed)
    histogram = histogram_of(z, y)
    log_p, log_q = -np.logaddexp(0, -z), -np.logaddexp(0, z)
    models = {
        "temperature": (lambda x: z / x[0], [1.5], [(1e-3, None)]),
        "platt": (lambda x: x[0] * z + x[1], [1.0, 0.0], [(None, None)] * 2),
        "beta": (lambda x: x[0] * log_p - x[1] * log_q + x[2], [1.0, 1.0, 0.0], [(0, None), (0, None), (None, None)]),
    }
    for name, (model, start, bounds) in models.items():
        best = minimize(lambda x, model=model: np.mean(np.logaddexp(0, model(x)) - y * model(x)), start, bounds=bounds,
                        method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})  # fmt: skip
        fitted = create(name).fit(histogram)
        assert mean_nll(probabilities(fitted, z), y) <= best.fun + 1e-12
        ours = [float(getattr(fitted, table)) for table in fitted.tables]
        assert ours == pytest.approx(best.x, abs=2e-4)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0, 3.0, 40.0])
def test_temperature_finds_any_scale(temperature):
    z, y = honest(400_000)
    fitted = create("temperature").fit(histogram_of(z * temperature, y))
    assert float(fitted.temperature) == pytest.approx(temperature, rel=0.02)


@pytest.mark.parametrize(
    ("z", "y"),
    [
        ([2.0, 1.0, 3.0, -2.0, 1.5, -0.5], [1, 1, 1, 0, 0, 0]),
        ([2.0, -1.5, 0.5, -2.0, -1.0, -3.0], [1, 1, 1, 0, 0, 0]),
        ([2.0, -1.0, 3.0, 0.7, 1.5, -2.5, -0.2], [1, 1, 1, 0, 0, 0, 0]),
    ],
    ids=["background", "foreground", "both"],
)
def test_mistakes_on_one_class_alone_set_the_temperature(z, y):
    wrongness = np.where(np.array(y) == 1, -1.0, 1.0) * z
    best = minimize_scalar(lambda s: np.logaddexp(0.0, s * wrongness).mean(), (0.1, 1.0), tol=1e-12).x
    assert float(create("temperature").fit(histogram_of(z, y)).temperature) == pytest.approx(1 / best, rel=1e-5)


def test_both_classes_count_alike_in_a_temperature():
    z, y = crooked(2000)
    fitted, mirrored = create("temperature").fit(histogram_of(z, y)), create("temperature").fit(histogram_of(-z, 1 - y))
    assert float(mirrored.temperature) == pytest.approx(float(fitted.temperature), rel=1e-12)


@pytest.mark.parametrize("excess", [1e-9, 1e-4, 0.5])
def test_logits_that_agree_with_the_labels_ever_so_slightly_have_a_temperature(excess):
    right, wrong = 1.0 + excess, 1.0
    T = float(create("temperature").fit(histogram_of([right, wrong], [1, 0])).temperature)

    def slope_of_nll(s):
        return wrong * expit(s * wrong) - right * expit(-s * right)

    assert slope_of_nll(0.999 / T) < 0 < slope_of_nll(1.001 / T)
    with pytest.raises(InputError, match="best T is infinite"):
        create("temperature").fit(histogram_of([right, wrong], [0, 1]))


def test_logits_without_any_relation_to_the_labels_have_no_temperature():
    with pytest.raises(InputError, match="best T is infinite"):
        create("temperature").fit(histogram_of([2.0, -1.0, 0.5, 0.5], [1, 1, 0, 0]))


@pytest.mark.parametrize("slope", [0.02, 0.3])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_weak_slope_is_fitted_and_a_falling_one_refused_where_the_map_must_rise(slope, sign):
    rng = np.random.default_rng(0)
    z = rng.normal(size=100_000) * 3
    y = (rng.random(z.size) < 1 / (1 + np.exp(-sign * slope * z))).astype(int)
    platt = create("platt").fit(histogram_of(z, y))
    assert float(platt.a) == pytest.approx(sign * slope, abs=0.01)
    for name in ("temperature", "beta"):
        if sign < 0:
            with pytest.raises(InputError, match="point away from the labels"):
                create(name).fit(histogram_of(z, y))
            continue
        p = probabilities(create(name).fit(histogram_of(z, y)), [-3.0, 0.0, 3.0])
        assert p == pytest.approx(1 / (1 + np.exp(-slope * np.array([-3.0, 0.0, 3.0]))), abs=0.01)


def test_platt_targets_keep_separable_data_finite():
    histogram = histogram_of([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1])
    fitted = create("platt", targets=True).fit(histogram)
    assert 0 < float(fitted.a) < 10


def test_beta_holds_a_slope_at_zero_only_where_it_must():
    z, y = honest(50_000)
    fitted = create("beta").fit(histogram_of(z, y))
    assert float(fitted.a) == pytest.approx(1, abs=0.1)
    assert float(fitted.b) == pytest.approx(1, abs=0.1)


# ------------------------------------------------------------------ properties


@settings(max_examples=40, deadline=None)
@given(LABELLED)
@example([(0.01 * i, i in (4, 5, -5)) for i in range(-5, 7)])
def test_isotonic_rises_and_is_calibrated_block_by_block(pixels):
    z, y = (np.array(column, dtype=float) for column in zip(*pixels, strict=True))
    assume(0 < y.sum() < len(y))
    fitted = create("isotonic").fit(histogram_of(z, y))
    p = probabilities(fitted, np.sort(z))
    assert bool((np.diff(p) >= 0).all())
    assert p.sum() == pytest.approx(y.sum())
    everywhere = probabilities(fitted, np.linspace(-20, 20, 999))
    assert bool((np.diff(everywhere) >= -1e-15).all())
    assert everywhere.min() >= 0
    assert everywhere.max() <= 1
    # No other rising function is closer to the labels.
    rng = np.random.default_rng(0)
    rivals = np.sort(rng.random((200, len(z))), axis=1)
    own = y[np.argsort(z)]
    assert ((p - own) ** 2).sum() <= ((rivals - own) ** 2).sum(axis=1).min() + 1e-12


def test_isotonic_keeps_the_two_ends_of_every_block_and_one_point_where_they_are_the_same():
    z = [-3.0, -3.0, -2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0]
    fitted = create("isotonic").fit(histogram_of(z, [0, 0, 1, 0, 0, 0, 1, 1, 1]))
    assert fitted.z.tolist() == [-3.0, -2.0, -1.0, 0.0, 1.0]
    assert fitted.y.tolist() == pytest.approx([0.0, 1 / 3, 1 / 3, 0.5, 1.0])


def test_neighbours_of_one_value_are_one_block():
    pixels, foreground = [2, 4, 3, 3, 5], [1, 2, 1, 2, 5]  # 1/2, 1/2 and 1/3 are pooled
    z = np.repeat(np.arange(5.0), pixels)
    y = np.concatenate([np.arange(n) < k for n, k in zip(pixels, foreground, strict=True)])
    fitted = create("isotonic").fit(histogram_of(z, y))
    assert fitted.z.tolist() == [0.0, 2.0, 3.0, 4.0]
    assert fitted.y.tolist() == pytest.approx([4 / 9, 4 / 9, 2 / 3, 1.0])


def test_isotonic_of_one_logit_is_constant():
    fitted = create("isotonic").fit(histogram_of([1.0, 1.0, 1.0], [0, 1, 0]))
    fitted.check()
    assert probabilities(fitted, [-9.0, 1.0, 9.0]) == pytest.approx([1 / 3] * 3)


def test_isotonic_points_that_coincide_in_float32_give_finite_probabilities():
    calibrator = create("isotonic")
    calibrator.set_table("z", [0.0, 1.0, 1.0 + 1e-12, 2.0])
    calibrator.set_table("y", [0.0, 0.25, 0.5, 1.0])
    z = torch.tensor([0.5, 1.0, 1.5])
    p = calibrator(z.view(1, 1, 1, 3)).flatten()
    assert bool(p.isfinite().all())
    assert p.tolist() == sorted(p.tolist())
    assert 0.25 <= float(p[1]) <= 0.5


def extreme_pixels(count, seed=0):
    """Return float32 logits up to +-80 of pixels that are wrong one time in ten, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-80, 80, count).astype(np.float32)
    return z, ((z > 0) ^ (rng.random(count) < 0.1 + 0.4 / (1 + np.abs(z)))).astype(int)


def exact_sigmoid(z):
    """Return the sigmoid in the precision of the decimal context, which tells 1 - 1e-35 from 1."""
    return 1 / (1 + (-Decimal(float(z))).exp())


@pytest.mark.parametrize("seed", range(3))
def test_isotonic_keeps_both_tails_in_float32(seed):
    z, y = extreme_pixels(400, seed)
    fitted = create("isotonic").fit(histogram_of(z, y))
    order = np.argsort(z)
    values = isotonic_regression(y[order]).x
    grid = np.sort(np.concatenate([z, np.linspace(-85, 85, 600)]).astype(np.float32))
    expected = []
    with localcontext(prec=60):
        points = [exact_sigmoid(point) for point in z[order]]
        for p in map(exact_sigmoid, grid):
            right = bisect_left(points, p)
            if right in (0, len(points)):
                expected.append(values[0 if right == 0 else -1])
                continue
            share = (p - points[right - 1]) / (points[right] - points[right - 1])
            expected.append(values[right - 1] + float(share) * (values[right] - values[right - 1]))
    assert len(np.unique(values[z[order] > 40])) > 1
    for dtype, accuracy in ((torch.float32, 1e-6), (torch.float64, 1e-13)):
        actual = fitted(torch.tensor(grid, dtype=dtype).view(1, 1, 1, -1)).flatten().numpy()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=accuracy)


@pytest.mark.parametrize("name", [*BINARY, "histogram of equal mass"])
def test_float32_and_float64_logits_give_the_same_far_out(name):
    z, y = extreme_pixels(3000)
    options = {"mass": True} if name.endswith("mass") else {}
    fitted = create(name.split()[0], **options).fit(histogram_of(z, y))
    grid = torch.tensor(np.concatenate([z, np.linspace(-90, 90, 999), [-1e4, 1e4]]).astype(np.float32)).view(
        1, 1, 1, -1
    )
    assert torch.allclose(fitted(grid), fitted(grid.double()).float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["temperature"])
def test_the_chosen_class_never_changes(name):
    z, y = honest(10_000, temperature=2.0)
    fitted = create(name).fit(histogram_of(z, y))
    grid = torch.randn(1, 1, 50, 50) * 5
    assert torch.equal(fitted(grid) > 0.5, grid > 0)


@pytest.mark.parametrize("name", BINARY)
def test_outputs_have_the_shape_and_type_of_a_map(name):
    fitted = create(name).fit(histogram_of(*crooked(2000)))
    kinds = (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32,) * 2, (torch.float64,) * 2
    for dtype, expected in kinds:
        p = fitted((torch.randn(2, 1, 5, 7) * 30).to(dtype))
        assert p.shape == (2, 1, 5, 7)
        assert p.dtype == expected
        assert 0 <= float(p.min()) <= float(p.max()) <= 1
    z = torch.linspace(-20, 20, 500).view(1, 1, 1, -1)
    assert torch.allclose(fitted(z), fitted(z.double()).float(), atol=2e-6)
    with pytest.raises(ValueError, match=r"\(B, 1, H, W\)"):
        fitted(torch.zeros(2, 3, 4, 4))
    for shape in ((4, 4), (4, 1), (2, 1, 4), (2, 1, 3, 4, 4)):
        with pytest.raises(ValueError, match=r"\(B, 1, H, W\)"):
            fitted(torch.zeros(shape))


@pytest.mark.parametrize("name", BINARY)
def test_the_probability_of_a_nan_logit_is_nan(name):
    fitted = create(name).fit(histogram_of(*crooked(2000)))
    z = torch.tensor([0.3, float("nan"), float("inf"), -float("inf")]).view(1, 1, 1, 4)
    p = fitted(z).flatten()
    assert p.isnan().tolist() == [False, True, False, False]
    assert 0 <= float(p[3]) <= float(p[0]) <= float(p[2]) <= 1


@pytest.mark.parametrize("slope", ["a", "b"])
def test_beta_without_a_slope_takes_infinite_logits(slope):
    calibrator = create("beta")
    calibrator.set_table(slope, 0.0)
    p = calibrator(torch.tensor([-float("inf"), -9e4, 9e4, float("inf")]).view(1, 1, 1, 4)).flatten().tolist()
    assert p == ([0.5, 0.5, 1.0, 1.0] if slope == "a" else [0.0, 0.0, 0.5, 0.5])


@pytest.mark.parametrize("name", BINARY)
def test_an_unfitted_calibrator_changes_little(name):
    z = torch.linspace(-8, 8, 200).view(1, 1, 1, -1)
    assert torch.allclose(create(name)(z), z.sigmoid(), atol=0.051 if name == "histogram" else 1e-6)


@pytest.mark.parametrize("name", ["temperature", "platt", "isotonic", "beta"])
def test_an_unfitted_calibrator_changes_nothing_far_out(name):
    z = torch.linspace(-80, 80, 400, dtype=torch.float64).view(1, 1, 1, -1)
    torch.testing.assert_close(create(name)(z), z.sigmoid(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", BINARY)
def test_fitting_on_batches_equals_fitting_on_a_histogram(name):
    z, y = crooked(4096)
    masks = torch.tensor(y).view(4, 1, 32, 32)
    logits = torch.tensor(z).view(4, 1, 32, 32)
    masks[:, :, ::5] = 255
    kept = masks.flatten() != 255
    batches = [Batch(logits[i : i + 2], masks[i : i + 2]) for i in (0, 2)]
    streamed = create(name).fit(lambda: batches, ignore_index=255)
    counted = create(name).fit(histogram_of(z[kept.numpy()], y[kept.numpy()]))
    grid = np.linspace(-6, 6, 100)
    assert probabilities(streamed, grid) == pytest.approx(probabilities(counted, grid), abs=1e-9)
    scores = score_batches(lambda: batches, counted, ignore_index=255)[1]
    expected = score_histogram(histogram_of(z[kept.numpy()], y[kept.numpy()]), counted)
    assert scores.nll == pytest.approx(expected.nll, rel=1e-9)
    assert scores.ece == pytest.approx(expected.ece, abs=1e-9)


def test_equal_width_bins_include_their_lower_edge_and_empty_ones_give_their_centre():
    p = np.array([0.1, 0.2, 0.2, 0.3, 0.3, 0.3])
    z = np.log(p) - np.log1p(-p)
    fitted = create("histogram").fit(histogram_of(z, [0, 1, 1, 0, 0, 1]))
    assert probabilities(fitted, z) == pytest.approx([0, 1, 1, 1 / 3, 1 / 3, 1 / 3])
    assert fitted.values[[0, 5, 9]].tolist() == pytest.approx([0.05, 0.55, 0.95])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=4, max_size=60), st.integers(2, 8))
def test_equal_mass_bins_are_as_even_as_ties_allow(pixels, bins):
    z, y = (np.array(column, dtype=float) for column in zip(*pixels, strict=True))
    assume(0 < y.sum() < len(y))
    assume(len(np.unique(z)) > 1)
    fitted = create("histogram", bins=bins, mass=True).fit(histogram_of(z, y))
    sizes = np.bincount(np.searchsorted(fitted.edges, z), minlength=len(fitted.values))
    largest_tie = np.unique(z, return_counts=True)[1].max()
    assert sizes.min() > 0
    assert len(sizes) <= bins
    assert sizes.max() <= len(z) / bins + largest_tie


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    ("z", "y", "message"),
    [
        ([], [], "no pixels"),
        ([1.0, 2.0], [1, 1], "no background pixels"),
        ([1.0, 2.0], [0, 0], "no foreground pixels"),
    ],
)
def test_a_fit_without_both_classes_fails_and_changes_nothing(name, z, y, message):
    calibrator = create(name).fit(histogram_of(*crooked(500)))
    before = calibrator.to_json()
    with pytest.raises(InputError, match=f"{name}: {message}"):
        calibrator.fit(histogram_of(z, y))
    assert calibrator.to_json() == before


@pytest.mark.parametrize(
    ("name", "z", "y", "message"),
    [
        ("temperature", [-3.0, -1.0, 0.5, 2.0], [0, 0, 1, 1], "best T is 0"),
        ("temperature", [-3.0, -1.0, 0.5, 2.0], [1, 1, 0, 0], "best T is infinite"),
        ("temperature", [0.0, 0.0], [0, 1], "best T is 0"),
        ("platt", [-3.0, -1.0, 0.5, 2.0], [0, 0, 1, 1], "a threshold separates"),
        ("platt", [-3.0, -1.0, 0.5, 2.0], [1, 1, 0, 0], "a threshold separates"),
        ("platt", [1.0, 1.0], [0, 1], "a threshold separates"),
        ("platt", [0.0, 1.0, 1.0, 2.0], [0, 0, 1, 1], "a threshold separates"),
        ("platt", [0.0, 1.0, 1.0, 2.0], [1, 1, 0, 0], "a threshold separates"),
        ("beta", [-3.0, -1.0, 0.5, 2.0], [0, 0, 1, 1], "a threshold separates"),
        ("beta", [-3.0, -1.0, 0.5, 2.0], [1, 1, 0, 0], "a threshold separates"),
        ("beta", [0.0, 1.0, 1.0, 2.0], [0, 0, 1, 1], "a threshold separates"),
        ("beta", [-3.0, -1.0, 0.5, 0.7, 2.0], [1, 1, 0, 1, 0], "point away"),
        ("histogram", [1.0, 1.0], [0, 1], "one value at nearly all pixels"),
    ],
)
def test_data_that_determines_nothing_is_refused_and_changes_nothing(name, z, y, message):
    options = {"mass": True} if name == "histogram" else {}
    calibrator = create(name, **options).fit(histogram_of(*crooked(500)))
    before = calibrator.to_json()
    with pytest.raises(InputError, match=message):
        calibrator.fit(histogram_of(z, y))
    assert calibrator.to_json() == before


@settings(max_examples=100, deadline=None)
@given(LABELLED, st.sampled_from(BINARY))
def test_every_fit_gives_finite_probabilities_or_says_why_not(pixels, name):
    z, y = (np.array(column, dtype=float) for column in zip(*pixels, strict=True))
    try:
        fitted = create(name).fit(histogram_of(z, y))
    except InputError:
        return
    fitted.check()
    assert np.isfinite(probabilities(fitted, np.linspace(-100, 100, 201))).all()
