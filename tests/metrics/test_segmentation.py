"""Scores equal PySODMetrics' on any map, whatever the type of the maps, their order and split."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from sklearn.metrics import confusion_matrix, f1_score, jaccard_score

from densecal.metrics.confusion import ConfusionMeter
from densecal.metrics.segmentation import SegmentationMeter, SegmentationResult, count_levels
from tests.oracles.pysodmetrics import pysodmetrics_scores

Map = NDArray[Any]
Mask = NDArray[np.bool_]
CURVES = ("precision", "recall", "f_curve", "e_curve")


def score(pairs: list[tuple[Map, Mask]], full: bool = True) -> SegmentationResult:
    meter = SegmentationMeter(full)
    for prediction, mask in pairs:
        meter.update(prediction, mask)
    return meter.compute()


def assert_like_oracle(result: SegmentationResult, expected: dict[str, Any], tolerance: float = 1e-9) -> None:
    for name, value in expected.items():
        # S of an object whose centroid is in the last row or column is nan there.
        if not np.isnan(value).any():
            np.testing.assert_allclose(getattr(result, name), value, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same(a: SegmentationResult, b: SegmentationResult) -> None:
    assert a.as_dict() == pytest.approx(b.as_dict(), rel=0, abs=1e-12, nan_ok=True)
    for name in CURVES:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-12)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NDArray[np.uint8], Mask]:
    """Small maps of every kind: noise, few levels, constant, binary, halves; masks empty to full, and blocks."""
    height, width = draw(st.tuples(st.integers(1, 26), st.integers(1, 26)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["noise", "levels", "constant", "binary", "halves"]))
    prediction = rng.integers(0, 256, (height, width))
    if kind == "levels":
        prediction = rng.choice(rng.integers(0, 256, 3), (height, width))
    elif kind == "constant":
        prediction[:] = rng.integers(0, 256)
    elif kind == "binary":
        prediction = 255 * (prediction % 2)
    elif kind == "halves":
        prediction[: height // 2], prediction[height // 2 :] = rng.integers(0, 256, 2)
    mask = rng.random((height, width)) < draw(st.sampled_from([0.0, 0.03, 0.2, 0.8, 1.0]))
    if draw(st.booleans()):
        mask[:] = False
        mask[rng.integers(0, height) :, rng.integers(0, width) :] = True
    return prediction.astype(np.uint8), mask


def scene(seed: int, height: int, width: int) -> tuple[NDArray[np.uint8], Mask]:
    """One or two blobs and a blurred, noisy prediction of them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    mask = np.zeros((height, width), dtype=bool)
    for _ in range(1 + seed % 2):
        centre, radius = rng.uniform(0.2, 0.8, 2) * (height, width), rng.uniform(0.08, 0.3, 2) * (height, width)
        mask |= ((y - centre[0]) / radius[0]) ** 2 + ((x - centre[1]) / radius[1]) ** 2 < 1
    noise = gaussian_filter(rng.normal(size=mask.shape), 6)
    logits = 10 * gaussian_filter(mask.astype(float), 2) - 5 + 1.5 * noise / noise.std()
    return np.round(255 / (1 + np.exp(-logits))).astype(np.uint8), mask


@given(pairs())
@settings(max_examples=250, deadline=None)
def test_equals_pysodmetrics_on_small_maps(pair: tuple[Map, Mask]) -> None:
    assert_like_oracle(score([pair]), pysodmetrics_scores([pair]))


