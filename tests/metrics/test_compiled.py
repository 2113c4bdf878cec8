"""The compiled passes give the bits that NumPy gives, function by function and in whole evaluations."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter

from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.metrics import compiled, sketch
from densecal.metrics.calibration import CalibrationMeter
from densecal.metrics.cases import neighbour_confidences
from densecal.metrics.confusion import ConfusionMeter, winners
from densecal.metrics.geometry import MAX_LIMIT, distance_squared
from densecal.metrics.levels import boundary_zones
from densecal.metrics.regions import object_size
from densecal.metrics.segmentation import SegmentationMeter, _count_quadrants, count_levels
from densecal.metrics.structure import centroid_cut, weighted_f_of_levels

needs_native = pytest.mark.skipif(compiled.native is None, reason="installed without a compiler")


@st.composite
def pictures(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw a map and its mask: blobs or noise, any size from one pixel, also wider than a block of distances."""
    shape = draw(st.tuples(st.integers(1, 40), st.integers(1, 150)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = gaussian_filter(rng.normal(size=shape), draw(st.sampled_from([0.0, 1.0, 5.0])))
    z = (noise - noise.mean()) / (noise.std() or 1.0)
    mask = z > draw(st.sampled_from([-9.0, -1.0, 0.0, 1.0, 2.0, 9.0]))
    levels = 255 / (1 + np.exp(-draw(st.sampled_from([0.0, 0.5, 2.0, 9.0])) * z - rng.normal(size=shape)))
    return np.clip(levels.round() + draw(st.sampled_from([0, 30, -30])), 0, 255).astype(np.uint8), mask


def figures(levels: np.ndarray, mask: np.ndarray) -> list[object]:
    """Return what every compiled function is for."""
    zones = boundary_zones(mask)
    meter, scores = CalibrationMeter(), SegmentationMeter()
    meter.update(levels, mask)
    scores.update(levels, mask)
    return [
        count_levels(levels, mask).tolist(),
        count_levels(levels, mask, zones, 3).tolist(),
        _count_quadrants(levels, mask).tolist(),
        zones.tolist(),
        *(distance_squared(mask, limit).tolist() for limit in (1, 7, 100, MAX_LIMIT)),
        centroid_cut(mask),
        object_size(mask),
        neighbour_confidences(np.maximum(levels, 255 - levels), levels > 127, None),
        neighbour_confidences(levels, (levels // 50), None),
        weighted_f_of_levels(levels, mask),
        {name: sums.tolist() for name, sums in scores.exact_sums().integers().items()},
        meter.sketch.to_bytes(),
    ]


@needs_native
@given(pictures())
@settings(max_examples=50, deadline=None)
def test_every_function_gives_the_bits_of_numpy(pair: tuple[np.ndarray, np.ndarray]):
    with_native = figures(*pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "native", None)
        without = figures(*pair)
    for own, other in zip(with_native, without, strict=True):
        assert repr(own) == repr(other)  # NaN equals NaN there


@needs_native
def test_large_pictures_are_scored_in_chunks_with_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("densecal.io.row_chunks.CHUNK", 900)
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:120, :90]
    mask = np.hypot(y - 60, x - 40) < 35
    levels = np.clip(mask * 200 + rng.normal(0, 60, mask.shape), 0, 255).astype(np.uint8)
    scores = weighted_f_of_levels(levels, mask)
    monkeypatch.setattr("densecal.io.row_chunks.CHUNK", 1 << 20)
    assert scores == weighted_f_of_levels(levels, mask)
    monkeypatch.setattr(compiled, "native", None)
    assert scores == weighted_f_of_levels(levels, mask)


def softmax_maps(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return probabilities of K classes (B, K, H, W), some of which are tied, certain or on an edge of a bin."""
    z = rng.normal(size=shape) * rng.choice([1, 10, 40])
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[:, :, 0, 0] = 1 / shape[1]
    p[:, :, -1, -1] = 0
    p[:, -1, -1, -1] = 1
    p[0, :2, 0, -1], p[0, 2:, 0, -1] = (0.7, 0.3), 0
    p = p.astype(dtype)
    p[0, -1, -1, -1] += 1e-7  # 1.0000001, which float32 softmaxes give
    return p


@needs_native
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 6, 19]), st.sampled_from([np.float32, np.float64]),
    st.booleans(), st.booleans(), st.sampled_from([1, 10, 15, 300]), st.sampled_from([100, 1 << 20]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_softmax_maps_are_counted_with_the_bits_of_numpy(seed, classes, dtype, void, boundary, bins, exact_pixels):
    states = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "EXACT_PIXELS", exact_pixels)
        patch.setattr(sketch, "_CHUNK", 1 << 9)  # images of several parts
        for native in (compiled.native, None):
            patch.setattr(compiled, "native", native)
            rng, meter = np.random.default_rng(seed), CalibrationMeter(bins, classes, boundary=boundary)
            for label_type in (np.uint8, np.int64):
                p = softmax_maps(rng, (2, classes, *rng.integers(2, 40, 2)), dtype)
                y = rng.integers(0, classes, (2, *p.shape[2:])).astype(label_type)
                if void:
                    y[rng.random(y.shape) < 0.3] = 255
                    p[np.broadcast_to((y == 255)[:, None], p.shape)] = rng.choice([np.nan, np.inf, -3])
                meter.update(p, y)
            states.append((meter.state_dict(), meter.sketch.to_bytes()))
    for name, table in states[0][0].items():
        np.testing.assert_array_equal(table, states[1][0][name], err_msg=name)
    assert states[0][1] == states[1][1]


@needs_native
@pytest.mark.parametrize("value", [np.nan, 1.1, -0.1, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_are_no_probabilities_is_refused_and_not_counted(value, dtype, monkeypatch: pytest.MonkeyPatch):
    good = softmax_maps(np.random.default_rng(0), (1, 3, 30, 30), dtype)
    labels, messages = good.argmax(axis=1), []
    for native in (compiled.native, None):
        monkeypatch.setattr(compiled, "native", native)
        meter = CalibrationMeter(num_classes=3)
        meter.update(good, labels)
        before = meter.sketch.to_bytes()
        for wrong in (value, 0.5):  # outside [0, 1], or a sum that is not 1
            bad = good.copy()
            bad[0, :, 20, 7] = wrong
            with pytest.raises(ValueError, match="probabilities") as error:
                meter.update(bad, labels)
            messages.append(str(error.value))
        assert meter.sketch.to_bytes() == before
    assert messages[:2] == messages[2:]


@needs_native
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 19, 256]), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=30, deadline=None)
def test_winners_and_pairs_of_classes_are_those_of_numpy(seed, classes, dtype):
    rng, results = np.random.default_rng(seed), []
    p = rng.integers(0, 9, (classes, *rng.integers(1, 40, 2))).astype(dtype)  # many ties
    y = rng.integers(0, classes, p.shape[1:]).astype(np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        for native in (compiled.native, None):
            patch.setattr(compiled, "native", native)
            winner, largest = winners(p)
            assert largest.dtype == dtype
            meter = ConfusionMeter(classes)
            for void in (None, 1, 255):
                meter.update(winner, y, void)
            results.append([winner.tolist(), largest.tolist(), meter.exact_sums().values()["matrix"].tolist()])
    assert results[0] == results[1]


@needs_native
def test_a_label_that_is_no_class_is_refused_before_it_is_counted():
    meter = ConfusionMeter(3)
    predicted = np.array([0, 1, 3], np.uint8)
    for first, second in ((predicted, predicted * 0), (predicted * 0, predicted)):
        with pytest.raises(ValueError, match="found 0 to 3; expected 0 to 2"):
            meter.update(first, second)
    assert not meter.exact_sums().values()["matrix"].any()


def write_maps(folder, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    for part in ("maps", "masks"):
        (folder / part).mkdir()
    for i in range(5):
        shape = (int(rng.integers(5, 60)), int(rng.integers(5, 150)))
        z = 9 * gaussian_filter(rng.normal(size=shape), 3)
        mask = (z + rng.normal(0, 0.3, shape) > 0).astype(np.uint8)
        p = 1 / (1 + np.exp(-3 * z))
        if kind == "classes":
            np.save(folder / "maps" / f"{i}.npy", np.stack([1 - p, 0.7 * p, 0.3 * p]).astype(np.float32))
            mask[rng.random(shape) < 0.1] = 255
        elif kind == "floats":
            np.save(folder / "maps" / f"{i}.npy", p.astype(np.float32))
            mask *= 255
        else:
            top, dtype = (255, np.uint8) if kind == "8 bits" else (65535, np.uint16)
            Image.fromarray(np.rint(p * top).astype(dtype)).save(folder / "maps" / f"{i}.png")
            mask *= 255
            if i == 0:
                mask[0, 0] = 128
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")


@needs_native
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["8 bits", "16 bits", "floats", "classes"])
def test_evaluations_are_the_same_byte_for_byte(kind: str, full: bool, tmp_path, monkeypatch: pytest.MonkeyPatch):
    write_maps(tmp_path, 3, kind)
    options = Settings(full=full, classes=3 if kind == "classes" else None)
    pages = []
    for native in (compiled.native, None):
        monkeypatch.setattr(compiled, "native", native)
        pages.append(evaluate(tmp_path / "maps", tmp_path / "masks", settings=options).record.to_json())
    assert json.dumps(pages[0]) == json.dumps(pages[1])


@needs_native
def test_arrays_of_another_size_are_refused():
    native, mask = compiled.native, np.zeros((4, 5), bool)
    with pytest.raises(ValueError, match="found 20 bytes"):
        native.distance_squared(mask, np.zeros((4, 6), np.uint16), 4, 6, 3)
    with pytest.raises(ValueError, match="found 40 bytes"):
        native.distance_squared(mask.astype(np.uint16), np.zeros((4, 5), np.uint16), 4, 5, 3)
    with pytest.raises(ValueError, match="limit"):
        native.distance_squared(mask, np.zeros((4, 5), np.uint16), 4, 5, MAX_LIMIT + 1)
    with pytest.raises(ValueError, match="contiguous"):
        native.count_objects(np.asfortranarray(mask), 4, 5)
    with pytest.raises(ValueError, match="rows 0 to 5"):
        native.missed(mask, mask, np.zeros(256), np.zeros(4), 4, 5, 0, 5)
    with pytest.raises(ValueError, match="picture"):
        native.count_objects(mask, -4, -5)
    p, byte, table = np.zeros((3, 20), np.float32), np.zeros(20, np.uint8), np.zeros((1, 10, 4), np.int64)
    wide, fine = np.zeros(20), np.zeros((4, 4), np.int64)
    with pytest.raises(ValueError, match="expected 20 items of 8"):
        native.tally(p[0], byte, None, table, None, 20, 1, 10, 7)
    with pytest.raises(ValueError, match="2 groups"):
        native.tally(wide, byte, None, table, fine, 20, 2, 10, 7)
    with pytest.raises(ValueError, match="found 128 bytes"):
        native.tally(wide, byte, None, table, fine, 20, 1, 10, 7)
    with pytest.raises(ValueError, match="expected 40 items of 4"):
        native.tally_classes(p, byte, None, table, None, 2, 1, 20, 10, 7)
    with pytest.raises(ValueError, match="found 128 bytes"):
        native.tally_classes(p[0], byte, None, table, fine, 1, 1, 20, 10, 7)
    with pytest.raises(ValueError, match="found 19 bytes"):
        native.tally_classes(p[0], byte, byte[1:], table, None, 1, 1, 20, 10, 7)
    with pytest.raises(ValueError, match="6 steps"):
        native.tally_classes(p[0], byte, None, table, None, 1, 1, 20, 10, 6)
    with pytest.raises(ValueError, match="pixels 10 to 21 of 20"):
        native.winners(p, byte, p[0], 3, 20, 10, 11)
    with pytest.raises(ValueError, match="found 80 bytes"):
        native.winners(p.astype(np.float64), byte, p[0], 3, 20, 0, 20)
    with pytest.raises(ValueError, match="257 classes"):
        native.count_pairs(byte, byte, np.zeros((257, 257), np.int64), 20, 257, 255)
    with pytest.raises(ValueError, match="expected 20 floats"):
        native.rank_classes(byte, byte, None, p[0], wide[None], byte, wide, byte[:1], 0, 0, 1, 20, 0, 20)
    with pytest.raises(ValueError, match="found 160 bytes"):
        native.rank_classes(p, byte, None, p[0], wide[None], byte, wide, byte[:1], 0, 0, 3, 20, 0, 20)
    with pytest.raises(ValueError, match="found 160 bytes"):
        native.rank_classes(p, byte, None, wide, wide[None], byte, np.zeros((2, 20)), byte[:1], 0, 0, 3, 20, 0, 20)
    with pytest.raises(ValueError, match="found 19 bytes"):
        native.rank_classes(p, byte, byte[1:], p[0], wide[None], byte, np.zeros(40), byte[:1], 0, 0, 3, 20, 0, 20)


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch):
    if compiled.native is not None:
        monkeypatch.setattr(compiled.native, "API", compiled._API + 1)
    assert compiled._load() is None
