"""The meter against the specification's vectors, brute force, scikit-learn, and itself with the order changed."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from densecal.metrics import CalibrationMeter, calibration_errors, intervals, paired_intervals
from densecal.metrics import levels as levels_module
from densecal.metrics import sketch as sketch_module
from densecal.metrics.curves import Atoms, aurc, equal_mass
from tests import forked
from tests.metrics import reference

TOLERANCE = 1e-9


def close(actual, expected, tolerance=TOLERANCE):
    assert actual == pytest.approx(expected, abs=tolerance, rel=0)


def pooled_pixels(vectors):
    case = vectors["ece_ew"]["inputs"]
    return torch.tensor(case["z"], dtype=torch.float64), torch.tensor(case["y"])


# ------------------------------------------------------------------ the specification's numbers


@pytest.mark.parametrize(("name", "bins"), [("ece_ew", 10), ("ece_ew_M5", 5), ("ece_ew_M15", 15), ("ece_ew_M100", 100)])
def test_equal_width_vectors(vectors, name, bins):
    z, y = pooled_pixels(vectors)
    expected = vectors[name]["expected"]
    meter = CalibrationMeter(bins=bins)
    meter.update(logits=z, masks=y)
    r = meter.compute()
    close(r.ece_ew, expected["ece"])
    close(r.oe_ew, expected["oe_seed"])
    close(r.oe_ew_weighted, expected["oe_conf_weighted"])
    close(r.ue_ew, expected["ue"])
    close(r.mce, expected["mce"])


def test_equal_width_bins_of_the_vector(vectors):
    z, y = pooled_pixels(vectors)
    curve = calibration_errors(z.sigmoid(), y).reliability
    for b, (n, confidence, accuracy) in enumerate(vectors["ece_ew"]["expected"]["bins_n_C_A"]):
        assert curve.count[b] == n
        close(curve.confidence[b], confidence)
        close(curve.accuracy[b], accuracy)


@pytest.mark.parametrize("bins", [4, 10])
def test_equal_mass_vectors(vectors, bins):
    z, y = pooled_pixels(vectors)
    expected = vectors[f"ece_em_M{bins}"]["expected"]
    r = calibration_errors(z.sigmoid(), y, bins=bins)
    close(r.ece_em, expected["ece"])
    close(r.oe_em, expected["oe_seed"])
    close(r.oe_em_weighted, expected["oe_conf_weighted"])


def test_sweep_debias_and_scores_vectors(vectors):
    z, y = pooled_pixels(vectors)
    r = calibration_errors(z.sigmoid(), y)
    expected = vectors["ece_sweep"]["expected"]
    assert r.sweep_bins == expected["b_star"]
    close(r.ece_sweep, expected["ece"])
    close(r.oe_sweep, expected["oe_seed"])
    close(r.oe_sweep_weighted, expected["oe_conf_weighted"])
    close(r.ece_debias, vectors["ece_debias"]["expected"]["seed_A(1-A)"])
    close(r.brier, vectors["brier_nll"]["expected"]["brier"])
    close(r.nll, vectors["brier_nll"]["expected"]["nll"])
    close(r.accuracy, vectors["accuracy"]["expected"]["pixel_pooled"])
    close(r.mean_confidence, vectors["accuracy"]["expected"]["mean_conf"])
    close(r.sce, vectors["static_calibration_error"]["expected"]["sce"])
    close(r.ece_foreground, vectors["static_calibration_error"]["expected"]["per_class"][1])
    close(r.auroc_error, vectors["error_detection"]["expected"]["auroc"])
    close(r.aurc, vectors["error_detection"]["expected"]["aurc"])
    adaptive = calibration_errors(z.sigmoid(), y, bins=8)
    close(adaptive.ace, vectors["adaptive_calibration_error"]["expected"]["ace"])


def test_ties_are_averaged(vectors):
    case = vectors["em_ties"]
    c, a = np.array(case["inputs"]["conf"]), np.array(case["inputs"]["correct"], dtype=np.int64)
    atoms = Atoms.from_counts(c, np.ones(len(c), np.int64), a)
    close(equal_mass(atoms, case["params"]["M"]).ece, case["expected"]["tie_averaged"])


def test_eight_bit_levels_on_bin_edges(vectors):
    case = vectors["ew_edges_left"]
    v = torch.tensor(case["inputs"]["uint8"], dtype=torch.uint8)
    r = calibration_errors(v, torch.tensor(case["inputs"]["y"]))
    assert r.reliability.count.tolist() == case["expected"]["counts"]
    close(r.ece_ew, case["expected"]["ece"])
    close(r.oe_ew_weighted, case["expected"]["oe_conf_weighted"])
    close(r.ue_ew, case["expected"]["ue"])
    close(r.mce, case["expected"]["mce"])


def test_boundary_band_vector(vectors, monkeypatch):
    case = vectors["boundary_ece"]
    monkeypatch.setattr(levels_module, "BOUNDARY_DISTANCES", (1, 15))
    meter = CalibrationMeter()
    meter.update(logits=torch.tensor(case["inputs"]["z"], dtype=torch.float64), masks=torch.tensor(case["inputs"]["y"]))
    r = meter.compute()
    close(r.ece_boundary_5, case["expected"]["ece_band"])
    assert int(meter.sketch.counts("bands")[0][0].sum()) == case["expected"]["n_band"]
    close(r.ece_boundary_15, r.ece_ew)  # every pixel of a 4 x 4 map lies within 15


def test_mean_of_image_errors_vector(vectors):
    case = vectors["ece_image_mean"]
    meter = CalibrationMeter()
    meter.update(logits=torch.tensor(case["inputs"]["z"], dtype=torch.float64), masks=torch.tensor(case["inputs"]["y"]))
    close(meter.compute().ece_image_mean, case["expected"]["mean"])


# ------------------------------------------------------------------ brute force

LEVELS = st.one_of(
    st.sampled_from([0.0, 1.0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1e-300, 1 - 2**-53, 0.5 + 2**-53]),
    st.floats(0, 1, allow_subnormal=False),
)
PIXELS = st.lists(st.tuples(LEVELS, st.integers(0, 1)), min_size=1, max_size=60)


def check_against_reference(p, y, bins, r, tolerance=1e-9):
    c, a = reference.top_label(p, y)
    width, mass = reference.equal_width(c, a, bins), reference.equal_mass(c, a, bins)
    swept_bins, swept = reference.sweep(c, a)
    for name in ("ece", "oe", "oe_weighted"):
        kind, _, form = name.partition("_")
        suffix = f"_{form}" if form else ""
        close(getattr(r, f"{kind}_ew{suffix}"), width[name], tolerance)
        close(getattr(r, f"{kind}_em{suffix}"), mass[name], tolerance)
        close(getattr(r, f"{kind}_sweep{suffix}"), swept[name], tolerance)
    assert r.sweep_bins == swept_bins
    close(r.ue_ew, width["ue"], tolerance)
    close(r.mce, width["mce"], tolerance)
    close(r.ece_debias, reference.debias(c, a, bins), tolerance)
    close(r.accuracy, a.mean(), tolerance)
    close(r.mean_confidence, c.mean(), tolerance)
    close(r.brier, ((p - y) ** 2).mean(), tolerance)
    clipped = np.clip(p, 1e-7, 1 - 1e-7)
    close(r.nll, -(y * np.log(clipped) + (1 - y) * np.log(1 - clipped)).mean(), tolerance)
    close(r.aurc, reference.aurc(c, a), tolerance)
    close(
        r.sce,
        np.mean([reference.classwise(1 - p, 1.0 - y, bins), reference.classwise(p, y, bins)]),
        tolerance,
    )
    close(r.ece_foreground, reference.classwise(p, y, bins), tolerance)
    close(r.ace, np.mean([reference.adaptive(1 - p, 1.0 - y, bins), reference.adaptive(p, y, bins)]), tolerance)
    if 0 < a.sum() < len(a):
        close(r.auroc_error, roc_auc_score(1 - a, 1 - c), tolerance)
    else:
        assert np.isnan(r.auroc_error)


@settings(max_examples=150, deadline=None)
@given(pixels=PIXELS, bins=st.sampled_from([1, 2, 3, 7, 10, 15]))
def test_every_figure_equals_brute_force(pixels, bins):
    p, y = np.array([v for v, _ in pixels]), np.array([float(label) for _, label in pixels])
    check_against_reference(p, y, bins, calibration_errors(p, y, bins=bins))


@settings(max_examples=60, deadline=None)
@example(pixels=[(43, 0), (212, 0)], bins=5, wide=False)  # 1 - 43/255 and 212/255 are one confidence
@given(
    pixels=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 1)), min_size=1, max_size=60),
    bins=st.sampled_from([1, 5, 10, 15]),
    wide=st.booleans(),
)
def test_integer_maps_equal_exact_arithmetic(pixels, bins, wide):
    v = np.array([level for level, _ in pixels], np.uint8)
    y = np.array([label for _, label in pixels])
    given_map = v.astype(np.uint16) * 257 if wide else v
    r = calibration_errors(given_map, y, bins=bins)
    numerator = np.maximum(v, 255 - v).astype(int)
    index = np.minimum(numerator * bins // 255, bins - 1)
    correct = (v > 127) == (y == 1)
    groups = [np.flatnonzero(index == b) for b in range(bins)]
    expected = reference.figures(groups, numerator / 255, correct.astype(float))
    close(r.ece_ew, expected["ece"], 1e-12)
    close(r.oe_ew_weighted, expected["oe_weighted"], 1e-12)
    mass = reference.equal_mass(numerator / 255, correct.astype(float), bins)
    close(r.ece_em, mass["ece"], 1e-12)


def test_aurc_equals_brute_force_on_many_ties():
    rng = np.random.default_rng(0)
    c, a = rng.integers(50, 100, 3000) / 100, rng.integers(0, 2, 3000)
    atoms = Atoms.from_counts(c, np.ones(3000, np.int64), a)
    close(aurc(atoms), reference.aurc(c, a.astype(float)), 1e-12)


# ------------------------------------------------------------------ size, order, split, dtype, device


def test_more_identical_pixels_than_float32_can_count_are_counted_exactly():
    meter = CalibrationMeter(boundary=False)
    p = torch.full((10_000_000,), 0.9, dtype=torch.float64)
    y = torch.ones(10_000_000, dtype=torch.int64)
    y[:500_000] = 0
    for _ in range(2):  # 2^24 is 16.8 million
        meter.update(p, y)
    r = meter.compute()
    assert r.pixels == 20_000_000
    close(r.ece_ew, 0.05, 1e-12)
    close(r.accuracy, 0.95, 1e-15)
    close(r.ece_em, 0.05, 1e-12)


def make_maps(count, height, width, seed, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(count, 1, height, width)) * 4
    y = (rng.random((count, 1, height, width)) < 1 / (1 + np.exp(-z / 2))).astype(np.float64)
    return torch.from_numpy(1 / (1 + np.exp(-z))).to(dtype), torch.from_numpy(y)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
def test_order_and_split_change_nothing(kind, fold, monkeypatch):
    if fold:
        monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 2000)
        monkeypatch.setattr(sketch_module, "_CHUNK", 700)
    p, y = make_maps(12, 20, 30, 0)
    if kind != "float":
        top = 255 if kind == "uint8" else 65535
        p = torch.from_numpy((p.numpy() * top).round().astype(kind))
    whole = CalibrationMeter()
    whole.update(p, y)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist()
    split, rest = CalibrationMeter(), CalibrationMeter()
    for i, image in enumerate(order):
        (split if i % 3 else rest).update(p[image : image + 1], y[image : image + 1])
    split.merge(rest)
    a, b = whole.compute().as_dict(), split.compute().as_dict()
    ci_a, ci_b = a.pop("ci"), b.pop("ci")
    for name, value in a.items():
        close(b[name], value, 1e-12)
    for name, pair in ci_a.items():
        close(ci_b[name], pair, 1e-12)
    assert np.array_equal(whole.sketch.tables["top"], split.sketch.tables["top"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_input_counts_at_its_exact_value(dtype):
    p, y = make_maps(2, 16, 16, 3, dtype)
    check_against_reference(p.double().numpy().ravel(), y.numpy().ravel(), 10, calibration_errors(p, y))


def test_fine_bins_stay_close_to_the_exact_figures(monkeypatch):
    rng = np.random.default_rng(0)
    z = rng.normal(size=300_000) * 6 - 3
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z * 0.6))).astype(np.int64)
    p = 1 / (1 + np.exp(-z))
    exact = calibration_errors(p, y)
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 1000)
    binned = calibration_errors(p, y)
    assert "fine" in binned.sketch.tables
    assert not binned.sketch.raw
    for name in ("ece_ew", "oe_ew", "ece_debias", "sce", "brier", "nll"):
        close(getattr(binned, name), getattr(exact, name), 1e-12)
    for name in ("ece_em", "oe_em", "oe_em_weighted", "ace", "auroc_error", "aurc"):
        close(getattr(binned, name), getattr(exact, name), 1e-5)
    close(binned.ece_sweep, exact.ece_sweep, 1e-4)  # the number of bins may differ, the error hardly does


def test_memory_does_not_grow_with_pixels():
    meter = CalibrationMeter(boundary=False)
    p, y = make_maps(4, 400, 400, 0)
    for _ in range(4):
        meter.update(p, y)
    held = sum(t.size for t in meter.sketch.tables.values()) + sum(v.size for v, _ in meter.sketch.raw)
    for _ in range(4):
        meter.update(p, y)
    assert held == sum(t.size for t in meter.sketch.tables.values()) + sum(v.size for v, _ in meter.sketch.raw)
    assert meter.sketch.image_rows().shape[1] * 8 <= 1024


def test_state_dict_round_trip_continues_the_count():
    p, y = make_maps(6, 12, 12, 5)
    whole, first = CalibrationMeter(), CalibrationMeter()
    whole.update(p, y)
    first.update(p[:2], y[:2])
    second = CalibrationMeter()
    second.load_state_dict(first.state_dict())
    second.update(p[2:], y[2:])
    for name, value in whole.compute().as_dict().items():
        if name != "ci":
            close(getattr(second.compute(), name), value, 1e-12)


# ------------------------------------------------------------------ classes, void, shapes


def softmax_maps(classes, shape=(3, 14, 14), seed=0):
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(size=(shape[0], classes, *shape[1:])) * 2)
    y = torch.from_numpy(rng.integers(0, classes, shape))
    return z, y


def test_k_classes_equal_brute_force():
    z, y = softmax_maps(5)
    y[0, :3] = 255
    meter = CalibrationMeter(num_classes=5)
    meter.update(logits=z, masks=y)
    r = meter.compute()
    p = z.softmax(1).permute(0, 2, 3, 1).reshape(-1, 5).numpy()
    labels = y.flatten().numpy()
    p, labels = p[labels != 255], labels[labels != 255]
    c, a = p.max(1), (p.argmax(1) == labels).astype(float)
    onehot = np.eye(5)[labels]
    close(r.ece_ew, reference.equal_width(c, a, 10)["ece"])
    close(r.ece_em, reference.equal_mass(c, a, 10)["ece"])
    close(r.ece_sweep, reference.sweep(c, a)[1]["ece"])
    close(r.brier, ((p - onehot) ** 2).sum(1).mean())
    close(r.nll, -np.log(p[np.arange(len(p)), labels]).mean())
    close(r.sce, np.mean([reference.classwise(p[:, k], onehot[:, k], 10) for k in range(5)]))
    close(r.ace, np.mean([reference.adaptive(p[:, k], onehot[:, k], 10) for k in range(5)]))
    close(r.auroc_error, roc_auc_score(1 - a, 1 - c))
    assert r.pixels == len(labels)
    assert np.isnan(r.ece_foreground)


def test_two_channel_softmax_agrees_with_the_binary_map():
    z, y = softmax_maps(2)
    two = CalibrationMeter(num_classes=2)
    two.update(logits=z, masks=y)
    one = CalibrationMeter()
    one.update(logits=z[:, 1] - z[:, 0], masks=y)
    a, b = two.compute(), one.compute()
    for name in (
        "ece_ew",
        "oe_ew",
        "ece_em",
        "ece_sweep",
        "ece_debias",
        "nll",
        "sce",
        "ace",
        "aurc",
        "ece_boundary_5",
    ):
        close(getattr(a, name), getattr(b, name), 1e-9)
    close(a.brier, 2 * b.brier, 1e-9)


def test_multilabel_pools_its_channels():
    rng = np.random.default_rng(2)
    p, y = rng.random((2, 3, 8, 9)), rng.integers(0, 2, (2, 3, 8, 9))
    r = calibration_errors(p, y, num_classes=3, multilabel=True)
    c, a = reference.top_label(p, y)
    close(r.ece_ew, reference.equal_width(c, a, 10)["ece"])
    close(r.ece_em, reference.equal_mass(c, a, 10)["ece"])
    close(r.brier, ((p - y) ** 2).mean())
    close(r.sce, np.mean([reference.classwise(p[:, k].ravel(), y[:, k].ravel(), 10) for k in range(3)]))
    close(r.ece_foreground, reference.classwise(p.ravel(), y.ravel(), 10))


def test_k_class_fine_bins_stay_close(monkeypatch):
    z, y = softmax_maps(4, (4, 120, 120))
    y = torch.where(torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.7, z.argmax(1), y)
    exact = CalibrationMeter(num_classes=4, boundary=False)
    exact.update(logits=z, masks=y)
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 1000)
    binned = CalibrationMeter(num_classes=4, boundary=False)
    binned.update(logits=z, masks=y)
    for name in ("ece_ew", "sce", "nll"):
        close(getattr(binned.compute(), name), getattr(exact.compute(), name), 1e-12)
    for name in ("ece_em", "ace", "aurc", "auroc_error"):
        close(getattr(binned.compute(), name), getattr(exact.compute(), name), 1e-4)


def test_void_pixels_change_nothing():
    p, y = make_maps(3, 10, 10, 4)
    clean = calibration_errors(p[:, :, 3:], y[:, :, 3:])
    y[:, :, :3] = 255
    p[0, 0, 0, 0] = float("nan")
    voided = calibration_errors(p, y, ignore_index=255)
    for name in (
        "ece_ew",
        "ece_em",
        "ece_sweep",
        "brier",
        "nll",
        "accuracy",
        "ece_image_mean",
        "sce",
        "ace",
        "aurc",
    ):
        close(getattr(voided, name), getattr(clean, name), 1e-12)
    assert voided.pixels == clean.pixels


def test_void_pixels_of_integer_maps_change_nothing():
    rng = np.random.default_rng(0)
    v, y = rng.integers(0, 256, (3, 12, 10), np.uint8), rng.integers(0, 2, (3, 12, 10))
    clean = calibration_errors(v[:, 4:], y[:, 4:], bins=17)
    y[:, :4] = 255
    voided = calibration_errors(v, y, bins=17, ignore_index=255)
    for name in ("ece_ew", "ece_em", "sce", "nll", "ece_boundary_5"):
        close(getattr(voided, name), getattr(clean, name), 1e-12)


def test_the_shape_tells_one_image_from_a_batch():
    p, y = make_maps(3, 6, 7, 6)
    for a, b, images in [(p, y, 3), (p[:, 0], y, 3), (p[0, 0], y[0, 0], 1), (p.flatten(), y.flatten(), 1)]:
        assert calibration_errors(a, b).images == images


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        ([0.5, 1.5], [0, 1], "outside"),
        ([0.5, float("nan")], [0, 1], "outside"),
        ([0.5, 0.5], [0, 255], "expected 0 to 1"),
        ([0.5, 0.5], [0.0, 255.0], "expected 0 to 1"),
        ([0.5, 0.5], [1], "same shape"),
        ([0.5, 0.5], [-1, 1], "expected 0 to 1"),
        ([0.5, 0.5], [-1.0, 1.0], "expected 0 to 1"),
        ([0.5, 0.5], [float("nan"), 1.0], "expected 0 to 1"),
    ],
)
def test_bad_input_is_named(p, y, message):
    for void in (None, 7):
        with pytest.raises(ValueError, match=message):
            calibration_errors(torch.tensor(p), torch.tensor(y), ignore_index=void)


@pytest.mark.parametrize("bad", [1.5, float("nan")])
def test_a_refused_batch_leaves_no_trace(bad, monkeypatch):
    monkeypatch.setattr(sketch_module, "_CHUNK", 8)
    p, y = torch.rand(2, 6, 6), torch.zeros(2, 6, 6)
    meter = CalibrationMeter()
    meter.update(p, y)
    before = meter.compute().as_dict()
    spoilt = p.clone()
    spoilt[1, 5, 5] = bad
    for way in ("probabilities", "logits"):
        if way == "probabilities" or bad != bad:
            with pytest.raises(ValueError, match="outside" if way == "probabilities" else "logits that are NaN"):
                meter.update(masks=y, **{way: spoilt})
    assert meter.compute().as_dict() == before


def test_arrays_and_lists_are_accepted():
    p, y = np.array([0.7, 0.7, 0.7, 0.7]), np.array([1, 1, 1, 0])
    meter = CalibrationMeter()
    meter.update(p[::-1], y[::-1])
    close(meter.compute().ece_ew, 0.05)
    assert calibration_errors(p.tolist(), y.tolist()).reliability.count.argmax() == 7, "0.7 in float64, not in float32"
    meter.reset()
    meter.update(masks=y, logits=np.log(p / (1 - p)))
    close(meter.compute().mean_confidence, 0.7)


def test_values_slightly_above_1_after_float32_interpolation_count_as_1():
    p = torch.tensor([1.0000001, 0.25, -1e-9, 0.5])
    y = torch.tensor([1, 0, 0, 1])
    actual, expected = calibration_errors(p, y), calibration_errors(p.clamp(0, 1), y)
    assert actual.as_dict() == expected.as_dict()


@pytest.mark.parametrize("void", [255, -1])
def test_soft_masks_may_hold_void(void):
    p, y = torch.tensor([0.9, 0.8, 0.2, 0.6]), torch.tensor([1.0, void, 0.3, 0.7])
    result = calibration_errors(p, y, ignore_index=void)
    assert (result.pixels, result.accuracy) == (3, 1.0)


def test_bad_calls_are_refused():
    with pytest.raises(TypeError, match="one of probabilities or logits"):
        CalibrationMeter().update(torch.rand(3), torch.ones(3), logits=torch.rand(3))
    with pytest.raises(ValueError, match="nothing to measure"):
        CalibrationMeter().compute()
    with pytest.raises(ValueError, match="cannot merge: bins is 10 here and 15 there"):
        CalibrationMeter().merge(CalibrationMeter(bins=15))
    with pytest.raises(ValueError, match="class indices"):
        CalibrationMeter(num_classes=3).update(torch.rand(2, 4, 5, 5), torch.zeros(2, 5, 5))


# ------------------------------------------------------------------ intervals


def test_interval_covers_the_truth_and_counts_images_not_pixels():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(40):
        meter = CalibrationMeter(boundary=False)
        # Every image has its own accuracy: pixels of one image are not independent.
        for accuracy in rng.beta(8, 2, 60):
            meter.update(torch.full((50,), 0.8), torch.from_numpy((rng.random(50) < accuracy).astype(np.int64)))
        low, high = meter.compute().ci["accuracy"]
        covered += low <= 0.8 <= high
        assert high - low > 0.04  # treating 3,000 pixels as independent would give 0.028
    assert covered >= 34


def test_a_result_does_not_change_when_its_meter_goes_on_counting():
    meter = CalibrationMeter()
    meter.update(*make_maps(5, 8, 8, 0))
    result = meter.compute()
    expected = intervals(meter.sketch.image_rows())
    meter.update(*make_maps(50, 8, 8, 1))
    assert result.ci == expected


def test_paired_interval_is_narrower_than_the_two_apart():
    rng = np.random.default_rng(1)
    a, b = CalibrationMeter(boundary=False), CalibrationMeter(boundary=False)
    for accuracy in rng.beta(8, 2, 80):
        y = torch.from_numpy((rng.random(200) < accuracy).astype(np.int64))
        a.update(torch.full((200,), 0.95), y)
        b.update(torch.full((200,), 0.90), y)
    rows = a.sketch.image_rows(), b.sketch.image_rows()
    low, high = paired_intervals(*rows)["ece_ew"]
    assert low - 1e-12 <= a.compute().ece_ew - b.compute().ece_ew <= high + 1e-12
    alone = intervals(rows[0])["ece_ew"]
    assert high - low < 0.2 * (alone[1] - alone[0])
    with pytest.raises(ValueError, match="same images"):
        paired_intervals(rows[0], rows[1][:-1])


# ------------------------------------------------------------------ processes and imports

_REDUCE = """
import sys, torch, torch.distributed as dist
from densecal.metrics import CalibrationMeter
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
p, y = torch.rand(4, 1, 20, 20, generator=g, dtype=torch.float64), torch.randint(0, 2, (4, 1, 20, 20), generator=g)
meter = CalibrationMeter()
meter.update(p[rank::2], y[rank::2])
meter.all_reduce()
whole = CalibrationMeter()
whole.update(p, y)
a, b = meter.compute().as_dict(), whole.compute().as_dict()
assert all(abs(a[k] - b[k]) < 1e-12 for k in a if k != "ci"), (a, b)
assert meter.compute().images == 4
dist.destroy_process_group()
"""


def test_two_processes_reduce_to_the_whole(tmp_path):
    ranks = [forked.start([sys.executable, "-c", _REDUCE, str(rank), tmp_path / "rendezvous"]) for rank in (0, 1)]
    errors = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


def test_importing_metrics_stays_light():
    code = (
        "import sys, densecal.metrics; from densecal.metrics import CalibrationMeter;"
        "bad = {'timm', 'segmentation_models_pytorch', 'lightning_fabric', 'matplotlib'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
