"""What a sketch keeps: single pixels up to a limit, fine bins beyond it, and the same figures from both."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from densecal.errors import InputError
from densecal.metrics import CalibrationMeter, calibration_errors
from densecal.metrics import sketch as sketch_module
from densecal.metrics.curves import SWEEP_MAX_BINS, Atoms, ReliabilityCurve, equal_mass, error_auroc, sweep
from densecal.metrics.sketch import Sketch
from densecal.metrics.sketch_files import _settings
from tests.metrics import reference
from tests.metrics.test_calibration import close, make_maps


def meter_of(pixels, **options):
    """Return a meter that has counted one float map of this many pixels."""
    meter = CalibrationMeter(boundary=False, **options)
    classes = options.get("num_classes", 1)
    generator = torch.Generator().manual_seed(pixels)
    p = torch.rand(pixels, generator=generator) if classes == 1 else torch.full((pixels, classes), 1 / classes)
    meter.update(p, torch.randint(2, (pixels,), generator=generator))
    return meter


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 50)
    return 50


def test_pixels_are_kept_up_to_the_limit_and_binned_beyond_it(limit):
    assert not meter_of(limit).sketch.is_binned
    assert meter_of(limit + 1).sketch.is_binned
    assert sum(values.shape[1] for values, _ in meter_of(limit).sketch.raw) == limit
    assert meter_of(limit + 1).sketch.raw == []


def test_classes_share_the_limit_on_kept_values(monkeypatch):
    monkeypatch.setattr(sketch_module, "_MAX_RAW_VALUES", 60)
    assert not meter_of(60).sketch.is_binned
    assert meter_of(61).sketch.is_binned
    assert not meter_of(20, num_classes=3).sketch.is_binned
    assert meter_of(21, num_classes=3).sketch.is_binned


def test_a_million_pixels_are_exact():
    assert sketch_module.EXACT_PIXELS == 2**20
    assert sketch_module._MAX_RAW_VALUES // 64 == 2**20  # for 64 classes still


def test_merged_meters_are_binned_if_together_they_hold_too_many_pixels(limit):
    small, other = meter_of(30), meter_of(21)
    small.merge(other)
    assert small.sketch.is_binned
    assert not other.sketch.is_binned
    assert small.compute().pixels == 51
    exact = meter_of(30)
    exact.merge(meter_of(20))
    assert not exact.sketch.is_binned


def test_a_state_remembers_how_near_the_limit_is(limit):
    again = CalibrationMeter(boundary=False)
    again.load_state_dict(meter_of(30).state_dict())
    assert not again.sketch.is_binned
    again.update(torch.rand(21), torch.ones(21))
    assert again.sketch.is_binned
    assert again.compute().pixels == 51


def test_a_binned_sketch_stays_binned():
    meter = meter_of(10)
    meter.sketch.bin_pixels()
    meter.update(torch.rand(5), torch.ones(5))
    assert meter.sketch.raw == []
    assert meter.compute().pixels == 15


@pytest.mark.parametrize("kind", ["float", "uint8"])
def test_merging_leaves_the_other_meter_alone_and_a_state_is_a_copy(kind):
    def maps(seed):
        p, y = make_maps(2, 6, 6, seed)
        return (p if kind == "float" else (255 * p).round().to(torch.uint8)), y

    empty, other = CalibrationMeter(), CalibrationMeter()
    other.update(*maps(0))
    before = other.compute().as_dict()
    empty.merge(other)
    empty.update(*maps(1))
    assert other.compute().as_dict() == before
    state = other.state_dict()
    other.update(*maps(2))
    for _ in range(2):
        restored = CalibrationMeter()
        restored.load_state_dict(state)
        assert restored.compute().as_dict() == before
        restored.update(*maps(2))


@pytest.mark.parametrize("classes", [1, 3])
def test_void_pixels_belong_to_their_image_however_images_are_grouped(classes, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(4, classes, 4, 5, generator=generator, dtype=torch.float64)
    p = p if classes == 1 else p / p.sum(1, True)
    y = torch.randint(2, (4, 4, 5), generator=generator)
    for image in range(4):
        y[image, image] = 9
    figures = []
    for chunk in (1 << 21, 40, 20, 7):  # four images at once, two, one, part of one
        monkeypatch.setattr(sketch_module, "_CHUNK", chunk)
        meter = CalibrationMeter(num_classes=classes, ignore_index=9)
        meter.update(p, y)
        figures.append({name: value for name, value in meter.compute().as_dict().items() if name != "ci"})
    assert meter.compute().pixels == 60
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("classes", "share"), [(1, 2**-9), (3, 2**-6)])
def test_binned_values_are_told_apart_by_their_relative_distance_to_0_and_1(classes, share):
    """A fine bin is 1/1024 of its octave wide, for several classes 1/128."""
    for value in (0.3, 1e-3, 1e-9):
        pair = torch.tensor([value, value * (1 + share)], dtype=torch.float64)
        p = torch.stack([pair, 1 - pair, torch.zeros(2)][:classes], dim=1)
        meter = CalibrationMeter(num_classes=classes)
        meter.update(p[:, 0] if classes == 1 else p, torch.zeros(2))
        meter.sketch.bin_pixels()
        actual, pixels, _ = meter.sketch.class_atoms(0)
        assert sorted(actual) == pytest.approx(pair.tolist(), rel=1e-6)
        assert pixels.tolist() == [1, 1]


def test_masks_may_be_booleans_of_any_byte():
    """Pillow returns booleans whose byte is 255."""
    masks = torch.from_numpy(np.array([255, 0, 1, 0], np.uint8).view(bool))
    r = calibration_errors(torch.tensor([0.9, 0.1, 0.8, 0.2]), masks)
    assert (r.accuracy, r.pixels) == (1.0, 4)


def test_no_pixel_has_a_brier_score_below_0():
    for tiny in np.geomspace(1e-10, 1e-6, 40):
        p = torch.tensor([[1 - tiny, tiny / 3, 2 * tiny / 3]], dtype=torch.float64)
        assert 0 <= calibration_errors(p, torch.tensor([0]), num_classes=3).brier < 1e-11


def test_a_meter_that_has_seen_nothing_has_a_table_without_rows():
    empty = CalibrationMeter(bins=7)
    assert empty.sketch.image_rows().shape == (0, 12)
    empty.load_state_dict(empty.state_dict())
    empty.update([0.9, 0.2], [1, 0])
    assert empty.sketch.image_rows().shape == (1, 12)


@pytest.mark.parametrize(
    ("here", "there"), [({}, {"bins": 15}), ({"num_classes": 3}, {"num_classes": 4}), ({}, {"num_classes": 3})]
)
def test_a_state_with_other_settings_is_refused(here, there):
    with pytest.raises(ValueError, match="state of shape"):
        CalibrationMeter(**here).load_state_dict(CalibrationMeter(**there).state_dict())


def test_integer_maps_of_several_classes_are_refused():
    with pytest.raises(ValueError, match="integer maps are binary"):
        Sketch(num_classes=3).add_levels(np.zeros((1, 2, 256), np.int64))


def test_more_than_a_hundred_classes_are_told_apart():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(150, 0.05), 60)
    labels = np.where(rng.random(60) < 0.6, p.argmax(1), rng.integers(0, 150, 60))
    labels[:5] = 149
    r = calibration_errors(p, labels, num_classes=150)
    onehot = np.eye(150)[labels]
    close(r.accuracy, (p.argmax(1) == labels).mean())
    close(r.sce, np.mean([reference.classwise(p[:, k], onehot[:, k], 10) for k in range(150)]))
    close(r.ace, np.mean([reference.adaptive(p[:, k], onehot[:, k], 10) for k in range(150)]))
    close(r.aurc, reference.aurc(p.max(1), (p.argmax(1) == labels).astype(float)))


def test_tied_classes_go_to_the_first():
    p = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert calibration_errors(p, torch.tensor([0, 1, 0]), num_classes=3).accuracy == 1
    assert calibration_errors(p, torch.tensor([1, 2, 2]), num_classes=3).accuracy == 0


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
@pytest.mark.parametrize("bins", [1, 7, 10])
def test_every_figure_of_integer_maps_equals_brute_force(kind, bins):
    rng = np.random.default_rng(1)
    top = np.iinfo(kind).max
    v = np.concatenate([rng.integers(0, top + 1, 300), [0, top, top // 2, top // 2 + 1] * 4, top * np.arange(6) // 5])
    y = (rng.random(len(v)) < v / top).astype(np.int64)
    y[300:316] = [0, 1, 0, 1, 1, 0, 1, 0] * 2
    r = calibration_errors(v.astype(kind), y, bins=bins)
    p, q = v / top, (top - v) / top
    c, a = np.maximum(p, q), ((2 * v > top) == (y == 1)).astype(float)
    width = reference.equal_width(c, a, bins)
    for actual, name in (
        (r.ece_ew, "ece"),
        (r.oe_ew, "oe"),
        (r.oe_ew_weighted, "oe_weighted"),
        (r.ue_ew, "ue"),
        (r.mce, "mce"),
    ):
        close(actual, width[name])
    close(r.ece_debias, reference.debias(c, a, bins))
    close(r.ece_em, reference.equal_mass(c, a, bins)["ece"])
    close(r.accuracy, a.mean())
    close(r.mean_confidence, c.mean())
    close(r.brier, ((p - y) ** 2).mean())
    clipped = np.clip(p, 1e-7, 1 - 1e-7)
    close(r.nll, -np.where(y == 1, np.log(clipped), np.log1p(-clipped)).mean())
    close(r.sce, np.mean([reference.classwise(q, 1.0 - y, bins), reference.classwise(p, y, bins)]))
    close(r.ace, np.mean([reference.adaptive(q, 1.0 - y, bins), reference.adaptive(p, y, bins)]))
    close(r.ece_foreground, reference.classwise(p, y, bins))
    close(r.aurc, reference.aurc(c, a))


def test_the_nll_of_probabilities_0_and_1_is_clipped_at_1e_7():
    for values in (np.array([0.0, 1.0]), np.array([0, 255], np.uint8), np.array([0, 65535], np.uint16)):
        assert calibration_errors(values, [1, 0]).nll == pytest.approx(-np.log(1e-7), rel=1e-9)
        assert calibration_errors(values, [0, 1]).nll == pytest.approx(-np.log1p(-1e-7), rel=1e-6)
    sure = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert calibration_errors(sure, [0, 1], num_classes=2).nll == pytest.approx(-np.log(1e-7), rel=1e-9)
    assert calibration_errors(sure, [1, 0], num_classes=2).nll == 0


# ------------------------------------------------------------------ curves


def atoms(value, count, hits):
    return Atoms.from_counts(np.array(value, float), np.array(count, np.int64), np.array(hits, np.int64))


@pytest.mark.parametrize(("pixels", "bins"), [(1, 1), (37, 37), (99, 99), (100, 100), (101, 100), (5000, 100)])
def test_a_sweep_ends_at_a_hundred_bins_or_one_per_pixel(pixels, bins):
    rising = atoms(np.linspace(0.5, 1.0, pixels), np.ones(pixels), np.arange(pixels) >= pixels // 2)
    assert SWEEP_MAX_BINS == 100
    assert len(sweep(rising).count) == bins


@pytest.mark.parametrize("exponent", [4, 7, 10])
def test_a_sweep_stops_at_the_slightest_drop(exponent):
    n = 10**exponent
    assert len(sweep(atoms([0.6, 0.9], [n, n], [n // 2 + 1, n // 2])).count) == 1
    assert len(sweep(atoms([0.6, 0.9], [n, n], [n // 2, n // 2 + 1])).count) > 1


@pytest.mark.parametrize(("count", "hits"), [(1000, 333), (777, 111), (300, 100)])
def test_a_sweep_does_not_take_rounding_for_a_drop(count, hits):
    assert len(sweep(atoms([0.7], [count], [hits])).count) == 100


def test_a_sweep_stops_at_the_first_number_of_bins_with_a_drop():
    zigzag = atoms(np.linspace(0.5, 0.9, 6), np.ones(6), [0, 1, 1, 0, 0, 1])
    assert equal_mass(zigzag, 2).accuracy.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert equal_mass(zigzag, 3).accuracy.tolist() == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    assert len(sweep(zigzag).count) == 1


def test_larger_equal_mass_bins_come_first():
    assert equal_mass(atoms(np.linspace(0.5, 1, 11), np.ones(11), np.zeros(11)), 4).count.tolist() == [3, 3, 3, 2]
    assert equal_mass(atoms([0.5, 0.6], [1, 1], [0, 1]), 10).count.tolist() == [1, 1]


def test_empty_bins_and_bins_of_one_pixel_have_no_variance_to_correct():
    curve = ReliabilityCurve.from_sums(np.array([0, 1, 2]), np.array([0.0, 0.7, 1.8]), np.array([0, 1, 1]))
    assert curve.debias == pytest.approx((1 * 0.3**2 + 2 * (0.4**2 - 0.5 * 0.5 / 1)) / 3)
    assert curve.mce == pytest.approx(0.4)
    empty_is_worst = ReliabilityCurve(np.array([0.0, 4.0]), np.array([0.0, 0.9]), np.array([0.9, 0.8]))
    assert empty_is_worst.mce == pytest.approx(0.1)


def test_error_auroc_is_nan_unless_right_and_wrong_pixels_occur():
    assert error_auroc(atoms([0.6, 0.9], [1, 1], [0, 1])) == 1
    assert error_auroc(atoms([0.6, 0.9], [1, 1], [1, 0])) == 0
    assert error_auroc(atoms([0.6], [2], [1])) == 0.5
    for hits in ([0, 0], [1, 1]):
        with np.errstate(all="raise"):
            assert np.isnan(error_auroc(atoms([0.6, 0.9], [1, 1], hits)))


def test_sums_are_read_the_same_whether_whole_numbers_were_carried_or_not():
    rng = np.random.default_rng(0)
    sketch = Sketch()
    sketch.tables["top"] = rng.integers(1 << 59, 1 << 60, (10, 4))
    before = sketch.counts("top")
    sketch.carry()
    for sums, again in zip(before, sketch.counts("top"), strict=True):
        assert np.array_equal(sums, again)


@pytest.mark.parametrize(("classes", "multilabel"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("limit", [1 << 20, 100])
def test_bytes_hold_the_whole_state(monkeypatch, classes, multilabel, limit):
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", limit)
    p = torch.rand(2, classes, 9, 9, dtype=torch.float64)
    softmax = classes > 1 and not multilabel
    y = torch.randint(0, classes if softmax else 2, (2, 9, 9) if softmax else p.shape)
    meter = CalibrationMeter(num_classes=classes, multilabel=multilabel)
    meter.update(p / p.sum(1, True) if softmax else p, y)
    if classes == 1:
        meter.update((p * 255).to(torch.uint8), y)
    copy = Sketch.from_bytes(meter.sketch.to_bytes())
    state, copied = meter.sketch.state_dict(), copy.state_dict()
    assert state.keys() == copied.keys()
    assert all(np.array_equal(state[name], copied[name]) for name in state)
    assert copy.to_bytes() == meter.sketch.to_bytes()
    copy.merge(meter.sketch)
    assert len(copy.image_rows()) == 2 * len(state["rows"])


def test_bytes_that_are_cut_short_or_changed_are_refused():
    content = Sketch().to_bytes()
    for damaged in (content[:-1], content[:100], b"", content.replace(b"sketch/top", b"sketch/tip")):
        with pytest.raises(InputError, match=r"^from a stranger"):
            Sketch.from_bytes(damaged, "from a stranger")


@pytest.mark.parametrize(("name", "value"), [("bins", 0), ("num_classes", 0), ("raw_pixels", -1), ("boundary", 1)])
def test_settings_of_no_sketch_are_refused(name, value):
    settings = {"bins": 1, "num_classes": 1, "raw_pixels": 0, "multilabel": False, "boundary": True}
    assert _settings(SimpleNamespace(header={"sketch": settings}))[1] == 0
    with pytest.raises(ValueError, match="missing or wrong"):
        _settings(SimpleNamespace(header={"sketch": settings | {name: value}}, error=lambda *text: ValueError(text)))