@given(pairs(), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_equals_pysodmetrics_on_float_maps(pair: tuple[Map, Mask], power: int) -> None:
    prediction = (pair[0] / 255) ** power / 2
    low, high = prediction.min(), prediction.max()
    stretched = prediction if low == high else (prediction - low) / (high - low)
    assert_like_oracle(score([(prediction, pair[1])]), pysodmetrics_scores([(stretched, pair[1])]))


@pytest.mark.parametrize("size", [1e-30, 1e-70, 1e-90])
def test_equals_pysodmetrics_where_probabilities_are_tiny_beside_the_object(size: float) -> None:
    mask = np.zeros((8, 8), dtype=bool)
    mask[0, :3] = True  # the quadrants below its centroid have no foreground
    prediction = np.where(mask, 1.0, size * np.arange(64).reshape(8, 8))
    prediction[0, 7] = 0.0
    pair = (prediction, mask)
    assert_like_oracle(score([pair]), pysodmetrics_scores([pair]))


def test_equals_pysodmetrics_on_scenes() -> None:
    scenes = [scene(seed, 90 + 10 * seed, 150 - 5 * seed) for seed in range(8)]
    assert_like_oracle(score(scenes), pysodmetrics_scores(scenes))


def test_weighted_f_is_right_far_from_the_object() -> None:
    mask = np.zeros((420, 380), dtype=bool)
    mask[5:9, 4:10] = True
    prediction = np.zeros(mask.shape, dtype=np.uint8)
    prediction[mask] = 90
    prediction[300:, 300:] = 255
    assert_like_oracle(score([(prediction, mask)]), pysodmetrics_scores([(prediction, mask)]), tolerance=1e-6)


def test_a_level_at_twice_the_mean_falls_where_pysodmetrics_puts_it() -> None:
    rng = np.random.default_rng(0)
    sides = set()
    for level in range(1, 255):
        # Eight pixels whose sum is 4 * level: the adaptive threshold is this very level.
        rest = 3 * level - 255
        values = [0, level, 255, *(v for v in (rest // 2, rest - rest // 2) if 0 < v < 255)]
        values += [0] * (8 - len(values))
        if sum(values) != 4 * level:
            continue
        prediction = rng.permutation(values).astype(np.uint8).reshape(2, 4)
        mask = prediction == level
        expected = pysodmetrics_scores([(prediction, mask)])
        assert_like_oracle(score([(prediction, mask)]), expected)
        sides.add(bool(expected["f_adaptive"] > 0))
        # Without the pixels the level counts as above, as in exact arithmetic.
        meter = SegmentationMeter(full=False)
        meter.update_levels(count_levels(prediction, mask))
        assert meter.compute().f_adaptive > 0
    assert sides == {False, True}


def test_scores_of_the_specification(vectors: dict[str, dict[str, Any]]) -> None:
    case, each = vectors["sod_metrics"], vectors["sod_metrics_per_image"]["expected"]
    maps = [np.array(p, dtype=np.uint8) for p in case["inputs"]["uint8_pred"]]
    masks = [np.array(gt) > 128 for gt in case["inputs"]["gt"]]
    result, expected = score(list(zip(maps, masks, strict=True))), case["expected"]
    names = {"fmax_mean_then_max": "f_max", "favg": "f_mean", "emax": "e_max", "eavg": "e_mean", "wfm": "f_weighted"}
    names |= {name: name for name in ("f_adaptive", "e_adaptive", "mae")} | {"smeasure": "s_measure"}
    for theirs, ours in names.items():
        assert getattr(result, ours) == pytest.approx(expected[theirs], abs=1e-12), ours
    for i, pair in enumerate(zip(maps, masks, strict=True)):
        own = score([pair])
        assert own.s_measure == pytest.approx(each["smeasure"][i], abs=1e-12)
        assert own.f_weighted == pytest.approx(each["wfm"][i], abs=1e-12)
        assert own.mae == pytest.approx(each["mae"][i], abs=1e-12)
        assert own.f_adaptive == pytest.approx(each["f_adaptive"][i], abs=1e-12)
        assert own.f_max == pytest.approx(each["fmax_each"][i], abs=1e-12)


def test_iou_of_the_specification(vectors: dict[str, dict[str, Any]]) -> None:
    case = vectors["iou"]
    probabilities = 1 / (1 + np.exp(-np.array(case["inputs"]["z"])))
    masks = np.array(case["inputs"]["y"]) == 1
    result = score(list(zip(probabilities, masks, strict=True)), full=False)
    assert result.iou == pytest.approx(case["expected"]["fg_dataset_pooled"], abs=1e-12)
    assert result.dice == pytest.approx(case["expected"]["dice_pooled"], abs=1e-12)
    meter = ConfusionMeter(2)
    for p, y in zip(probabilities, masks, strict=True):
        meter.update((p > 0.5).astype(int), y.astype(int))
    assert meter.compute().miou == pytest.approx(case["expected"]["miou_dataset_pooled"], abs=1e-12)


@pytest.mark.parametrize(
    ("below", "above"),
    [(np.uint8(127), np.uint8(128)), (np.uint16(32767), np.uint16(32768)), (0.5, np.nextafter(0.5, 1))],
)
def test_foreground_of_iou_is_above_one_half_of_the_raw_map(below: Any, above: Any) -> None:
    prediction = np.array([[below, below, above, above]])
    mask = np.array([[False, True, False, True]])
    result = score([(prediction, mask)], full=False)
    assert result.iou == pytest.approx(1 / 3)
    assert result.dice == pytest.approx(1 / 2)


def test_sixteen_bits_and_floats_score_like_the_same_eight_bit_map() -> None:
    scenes = [scene(seed, 60, 80) for seed in range(4)]
    expected = score(scenes)
    assert_same(score([(p.astype(np.uint16) * 257, m) for p, m in scenes]), expected)
    assert_same(score([(p / 255, m) for p, m in scenes]), expected)


def test_memory_layout_does_not_matter() -> None:
    prediction, mask = scene(1, 60, 80)
    for values in (prediction, prediction / 255):
        expected = score([(values, mask)])
        assert_same(score([(np.asfortranarray(values), np.asfortranarray(mask))]), expected)
        wide = np.repeat(values, 2, axis=1)[:, ::2], np.repeat(mask, 2, axis=1)[:, ::2]
        assert_same(score([wide]), expected)


def test_order_batches_and_merging_do_not_matter() -> None:
    scenes = [scene(seed, 40 + seed, 70 - seed) for seed in range(40)]
    expected = score(scenes)
    assert_same(score(scenes[::-1]), expected)

    batched = SegmentationMeter(full=False)
    counts = np.concatenate([count_levels(*pair) for pair in scenes])
    for part in (slice(0, 7), slice(7, 8), slice(8, 40)):
        batched.update_levels(counts[part])
    assert_same(batched.compute(), score(scenes, full=False))

    counted = SegmentationMeter()
    for pair, own in zip(scenes, counts, strict=True):
        counted.update(*pair, counts=own)
    assert_same(counted.compute(), expected)

    parts = [SegmentationMeter() for _ in range(3)]
    for i, pair in enumerate(scenes):
        parts[i % 3].update(*pair)
    whole = SegmentationMeter()
    for part in parts:
        copy = SegmentationMeter()
        copy.load_state_dict(part.state_dict())
        whole.merge(copy)
    assert_same(whole.compute(), expected)


def test_a_state_is_a_copy_of_constant_size() -> None:
    meter = SegmentationMeter()
    sizes = []
    for seed in range(40):
        meter.update(*scene(seed, 12, 16))
        state = meter.state_dict()
        sizes.append(sum(value.nbytes for value in state.values()))
    assert len(set(sizes)) == 1
    before = meter.compute()
    for value in state.values():
        value += 1
    assert_same(meter.compute(), before)


def test_a_fast_meter_leaves_out_structure_and_takes_any_shape() -> None:
    prediction, mask = scene(0, 30, 40)
    fast, full = score([(prediction, mask)], full=False), score([(prediction, mask)])
    assert np.isnan(fast.s_measure)
    assert np.isnan(fast.f_weighted)
    assert fast.f_max == full.f_max
    for values in (prediction, prediction / 255, prediction.astype(np.uint16) * 257):
        assert_same(score([(values.ravel(), mask.ravel())], full=False), fast)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_map_without_pixels_is_left_out(dtype: type) -> None:
    pair = scene(0, 30, 40)
    empty = np.empty((0, 4), dtype=dtype), np.empty((0, 4), dtype=bool)
    assert_same(score([empty, pair, empty]), score([pair]))
    meter = SegmentationMeter(full=False)
    meter.update_levels(np.concatenate([np.zeros((1, 2, 256), dtype=np.int64), count_levels(*pair)]))
    assert_same(meter.compute(), score([pair], full=False))


def test_quadrants_without_pixels_do_not_count_in_s() -> None:
    prediction, mask = np.array([[10, 200, 30, 90]], dtype=np.uint8), np.array([[False, True, True, False]])
    assert np.isnan(pysodmetrics_scores([(prediction, mask)])["s_measure"])
    row = score([(prediction, mask)]).s_measure
    assert 0 < row < 1
    # The same object with an empty row below: the lower quadrants now exist and are flat.
    assert np.isfinite(score([(np.vstack([prediction, prediction]), np.vstack([mask, mask]))]).s_measure)


def test_as_dict_holds_the_scalars_only() -> None:
    result = score([scene(0, 20, 20)])
    assert set(result.as_dict()) == {
        *("f_max", "f_mean", "f_adaptive", "e_max", "e_mean", "e_adaptive"),
        *("s_measure", "f_weighted", "mae", "iou", "dice"),
    }
    assert all(isinstance(value, float) for value in result.as_dict().values())
    assert all(getattr(result, name).shape == (256,) for name in CURVES)
    assert (np.diff(result.recall) <= 0).all()


def test_iou_without_any_foreground_is_undefined() -> None:
    result = score([(np.zeros((4, 4), dtype=np.uint8), np.zeros((4, 4), dtype=bool))])
    assert np.isnan(result.iou)
    assert np.isnan(result.dice)
    assert result.mae == 0


@pytest.mark.parametrize(
    ("dtype", "zone_count"),
    [
        *((np.uint8, zones) for zones in (1, 3, 32, 33, 100, 128, 129, 200)),
        (np.uint16, 1),
        (np.uint16, 3),
    ],
)
def test_count_levels_counts_pixels(dtype: type, zone_count: int) -> None:
    rng = np.random.default_rng(zone_count)
    prediction = rng.integers(0, np.iinfo(dtype).max + 1, (7, 9)).astype(dtype)
    mask, zones = rng.random((7, 9)) < 0.4, rng.integers(0, zone_count, (7, 9)).astype(np.uint8)
    prediction[-1], mask[-1], zones[-1] = np.iinfo(dtype).max, True, zone_count - 1
    counts = count_levels(prediction, mask, zones if zone_count > 1 else None, zone_count)
    assert counts.dtype == np.int64
    assert counts.shape == (zone_count, 2, np.iinfo(dtype).max + 1)
    expected = np.zeros_like(counts)
    for v, y, z in zip(prediction.flat, mask.flat, zones.flat, strict=True):
        expected[z if zone_count > 1 else 0, int(y), v] += 1
    np.testing.assert_array_equal(counts, expected)


def test_arrays_that_are_not_a_map_and_its_mask_are_refused() -> None:
    prediction, mask = np.zeros((3, 4), dtype=np.uint8), np.zeros((3, 4), dtype=bool)
    meter = SegmentationMeter()
    with pytest.raises(TypeError, match="mask"):
        meter.update(prediction, prediction)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prediction"):
        meter.update(prediction[:2], mask)
    with pytest.raises(ValueError, match="mask"):
        meter.update(prediction.ravel(), mask.ravel())
    with pytest.raises(TypeError, match="prediction"):
        meter.update(prediction.astype(np.int64), mask)
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(ValueError, match="prediction"):
            meter.update(np.full((3, 4), wrong), mask)
    with pytest.raises(TypeError, match="prediction"):
        count_levels(prediction / 255, mask)
    with pytest.raises(ValueError, match="zones"):
        count_levels(prediction, mask, np.full((3, 4), 2), 2)
    with pytest.raises(ValueError, match="zones"):
        count_levels(prediction, mask, np.full((3, 4), -1), 2)
    with pytest.raises(ValueError, match="zones"):
        count_levels(prediction, mask, np.zeros((1, 4), dtype=int), 2)
    for shape in ((2, 256), (1, 2, 65536), (1, 3, 256), (1, 1, 2, 256)):
        with pytest.raises(ValueError, match=r"counts: found shape .*; expected \(maps, 2, 256\)"):
            meter.update_levels(np.zeros(shape, dtype=np.int64))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_count_levels_needs_a_map_and_a_boolean_mask_of_its_shape(kind: type) -> None:
    prediction, mask = np.zeros((3, 4), dtype=kind), np.zeros((3, 4), dtype=bool)
    # Each of these could be broadcast to the shape of the mask.
    for wrong in (prediction[:1], prediction[:, :1], prediction[0], prediction[None]):
        with pytest.raises(ValueError, match=r"prediction: found shape .*; expected \(3, 4\), as the mask"):
            count_levels(wrong, mask)
    with pytest.raises(ValueError, match=r"prediction: found shape \(3, 4\); expected \(1, 4\)"):
        count_levels(prediction, mask[:1])
    for wrong_mask in (mask.astype(np.uint8), mask.astype(np.int64), mask.astype(float)):
        with pytest.raises(TypeError, match=r"mask: found .*; expected bool"):
            count_levels(prediction, wrong_mask)


def test_a_full_meter_needs_rows_and_columns() -> None:
    prediction, mask = scene(0, 6, 8)
    meter = SegmentationMeter()
    with pytest.raises(ValueError, match=r"mask: found shape \(48,\); expected \(height, width\)"):
        meter.update(prediction.ravel(), mask.ravel())
    with pytest.raises(ValueError, match="prediction: found shape"):
        meter.update(prediction[:1], mask)
    meter.update(np.empty((0, 8), dtype=np.uint8), np.empty((0, 8), dtype=bool))
    meter.update(prediction, mask)
    assert_same(meter.compute(), score([(prediction, mask)]))


def test_a_meter_says_what_it_lacks() -> None:
    meter = SegmentationMeter()
    with pytest.raises(ValueError, match="no map"):
        meter.compute()
    meter.update_levels(count_levels(*scene(0, 20, 20)))
    with pytest.raises(ValueError, match=r"found 0 maps with S and weighted F; expected 1\. update_levels"):
        meter.compute()
    with pytest.raises(ValueError, match="curves"):
        meter.load_state_dict({"images": np.zeros(2)})


@pytest.mark.parametrize("void", [None, 255])
def test_confusion_meter_equals_scikit_learn(void: int | None) -> None:
    rng = np.random.default_rng(3)
    meter, parts = ConfusionMeter(6), [ConfusionMeter(6), ConfusionMeter(6)]
    truths, guesses = [], []
    for i in range(6):
        # Class 5 never occurs.
        labels = rng.integers(0, 5, (11 + i, 13)).astype(np.uint8)
        predicted = np.where(rng.random(labels.shape) < 0.6, labels, rng.integers(0, 5, labels.shape))
        keep = np.ones(labels.shape, dtype=bool)
        if void is not None:
            keep = rng.random(labels.shape) < 0.8
            labels[~keep] = void
        meter.update(predicted, labels, void)
        parts[i % 2].update(predicted, labels, void)
        truths.append(labels[keep])
        guesses.append(predicted[keep])
    truth, guess = np.concatenate(truths), np.concatenate(guesses)
    result = meter.compute()
    np.testing.assert_array_equal(meter.state_dict()["matrix"], confusion_matrix(truth, guess, labels=range(6)))
    np.testing.assert_allclose(result.iou[:5], jaccard_score(truth, guess, average=None), atol=1e-12)
    assert np.isnan(result.iou[5])
    assert result.miou == pytest.approx(jaccard_score(truth, guess, average="macro"), abs=1e-12)
    assert result.dice == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-12)
    assert result.accuracy == pytest.approx((truth == guess).mean(), abs=1e-12)
    assert result.as_dict()["miou"] == result.miou
    parts[0].merge(parts[1])
    restored = ConfusionMeter(6)
    restored.load_state_dict(parts[0].state_dict())
    assert restored.compute().miou == result.miou


def test_confusion_meter_refuses_what_it_cannot_count() -> None:
    meter = ConfusionMeter(3)
    with pytest.raises(ValueError, match="labels"):
        meter.update(np.array([0, 1]), np.array([0, 255]))
    with pytest.raises(ValueError, match="predicted"):
        meter.update(np.array([0, 3]), np.array([0, 1]))
    with pytest.raises(ValueError, match="shape"):
        meter.update(np.array([0, 1]), np.array([0]))
    with pytest.raises(ValueError, match="merge"):
        meter.merge(ConfusionMeter(4))
    assert np.isnan(meter.compute().miou)


def test_torch_is_not_needed() -> None:
    code = "import sys, densecal.metrics.segmentation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
