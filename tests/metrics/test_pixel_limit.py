"""Figures are exact to 10^18 pixels, and more pixels are refused before anything overflows."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from densecal.integrations.torchmetrics import CalibrationMetric
from densecal.metrics import CalibrationMeter, ConfusionMeter, SegmentationMeter, count_tables
from densecal.metrics import sketch as sketch_module
from densecal.metrics.curves import Atoms, _harmonic_difference, aurc, error_auroc, sweep
from densecal.metrics.exact import PIXEL_LIMIT
from densecal.metrics.image_rows import RowTable
from densecal.metrics.levels import level_rows
from densecal.posthoc.logit_histogram import LogitHistogram
from tests.metrics import exact_reference as exact
from tests.metrics.test_meter import figures_of

BINS = 10
TOLERANCE = {"rel": 1e-12, "abs": 1e-12}


@pytest.fixture(autouse=True, scope="module")
def small_tables():
    """Use sixteen fine bins per octave instead of 1024: merging is quick, and every value below still has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch_module, "STEPS_SIGMOID", 4)
        patch.setattr(sketch_module, "STEPS_SOFTMAX", 4)
        yield


def repeat(meter, times):
    """Return a meter that has counted every image of another so many times, by doubling and adding; one row each."""
    rows = meter.sketch.image_rows() * float(times)
    meter.sketch.rows = RowTable(rows.shape[1])
    meter.sketch.bin_pixels()
    total = meter._empty()
    while times:
        if times & 1:
            total.merge(meter)
        times >>= 1
        if times:
            meter.merge(meter)
    total.sketch.add_rows(rows)
    return total


def float_meter(values, labels):
    meter = CalibrationMeter(bins=BINS)
    meter.update(torch.tensor(values, dtype=torch.float64), torch.tensor(labels))
    return meter


def level_meter(levels, labels, kind):
    meter = CalibrationMeter(bins=BINS)
    meter.update(np.array(levels, kind), np.array(labels))
    return meter


def top_atom(value, label):
    """Return confidence and whether it is right, of an exact probability of foreground."""
    return max(value, 1 - value), int((value > Fraction(1, 2)) == (label == 1))


def with_bins(atoms):
    return [(min(int(value * BINS), BINS - 1), value, n, hits) for value, n, hits in atoms]


# Values of different fine bins, so that the bins hold single values; they are their own float.
floats = st.integers(0, 64).map(lambda k: k / 64)
pixels = st.lists(st.tuples(floats, st.integers(0, 1)), min_size=1, max_size=4)
levels = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 1)), min_size=1, max_size=4)
numbers = st.integers(0, 57).flatmap(lambda k: st.integers(1 << k, (2 << k) - 1))


