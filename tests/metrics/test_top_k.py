"""How often the true class is among the k most probable ones, and whether their probability says so."""

import numpy as np
import pytest
import torch

from densecal.metrics import CalibrationMeter
from densecal.metrics.arrays import largest
from densecal.metrics.fine_bins import true_rank
from densecal.metrics.sketch import Sketch

K = 7


def images(seed=0, count=3, levels=20):
    """Softmax maps with many equal probabilities, and masks with void pixels."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(K, 0.5), (count, 12, 15)).transpose(0, 3, 1, 2)
    p = np.round(p * levels) / levels
    masks = rng.integers(0, K, (count, 12, 15))
    masks[:, :2] = 255
    return p / p.sum(axis=1, keepdims=True), masks


def brute_force(p, masks, k, bins=10):
    """Return hit rate, mean probability and ECE of the k most probable classes, pixel by pixel."""
    valid = masks != 255
    p, y = p.transpose(0, 2, 3, 1)[valid], masks[valid]
    order = np.argsort(-p, axis=1, kind="stable")[:, :k]
    hit, mass = (order == y[:, None]).any(axis=1), np.take_along_axis(p, order, axis=1).sum(axis=1)
    bin_ = np.minimum((mass * bins).astype(int), bins - 1)
    gaps = [mass[bin_ == b].sum() - hit[bin_ == b].sum() for b in range(bins)]
    return hit.mean(), mass.mean(), np.abs(gaps).sum() / len(y)


def meter(p, masks):
    result = CalibrationMeter(num_classes=K, boundary=False)
    result.update(p, masks)
    return result


def test_figures_are_those_of_the_definition():
    p, masks = images(levels=23)
    curves = meter(p, masks).compute().top_k
    assert list(curves) == [2, 3, 5]
    for k, curve in curves.items():
        expected = brute_force(p, masks, k)
        assert (curve.mean_accuracy, curve.mean_confidence, curve.ece) == pytest.approx(expected, abs=1e-9)


def test_images_counted_apart_add_up_whatever_their_number():
    p, masks = images()
    whole = meter(p, masks)
    parts = [meter(p[i : i + 1], masks[i : i + 1]) for i in (2, 0, 1)]
    parts[1].sketch.bin_pixels()
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    for table in ("top_k", "top"):
        got, expected = (np.add(*m.sketch.counts(table)[::2]) for m in (parts[0], whole))
        np.testing.assert_array_equal(got, expected)
    assert parts[0].sketch.tables["top_k"].nbytes == 3 * 10 * 4 * 8


def test_a_file_keeps_the_tables_and_a_file_without_them_has_no_figures():
    p, masks = images()
    kept = meter(p, masks)
    read = Sketch.from_bytes(kept.sketch.to_bytes())
    np.testing.assert_array_equal(read.tables["top_k"], kept.sketch.tables["top_k"])
    state = kept.sketch.state_dict()
    del state["top_k"]
    older = meter(p, masks)
    older.sketch.load_state_dict(state)
    assert older.compute().top_k == {}
    kept.merge(older)
    assert kept.compute().top_k == {}
    assert Sketch.from_bytes(kept.sketch.to_bytes()).tables["top_k"].sum() > 0


@pytest.mark.parametrize("classes", [1, 2])
def test_there_is_nothing_to_look_at_without_a_third_class(classes):
    p = np.full((1, classes, 4, 4), 1 / classes) if classes > 1 else np.full((1, 4, 4), 0.3)
    result = CalibrationMeter(num_classes=classes)
    result.update(p, np.zeros((1, 4, 4), np.int64))
    assert result.compute().top_k == {}


def test_tensors_have_the_ranks_and_largest_values_of_arrays():
    p, masks = images()
    values, labels = p.reshape(3, K, -1), np.minimum(masks.reshape(3, -1), K - 1)
    np.testing.assert_array_equal(largest(torch.from_numpy(values), 5).numpy(), largest(values, 5))
    ranks = true_rank(torch.from_numpy(values), torch.from_numpy(labels))
    np.testing.assert_array_equal(ranks.numpy(), true_rank(values, labels))
