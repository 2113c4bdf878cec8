"""The compiled passes over softmax maps give the bits of NumPy for every value, also at edges of bins and of words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics import compiled
from densecal.metrics.arrays import largest
from densecal.metrics.confusion import winners
from densecal.metrics.fine_bins import equal_width_index, fine_size, fine_tally, tally, true_rank
from densecal.metrics.image_rows import score_sums, sums_of_scores
from densecal.metrics.inputs import clipped
from densecal.metrics.softmax_counts import _SLACKS

pytestmark = pytest.mark.skipif(compiled.native is None, reason="installed without a compiler")
BINS = [1, 2, 10, 15, 100, 255, 3000, 1 << 16]


def edges(bins: int) -> np.ndarray:
    """Return float32 values where something changes, with the numbers next to them, in and outside [0, 1]."""
    powers = 2.0 ** -np.arange(45)
    some = np.unique(np.linspace(0, bins, min(bins, 300) + 1).astype(np.int64)) / bins
    inner = (1 + np.arange(0, 128, 9)[:, None] / 128) * powers[1:]  # of fine bins
    values = np.concatenate([powers, 1 - powers, some, inner.ravel(), 1 - inner.ravel()]).astype(np.float32)
    values = np.concatenate([np.nextafter(values, np.float32(-1)), values, np.nextafter(values, np.float32(2))])
    odd = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-7, -3.0, 1.0000001, 7.0, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([values, odd])


def drawn(rng: np.random.Generator, kind: str, bins: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 probabilities: all, none or half of them below the first edge of a bin, equal, or at edges."""
    low = rng.uniform(0, min(1 / bins, 0.125), shape) * rng.choice([1, 1e-4, 1e-9, 1e-13], shape)
    high = rng.uniform(1 / bins, 1, shape)
    values = {
        "low": low,
        "high": high,
        "half": np.where(rng.random(shape) < 0.5, low, high),
        "one high": np.where(rng.random(shape) < 0.01, high, low),
        "one value": np.broadcast_to(rng.choice(edges(bins)), shape),
        "zeros": np.where(rng.random(shape) < 0.003, high, 0),
        "edges": rng.choice(edges(bins), shape),
    }[kind]
    return np.ascontiguousarray(values, np.float32)


