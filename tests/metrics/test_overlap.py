"""Dice and IoU per image: brute force over sets of pixels, empty masks, K classes, and the interval of the mean."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from scipy import stats

from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.metrics.overlap import foreground_overlap, level_overlaps, mean_interval, overlap_intervals, overlap_means
from densecal.metrics.segmentation import count_levels


def brute_force(predicted, truth):
    """Return Dice and IoU of two sets of pixels; None where both are empty."""
    a, b = ({tuple(pixel) for pixel in np.argwhere(array)} for array in (predicted, truth))
    return None if not a | b else (2 * len(a & b) / (len(a) + len(b)), len(a & b) / len(a | b))


@given(arrays.arrays(np.uint8, (4, 5)), arrays.arrays(bool, (4, 5)))
def test_the_overlap_of_an_image_is_that_of_its_sets_of_pixels(prediction, mask):
    expected = brute_force(prediction >= 128, mask)
    for overlap in (foreground_overlap(prediction > 127, mask), level_overlaps(count_levels(prediction, mask))[0]):
        assert np.isnan(overlap).all() if expected is None else overlap.tolist() == pytest.approx(expected, abs=1e-15)


def test_an_image_empty_in_map_and_mask_is_left_out_and_one_empty_in_either_scores_zero():
    nothing, something = np.zeros((2, 2), bool), np.ones((2, 2), bool)
    pairs = [(nothing, nothing), (nothing, something), (something, nothing), (something, something)]
    overlaps = np.array([foreground_overlap(*pair) for pair in pairs])
    assert overlap_means(overlaps) == {"dice_image_mean": 1 / 3, "iou_image_mean": 1 / 3}
    assert all(math.isnan(mean) for mean in overlap_means(overlaps[:1]).values())


@given(st.lists(st.floats(0.4, 0.6), min_size=2, max_size=30, unique=True))
def test_the_interval_of_the_mean_is_students(values):
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    low, high = mean_interval(np.array(values))
    assert low == pytest.approx(max(expected[0], 0.0), abs=1e-12)
    assert high == pytest.approx(min(expected[1], 1.0), abs=1e-12)


def test_groups_are_the_units_of_the_interval():
    rng = np.random.default_rng(0)
    means = rng.uniform(0.3, 0.7, 12)
    values = np.repeat(means, 5)  # the images of a group are all alike, so that five say what one says
    groups = np.repeat([f"patient {i}" for i in range(12)], 5)
    order = rng.permutation(len(values))
    assert mean_interval(values[order], groups[order]) == pytest.approx(mean_interval(means), abs=1e-12)
    overlaps = np.stack([values, values], axis=1)
    assert overlap_intervals(overlaps, list(groups))["dice_image_mean"] == pytest.approx(mean_interval(means))
    assert all(map(math.isnan, mean_interval(values[:5], groups[:5])))


@pytest.mark.parametrize("images", [0, 1])
def test_fewer_than_two_images_have_no_interval(images):
    for interval in overlap_intervals(np.full((images, 2), 0.5)).values():
        assert all(map(math.isnan, interval))


@pytest.mark.parametrize("kind", ["8-bit", "16-bit", "float"])
def test_an_evaluation_has_the_mean_dice_and_iou_per_image(tmp_path, kind):
    rng = np.random.default_rng(0)
    maps, masks = tmp_path / "maps", tmp_path / "masks"
    maps.mkdir()
    masks.mkdir()
    expected = []
    for i in range(5):
        p, mask = rng.random((6, 7)), rng.random((6, 7)) < 0.3 * (i > 0)
        if i == 1:
            p = p / 2.1
        Image.fromarray(mask.astype(np.uint8) * 255).save(masks / f"{i}.png")
        if kind == "float":
            np.save(maps / f"{i}.npy", p)
        else:
            dtype = np.uint8 if kind == "8-bit" else np.uint16
            Image.fromarray(np.rint(p * np.iinfo(dtype).max).astype(dtype)).save(maps / f"{i}.png")
        expected.append(brute_force(p > 0.5, mask))
    record = evaluate(maps, masks, workers=2).record
    dice, iou = np.mean(expected, axis=0)
    assert record.segmentation["dice_image_mean"] == pytest.approx(dice, abs=1e-12)
    assert record.segmentation["iou_image_mean"] == pytest.approx(iou, abs=1e-12)
    assert record.segmentation_ci["dice_image_mean"] == mean_interval(np.array([dice for dice, _ in expected]))
    assert record.segmentation["dice"] != pytest.approx(dice, abs=1e-3)


def test_with_classes_the_mean_of_an_image_is_over_the_classes_that_occur_in_it(tmp_path):
    rng = np.random.default_rng(0)
    maps, masks = tmp_path / "maps", tmp_path / "masks"
    maps.mkdir()
    masks.mkdir()
    expected = []
    for i in range(3):
        p = rng.dirichlet(np.ones(4), (5, 6))
        p[..., 3] = 0 if i else p[..., 3]  # class 3 occurs in the first image alone
        p /= p.sum(axis=-1, keepdims=True)
        labels = rng.integers(0, 4 - (i > 0), (5, 6)).astype(np.uint8)
        labels[0] = 9
        np.save(maps / f"{i}.npy", p.transpose(2, 0, 1))
        Image.fromarray(labels).save(masks / f"{i}.png")
        winner, valid = p.argmax(axis=-1), labels != 9
        by_class = [brute_force((winner == k) & valid, (labels == k) & valid) for k in range(4)]
        expected.append(np.mean([scores for scores in by_class if scores is not None], axis=0))
    record = evaluate(maps, masks, settings=Settings(classes=4, ignore_index=9)).record
    dice, iou = np.mean(expected, axis=0)
    assert record.segmentation["dice_image_mean"] == pytest.approx(dice, abs=1e-12)
    assert record.segmentation["iou_image_mean"] == pytest.approx(iou, abs=1e-12)
