"""Poisson tables: the same sums however images are cut and ordered, draws of their own, and intervals that hold."""

import numpy as np
import pytest
from benchmarks.coverage import MODELS, data_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics.bootstrap import REPLICATES, intervals, with_image_ece
from densecal.metrics.poisson import PoissonTable, _poisson, draws


def table_of(names, rows):
    table = PoissonTable(rows.shape[1] - 5)
    table.add(names, rows)
    return table


def some(count, seed=0):
    """Rows of images, one in nine without valid pixels, and their names."""
    rows = next(data_sets((MODELS["mild"],), count, 1))[0].copy()
    rows *= 1 + np.random.default_rng(seed).random((count, 1))
    rows[::9] = 0
    return [f"im{i}" for i in range(count)], rows


@settings(max_examples=15)
@given(st.integers(1, 7), st.randoms(use_true_random=False), st.integers(1, 600))
def test_no_cut_and_no_order_changes_a_bit(parts, random, count):
    names, rows = some(count)
    whole = table_of(names, rows)
    order = random.sample(range(count), count)
    cut = [order[number::parts] for number in range(parts)]
    merged = PoissonTable(rows.shape[1] - 5)
    for images in cut:
        merged.merge(table_of([names[i] for i in images], rows[images]))
    assert np.array_equal(merged.sums, whole.sums)
    assert merged.images == whole.images == (rows[:, 0] > 0).sum()


def test_the_sums_are_those_of_plain_weights():
    names, rows = some(700)
    kept = rows[:, 0] > 0
    weights = np.stack([draws(name) for name, keep in zip(names, kept, strict=True) if keep], axis=1)
    expected = weights.astype(float) @ with_image_ece(rows)
    sums = table_of(names, rows).sums
    assert np.allclose(sums[0, 1:] + sums[1, 1:] * 2.0**-32, expected, rtol=1e-12, atol=700 * 2.0**-32)


def test_draws_are_poisson_and_independent_between_images_and_resamples():
    counts = np.bincount(_poisson())
    assert counts.sum() == (counts * np.arange(len(counts))).sum() == 65536
    values = np.arange(len(counts))
    assert (counts * (values - 1) ** 2).sum() / 65536 == pytest.approx(1.0, abs=1e-3)
    drawn = np.stack([draws(f"image {i}") for i in range(2000)]).astype(float)
    assert drawn.shape == (2000, REPLICATES)
    assert drawn.mean() == pytest.approx(1.0, abs=4 / np.sqrt(drawn.size))
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 4 / np.sqrt(REPLICATES)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 4 / np.sqrt(2000)
    assert draws("a").tolist()[:12] == draws("a").tolist()[:12] != draws("b").tolist()[:12]


def test_intervals_agree_with_those_of_all_rows():
    """3,000 images, so that studentising hardly matters: ends agree within a tenth of the width."""
    (rows,) = next(data_sets((MODELS["over-confident"],), 3000, 1))
    ours, theirs = table_of([f"im{i}" for i in range(3000)], rows).intervals(), intervals(rows)
    assert ours.keys() == theirs.keys()
    for name, (low, high) in theirs.items():
        assert np.abs(np.subtract(ours[name], (low, high))).max() <= 0.1 * (high - low), name


def test_names_of_groups_resample_groups():
    """Every image twice under one name says no more than once; as two images, it would seem to."""
    (rows,) = next(data_sets((MODELS["over-confident"],), 400, 1))
    names = [f"im{i}" for i in range(400)]
    once = table_of(names, rows).intervals()["accuracy"]
    grouped = table_of(names * 2, np.concatenate([rows, rows])).intervals()["accuracy"]
    apart = table_of([*names, *(f"{name} again" for name in names)], np.concatenate([rows, rows])).intervals()
    assert grouped == pytest.approx(once, abs=1e-9)
    assert np.diff(apart["accuracy"])[0] < 0.85 * np.diff(once)[0]


def test_one_image_has_no_interval_and_other_bins_are_refused():
    names, rows = some(2)
    assert all(np.isnan(ends).all() for ends in table_of(names, rows).intervals().values())
    with pytest.raises(ValueError, match="a table of 3 bins"):
        PoissonTable(5).merge(PoissonTable(3))
    with pytest.raises(ValueError, match="expected rows of 10 bins"):
        PoissonTable(10).add(names, rows)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_intervals_hold_the_truth(model):
    from benchmarks.coverage import LOWEST_COVERAGE, error, poisson_coverage

    for name, (share, _) in poisson_coverage(MODELS[model], 300, 300).items():
        assert share + error(share, 300) >= LOWEST_COVERAGE, name