@settings(max_examples=5)
@given(pixels, numbers, pixels, numbers, levels, numbers, st.sampled_from(["uint8", "uint16"]))
@example([(0.75, 1), (0.875, 0)], 2**37, [(0.25, 0)], 1, [(255, 1)], 1, "uint8")
@example([(1.0, 1)], 1, [(0.0, 0)], 1, [(254, 0), (255, 1)], 2 * 10**14, "uint8")
@example([(0.75, 1), (0.5, 0)], 2 * 10**17, [(0.25, 1)], 3, [(255, 1), (3, 0), (200, 1)], 10**17, "uint16")
def test_every_figure_is_that_of_fractions_however_many_pixels(first, n1, second, n2, third, n3, kind):
    top = int(np.iinfo(kind).max)
    atoms, meter = [], CalibrationMeter(bins=BINS)
    for part, n in ((first, n1), (second, n2)):
        meter.merge(repeat(float_meter(*zip(*part, strict=True)), n))
        atoms += [(Fraction(p), n, y * n) for p, y in part]
    meter.merge(repeat(level_meter([v * (top // 255) for v, _ in third], [y for _, y in third], kind), n3))
    atoms += [(Fraction(v, 255), n3, y * n3) for v, y in third]
    check_binary(meter.compute(), atoms)


def check_binary(r, atoms):
    foreground = exact.merge(atoms)
    background = exact.merge([(1 - v, n, n - h) for v, n, h in atoms])
    sides = [
        (top_atom(v, y)[0], n, n * top_atom(v, y)[1]) for v, both, h in atoms for y, n in ((1, h), (0, both - h)) if n
    ]
    confident = exact.merge(sides)
    total = sum(n for _, n, _ in atoms)
    width = exact.figures(exact.equal_width(with_bins(confident), BINS))
    mass = exact.figures(exact.equal_mass(confident, BINS))
    swept = exact.sweep(confident)
    expected = {
        **{f"{name}_ew": width[name] for name in ("ece", "oe", "ue")},
        **{f"{name}_em": mass[name] for name in ("ece", "oe")},
        **{f"{name}_sweep": exact.figures(swept)[name] for name in ("ece", "oe")},
        "oe_ew_weighted": width["oe_weighted"],
        "mce": width["mce"],
        "ece_debias": width["debias"],
        "sweep_bins": len(swept),
        "accuracy": Fraction(sum(h for _, _, h in confident), total),
        "mean_confidence": sum(v * n for v, n, _ in confident) / total,
        "brier": sum((1 - v) ** 2 * h + v**2 * (n - h) for v, n, h in atoms) / total,
        "ece_foreground": exact.figures(exact.equal_width(with_bins(foreground), BINS))["ece"],
        "sce": sum(exact.figures(exact.equal_width(with_bins(c), BINS))["ece"] for c in (background, foreground)) / 2,
        "ace": sum(exact.adaptive(c, BINS) for c in (background, foreground)) / 2,
        "aurc": exact.aurc(confident),
    }
    if 0 < sum(h for _, _, h in confident) < total:
        expected["auroc_error"] = exact.error_auroc(confident)
    actual = {name: getattr(r, name) for name in expected}
    assert actual == pytest.approx({name: float(value) for name, value in expected.items()}, **TOLERANCE)
    assert r.pixels == total
    assert sum(r.reliability.count.tolist()) == total
    assert [int(n) for n in r.reliability.count] == counts_by_bin(confident)


def counts_by_bin(atoms):
    counts = [0] * BINS
    for index, _, n, _ in with_bins(atoms):
        counts[index] += n
    return counts


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("times", [1, 2**38 + 1, 3 * 10**16])
def test_class_wise_figures_are_exact_too(multilabel, times):
    p = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.25, 0.125, 0.625], [0.0, 0.0, 1.0]])
    y = np.array([0, 2, 2, 1])
    onehot = np.eye(3, dtype=np.int64)[y]
    meter = CalibrationMeter(bins=BINS, num_classes=3, multilabel=multilabel)
    meter.update(p, onehot if multilabel else y)
    r = repeat(meter, times).compute()
    channels = [
        exact.merge((Fraction(v), times, int(h) * times) for v, h in zip(p[:, k], onehot[:, k], strict=True))
        for k in range(3)
    ]
    classwise = [exact.figures(exact.equal_width(with_bins(atoms), BINS))["ece"] for atoms in channels]
    if multilabel:
        top = [top_atom(Fraction(v), h) for v, h in zip(p.ravel(), onehot.ravel(), strict=True)]
    else:
        top = [(Fraction(row.max()), int(row.argmax() == label)) for row, label in zip(p, y, strict=True)]
    confident = exact.merge((c, times, right * times) for c, right in top)
    expected = {
        "sce": sum(classwise) / 3,
        "ace": sum(exact.adaptive(atoms, BINS) for atoms in channels) / 3,
        "ece_ew": exact.figures(exact.equal_width(with_bins(confident), BINS))["ece"],
        "ece_em": exact.figures(exact.equal_mass(confident, BINS))["ece"],
        "sweep_bins": len(exact.sweep(confident)),
        "auroc_error": exact.error_auroc(confident),
        "aurc": exact.aurc(confident),
    }
    actual = {name: getattr(r, name) for name in expected}
    assert actual == pytest.approx({name: float(value) for name, value in expected.items()}, **TOLERANCE)


def test_boundary_bands_are_exact():
    p, y = torch.full((1, 4, 30), 0.75), torch.zeros(1, 4, 30, dtype=torch.int64)
    y[..., :2] = 1
    for given_map in (p, (p * 65535).round().to(torch.uint16)):
        meter = CalibrationMeter(bins=BINS)
        meter.update(given_map, y)
        once = meter.compute()
        many = repeat(meter, 10**15).compute()
        assert (once.ece_boundary_5, once.ece_boundary_15) == pytest.approx(
            (many.ece_boundary_5, many.ece_boundary_15), **TOLERANCE
        )
        assert once.ece_boundary_5 != pytest.approx(once.ece_boundary_15)


@settings(max_examples=15)
@given(st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=1, max_size=5), st.booleans())
@example([(10**16, 0.5), (10**16, 0.5)], True)
def test_curves_of_atoms_are_those_of_fractions(parts, nudge):
    """A sweep ends at a drop of one pixel in 10^16."""
    values = np.linspace(0.5, 1.0, len(parts))
    count = np.array([n for n, _ in parts])
    hits = np.array([int(n * share) for n, share in parts])
    hits[0] += nudge and hits[0] < count[0]
    atoms = Atoms.from_counts(values, count, hits)
    listed = [(Fraction(v), int(n), int(h)) for v, n, h in zip(values, count, hits, strict=True)]
    assert len(sweep(atoms).count) == len(exact.sweep(listed))
    assert aurc(atoms) == pytest.approx(exact.aurc(listed), **TOLERANCE)
    if 0 < hits.sum() < count.sum():
        assert error_auroc(atoms) == pytest.approx(float(exact.error_auroc(listed)), **TOLERANCE)


@pytest.mark.parametrize("seen", [0, 7, 998, 999, 10**6, 10**12, 10**17])
@pytest.mark.parametrize("count", [1, 10, 10**7, 10**17])
def test_differences_of_harmonic_numbers_keep_their_digits(seen, count):
    """Two digammas near 10^17 agree in all digits but the last."""
    with mpmath.workdps(60):
        expected = float(mpmath.digamma(seen + count + 1) - mpmath.digamma(seen + 1))
    actual = _harmonic_difference(np.array([float(seen)]), np.array([float(count)]))
    assert actual.tolist() == pytest.approx([expected], rel=5e-12, abs=0)


def test_rows_of_an_image_are_exact_for_any_number_of_pixels():
    counts = np.zeros((1, 2, 256), np.int64)
    counts[0, :, 200], counts[0, 1, 255] = (10**17, 3 * 10**17), 5 * 10**17
    row = level_rows(counts, BINS)[0]
    assert row[0] == pytest.approx(9 * 10**17)
    assert row[2] == pytest.approx(float(Fraction(200 * 4 * 10**17, 255) + 5 * 10**17), rel=1e-14)


# ------------------------------------------------------------------ the limit


def nearly_full():
    return repeat(float_meter([0.75], [1]), PIXEL_LIMIT - 1)


def test_a_pixel_past_the_limit_is_refused_and_changes_nothing():
    meter = nearly_full()
    before = meter.compute().as_dict()
    one, two = np.zeros((1, 2, 256), np.int64), float_meter([0.75, 0.5], [1, 0])
    one[0, 1, 255] = 2
    for change in (
        lambda: meter.update([0.75, 0.5], [1, 0]),
        lambda: meter.update(np.array([3, 4], np.uint8), [1, 0]),
        lambda: meter.merge(two),
        lambda: meter.sketch.add_levels(one),
        lambda: meter.merge(meter),
    ):
        with pytest.raises(ValueError, match="pixels in all; expected at most 1,000,000,000,000,000,000"):
            change()
        assert str(meter.compute().as_dict()) == str(before)
    meter.update([0.75], [1])
    assert meter.compute().pixels == PIXEL_LIMIT
    assert meter.compute().ece_ew == pytest.approx(0.25, abs=1e-12)


def test_every_channel_of_a_multi_label_map_counts_towards_the_limit():
    meter = CalibrationMeter(num_classes=12, multilabel=True, boundary=False)
    meter.update(torch.full((1, 12), 0.75), torch.ones(1, 12, dtype=torch.int64))
    full = repeat(meter, PIXEL_LIMIT // 12)
    assert full.compute().ece_foreground == pytest.approx(0.25, abs=1e-12)
    with pytest.raises(ValueError, match="pixels in all"):
        full.update(torch.full((1, 12), 0.75), torch.ones(1, 12, dtype=torch.int64))


def test_an_image_too_large_for_the_limbs_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(sketch_module, "_MAX_IMAGE", 8)
    meter = CalibrationMeter()
    meter.update(torch.rand(8), torch.ones(8))
    with pytest.raises(ValueError, match="an image of 9 values; expected at most 8"):
        meter.update(torch.rand(9), torch.ones(9))
    assert meter.compute().pixels == 8


@pytest.mark.parametrize("table", ["top", "levels", "classes"])
def test_a_state_that_has_overflowed_is_refused(table):
    meter = float_meter([0.75, 0.5], [1, 0])
    state, before = meter.state_dict(), meter.compute().as_dict()
    state[table].reshape(-1)[1] = -(2**40)
    with pytest.raises(ValueError, match=f"negative numbers in {table}"):
        meter.load_state_dict(state)
    state[table].reshape(-1)[:4] = 2**62
    if table != "classes":
        with pytest.raises(ValueError, match="pixels in all"):
            meter.load_state_dict(state)
    assert str(meter.compute().as_dict()) == str(before)


def test_a_state_of_the_limit_is_restored():
    full, restored = nearly_full(), CalibrationMeter(bins=BINS)
    restored.load_state_dict(full.state_dict())
    assert str(restored.compute().as_dict()) == str(full.compute().as_dict())
    with pytest.raises(ValueError, match="pixels in all"):
        restored.merge(float_meter([0.75, 0.5], [1, 0]))


def test_pixels_are_carried_long_before_the_limbs_are_full(monkeypatch):
    p = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0))
    once, parts = CalibrationMeter(), CalibrationMeter()
    once.update(torch.cat([p] * 4), torch.cat([p > 0.4] * 4))
    assert "top_whole" not in once.sketch.tables
    monkeypatch.setattr(count_tables, "_CARRY_EVERY", 20)
    for _ in range(4):
        parts.update(p, p > 0.4)
    assert parts.sketch.tables["top_whole"].any()
    assert int(parts.sketch.tables["top"][:, 2:].max()) < 2**28
    assert figures_of(parts) == pytest.approx(figures_of(once), nan_ok=True, **TOLERANCE)


