"""Separation of images in and out of distribution, and the entropy that separates them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from densecal.metrics.entropy import BINS, EntropySums, binary_entropy, drop_missing
from densecal.metrics.ood import auroc, fpr95, separation

scores = st.lists(st.integers(0, 12).map(lambda v: v / 7), min_size=1, max_size=50)


def label_scores(inside, outside):
    return [0] * len(inside) + [1] * len(outside), [*inside, *outside]


@given(scores, scores)
def test_auroc_equals_scikit_learns_with_ties(inside, outside):
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(*label_scores(inside, outside)), abs=1e-12)


@given(scores, scores)
def test_fpr95_is_the_lowest_rate_of_all_thresholds_that_flag_enough(inside, outside):
    flagged = []
    for t in {*inside, *outside, 0.0, 99.0}:
        hits = sum(score >= t for score in outside)
        if 100 * hits >= 95 * len(outside):
            flagged.append(sum(score >= t for score in inside) / len(inside))
    assert fpr95(inside, outside) == min(flagged)


@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(1, 400))
def test_both_agree_with_the_roc_curve_of_scikit_learn(seed, n, m):
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(size=n), rng.normal(size=m) + 1
    false, true, _ = roc_curve(*label_scores(inside, outside), drop_intermediate=False)
    hits = np.rint(true * m)
    actual = separation(inside, outside)
    assert actual.fpr95 == pytest.approx(false[100 * hits >= 95 * m].min(), abs=1e-12)
    assert actual.auroc == pytest.approx(roc_auc_score(*label_scores(inside, outside)), abs=1e-12)


def test_twenty_images_may_miss_one():
    outside = np.arange(20.0)
    assert fpr95([0.5], outside) == 0.0
    assert fpr95([1.0], outside) == 1.0


def test_perfect_chance_and_inverted():
    assert separation([0.0, 0.1], [0.2, 0.3]) == separation([0, 0, 0], [1])
    assert auroc([0.3] * 5, [0.3] * 7) == 0.5
    assert auroc([0.2, 0.3], [0.0, 0.1]) == 0.0


@pytest.mark.parametrize(
    ("inside", "outside", "named"),
    [
        ([], [1], "in_scores"),
        ([1], [], "out_scores"),
        ([1], [float("nan")], "out_scores"),
        ([1, 2], [0.5, float("nan")], "out_scores"),
        ([float("nan"), 2], [0.5], "in_scores"),
    ],
)
def test_missing_scores_are_refused(inside, outside, named):
    with pytest.raises(ValueError, match=named):
        separation(inside, outside)


@given(st.integers(0, 1000), st.sampled_from([np.uint8, np.uint16]))
def test_levels_have_the_entropy_of_the_same_floats(seed, kind):
    rng = np.random.default_rng(seed)
    top = np.iinfo(kind).max
    maps = [rng.choice([0, 1, top // 2, top // 2 + 1, top - 1, top, 77], size=50).astype(kind) for _ in range(3)]
    levels, floats = EntropySums(), EntropySums()
    for levelled in maps:
        levels.add_levels(np.bincount(levelled, minlength=top + 1))
        floats.add_map(levelled / top)
    assert levels.histogram.tolist() == floats.histogram.tolist()
    assert levels.images == pytest.approx(floats.images, abs=1e-14)


def test_entropy_equals_torchs_and_counts_every_pixel():
    p = np.concatenate([np.random.default_rng(0).random(5000), [0.0, 0.5, 1.0]])
    both = torch.tensor(np.stack([p, 1 - p]))
    expected = torch.special.entr(both).sum(dim=0).numpy() / np.log(2)
    np.testing.assert_allclose(binary_entropy(p), expected, atol=1e-14)
    sums = EntropySums()
    sums.add_map(p)
    assert sums.images == pytest.approx([expected.mean()], abs=1e-14)
    assert sums.histogram.tolist() == np.histogram(expected.clip(0, 1), BINS, (0, 1))[0].tolist()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_entropy_is_computed_in_float64_whatever_the_map(kind):
    p = np.random.default_rng(0).random(200).astype(kind)
    assert binary_entropy(p).tolist() == binary_entropy(p.astype(np.float64)).tolist()


def test_a_record_has_a_hundred_bins_of_entropy_and_one_mean_per_image():
    sums = EntropySums()
    sums.add_map(np.array([0.0, 0.5, 0.5, 1.0]))
    sums.add_levels(np.bincount([0, 0, 255], minlength=256))
    record = sums.as_dict()
    assert record["histogram"] == [5] + [0] * 98 + [2]
    assert record["images"] == [0.5, 0.0]


def test_merging_keeps_the_order_of_images():
    parts = [EntropySums(), EntropySums()]
    for part, p in zip(parts, (0.1, 0.4), strict=True):
        part.add_map(np.full(4, p))
    parts[0].merge(parts[1])
    assert parts[0].images == pytest.approx(binary_entropy(np.array([0.1, 0.4])))
    assert parts[0].histogram.sum() == 8


def test_an_image_without_valid_pixels_has_no_entropy():
    sums = EntropySums()
    sums.add_map(np.empty(0))
    assert np.isnan(sums.images[0])
    assert sums.histogram.sum() == 0
    assert drop_missing([*sums.images, 0.25, None, 0.5]).tolist() == [0.25, 0.5]
    assert drop_missing(sums.images).tolist() == []