def counted(
    values: np.ndarray, labels: np.ndarray, keep: np.ndarray | None, bins: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `tally_classes` counts of maps (B, K, P), by equal-width and by fine bin, as NumPy counts it."""
    every = np.ones(labels.shape, bool) if keep is None else keep
    p = clipped(values.astype(np.float64), every)
    table, fine = [], []
    for k in range(values.shape[1]):
        table.append(tally(equal_width_index(p[:, k], bins), p[:, k], labels == k, every, bins))
        fine.append(fine_tally(p[:, k][every], (labels == k)[every], steps))
    return np.stack(table), np.stack(fine)


def assert_same_tables(values, labels, keep, bins, steps) -> None:
    images, classes, pixels = values.shape
    table, fine = np.ones((classes, bins, 4), np.int64), np.ones((classes, fine_size(steps), 4), np.int64)
    compiled.native.tally_classes(values, labels, keep, table, fine, images, classes, pixels, bins, steps)
    expected, expected_fine = counted(values, labels, keep, bins, steps)
    np.testing.assert_array_equal(table, 1 + expected)  # what was there stays
    np.testing.assert_array_equal(fine, 1 + expected_fine)
    alone = np.zeros_like(table)
    compiled.native.tally_classes(values, labels, keep, alone, None, images, classes, pixels, bins, steps)
    np.testing.assert_array_equal(alone, expected)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["low", "high", "half", "one high", "one value", "zeros", "edges"]),
    st.sampled_from(BINS), st.sampled_from([7, 10]), st.booleans(), st.sampled_from([1, 3]),
    st.sampled_from([1, 31, 32, 33, 511, 512, 513, 1500, 2048]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_classes_are_counted_with_the_bits_of_numpy(seed, kind, bins, steps, void, images, pixels):
    rng = np.random.default_rng(seed)
    values = drawn(rng, kind, bins, (images, 3, pixels))
    labels = rng.integers(0, 4, (images, pixels)).astype(np.uint8)
    if rng.random() < 0.5:  # as in a picture
        labels = np.repeat(labels, 64, axis=1)[:, :pixels].copy()
    keep = rng.random(labels.shape) < rng.choice([0.0, 0.5, 0.99]) if void else None
    assert_same_tables(values, labels, keep, bins, steps)


@pytest.mark.parametrize("bins", BINS)
def test_every_edge_is_in_the_bin_of_numpy(bins: int):
    values = np.concatenate([edges(bins), np.repeat(edges(bins), 32)])[None, None]  # beside others, and alone
    assert_same_tables(values, np.zeros(values.shape[::2], np.uint8), None, bins, 7)


@pytest.mark.parametrize("steps", [7, 10])
@pytest.mark.parametrize("pixels", [(1 << 15) - 1, 1 << 15, (1 << 16) + 700, 1 << 18])
@pytest.mark.parametrize(
    "bits",  # the largest words of every kind, and the smallest
    [0x3DFFFFFF, 0x3DFEFFFF, 0x38FFFFFF, 0x337FFFFF, 0x30FFFFFF, 0x307FFFFF, 0x307FFFF0, 0x3F7FFFFF, 0x3F800000, 0],
)
def test_no_number_of_equal_pixels_is_too_large_for_a_cell(bits: int, pixels: int, steps: int):
    values = np.full((1, 3, pixels), np.array(bits, np.uint32).view(np.float32))
    values[0, :2, -1] = 0.3
    labels = np.zeros((1, pixels), np.uint8)
    labels[:, 5::64] = 1  # of the third class, all pixels are in one cell
    assert_same_tables(values, labels, None, 10, steps)


def test_many_images_fill_a_cell():
    values = np.full((700, 2, 100), 0.1, np.float32)
    assert_same_tables(values, np.zeros((700, 100), np.uint8), None, 10, 7)


def ranked(values: np.ndarray, labels: np.ndarray, keep: np.ndarray | None, ks: tuple[int, ...]) -> tuple:
    """Return what `rank_classes` writes of one map (K, P)."""
    classes, count = values.shape
    top, rank = np.empty(count, values.dtype), np.empty(count, np.uint8)
    shares, scores = np.empty((len(ks), count)), np.empty((2, count))
    certain = compiled.native.rank_classes(
        values, labels, keep, top, shares, rank, scores, np.array(ks, np.uint8), *_SLACKS, classes, count, 0, count
    )
    return certain, top, shares, rank, scores


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 4, 5, 6, 9, 19]), st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["ties", "softmax", "beyond 0 and 1"]), st.sampled_from([1, 511, 512, 1025]), st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_classes_are_ordered_and_scored_with_the_bits_of_numpy(seed, classes, dtype, kind, pixels, void):
    rng = np.random.default_rng(seed)
    if kind == "softmax":
        values = rng.dirichlet(np.full(classes, rng.choice([0.05, 1.0])), pixels).T
    else:
        values = rng.multinomial(rng.choice([1, 4, 8]), np.full(classes, 1 / classes), pixels).T / 1.0
        values /= values.sum(0)
    values = np.ascontiguousarray(values, dtype)
    if kind == "beyond 0 and 1":
        values += rng.choice([0, 1e-7, -1e-7], values.shape).astype(dtype)
    labels = rng.integers(0, classes, pixels).astype(np.uint8)
    keep = rng.random(pixels) < 0.8 if void else None
    ks = tuple(k for k in (2, 3, 5) if k < classes)
    if keep is not None:
        odd = rng.permutation([np.nan, np.inf, -np.inf, 7, 0.25])[: rng.integers(1, 6)].astype(dtype)
        values[:, ~keep] = rng.choice(odd, (classes, (~keep).sum()))
        labels[~keep] = 255
    certain, top, shares, rank, scores = ranked(values, labels, keep, ks)
    assert certain
    assert np.isfinite(scores).all()
    good = np.ones(pixels, bool) if keep is None else keep
    p, y = values[None].astype(np.float64).clip(0, 1)[..., good], labels[None, good].astype(np.int64)
    most = largest(p, min(classes, 5))[0]
    np.testing.assert_array_equal(top[good], np.minimum(most[0], 1).astype(dtype))
    mass = np.zeros(good.sum())
    for k in range(1, max(ks, default=0) + 1):
        mass = mass + most[k - 1]
        if k in ks:
            np.testing.assert_array_equal(shares[ks.index(k)][good], mass)
    np.testing.assert_array_equal(rank[good], np.minimum(true_rank(p, y)[0], 5))
    filled, own = clipped(values[None].astype(np.float64), good[None]), np.where(good, labels, 0)[None].astype(np.int64)
    expected = score_sums(filled, own, True, None if keep is None else keep[None])[0]
    np.testing.assert_array_equal(sums_of_scores(scores, keep), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("pixel", [0, 511, 512, 1300])
@pytest.mark.parametrize("wrong", [[np.nan, 0.5, 0.5], [1.5, -0.5, 0], [-3e-6, 1, 0], [1.000003, 0, 0], [0.5, 0.4, 0]])
def test_one_pixel_that_holds_no_probabilities_is_noticed_unless_it_is_void(wrong, pixel, dtype):
    values = np.zeros((3, 1301), dtype)
    values[0] = 1
    values[:, pixel] = wrong
    labels, keep = np.zeros(1301, np.uint8), np.ones(1301, bool)
    assert not ranked(values, labels, None, (2,))[0]
    assert not ranked(values, labels, keep, (2,))[0]
    keep[pixel] = False
    assert ranked(values, labels, keep, (2,))[0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 14), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=30, deadline=None)
def test_the_first_of_tied_classes_wins_in_every_part_of_a_picture(seed, classes, dtype):
    p = np.random.default_rng(seed).integers(-3, 3, (classes, 70, 61)).astype(dtype)
    winner, most = winners(p)
    np.testing.assert_array_equal(winner, p.argmax(0))
    np.testing.assert_array_equal(most, p.max(0))