def test_the_metric_of_torchmetrics_keeps_what_was_carried(monkeypatch):
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 10)
    maps = [torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    metric, meter = CalibrationMetric(), CalibrationMeter()
    for p in maps:
        meter.update(p, p > 0.3)
    monkeypatch.setattr(count_tables, "_CARRY_EVERY", 20)
    for p in maps:
        metric.update(p, p > 0.3)
    assert bool(metric.top_whole.any())
    assert bool(metric.fine_whole.any())
    actual = {name: float(value) for name, value in metric.compute().items()}
    assert actual == pytest.approx(figures_of(meter), nan_ok=True, **TOLERANCE)


@pytest.mark.parametrize("kind", ["segmentation", "confusion"])
def test_meters_of_segmentation_refuse_to_overflow(kind):
    meter = SegmentationMeter(full=False) if kind == "segmentation" else ConfusionMeter(2)
    mask = np.array([[True, False, True, True]])
    if kind == "segmentation":
        meter.update(mask.astype(np.uint8) * 255, mask)
    else:
        meter.update(mask.astype(np.int64), mask.astype(np.int64))
    key = "pooled" if kind == "segmentation" else "matrix"
    while int(meter.state_dict()[key].sum()) <= PIXEL_LIMIT // 2:
        meter.merge(meter)
    before = meter.state_dict()
    with pytest.raises(ValueError, match="pixels in all"):
        meter.merge(meter)
    after = meter.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert meter.compute().dice == 1.0


def test_a_histogram_of_logits_refuses_to_overflow():
    histogram = LogitHistogram()
    histogram.update(torch.tensor([1.0, -1.0]), torch.tensor([1, 0]))
    counts = np.zeros((2, 256), np.int64)
    counts[1, 7] = PIXEL_LIMIT - 2
    histogram.add_levels(counts)
    assert (histogram.pixels, histogram.foreground) == (PIXEL_LIMIT, PIXEL_LIMIT - 1)
    counts[1, 7] = 1
    for change in (
        lambda: histogram.add_levels(counts),
        lambda: histogram.update(torch.tensor([1.0]), torch.tensor([1])),
        lambda: histogram.merge(histogram),
    ):
        with pytest.raises(ValueError, match="pixels in all"):
            change()
        assert histogram.pixels == PIXEL_LIMIT
