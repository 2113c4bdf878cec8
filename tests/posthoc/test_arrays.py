"""Calibrators take NumPy arrays, tensors and arrays of other libraries, and compute the same from all of them."""

import numpy as np
import pytest
import torch

from densecal.io.pairs import resize_map
from densecal.posthoc import Batch, LogitHistogram, base, create
from densecal.posthoc.logit_histogram import logit

from .common import class_batches, crooked, histogram_of

BINARY = ("temperature", "platt", "isotonic", "histogram", "beta")
NETWORKS = ("local-temperature", "selective")


class Foreign:
    """An array of a library that speaks DLPack alone, as CuPy and JAX do."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def fitted(name):
    if name == "vector":
        return create(name, num_classes=4).fit(class_batches)
    if name == "temperature-4":
        return create("temperature", num_classes=4).fit(class_batches)
    return create(name).fit(histogram_of(*crooked(3000)))


def logits_for(calibrator, dtype):
    z = 6 * np.random.default_rng(0).normal(size=(2, calibrator.num_classes, 17, 23))
    if calibrator.num_classes == 1:
        z[0, 0, 0] = np.resize([np.inf, -np.inf, 0.0, 700.0, -700.0, 40.0], 23)
    return z.astype(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-6)])
@pytest.mark.parametrize("name", [*BINARY, "vector", "temperature-4"])
def test_arrays_and_tensors_are_calibrated_alike_and_stay_what_they_are(name, dtype, tolerance):
    calibrator = fitted(name)
    z = logits_for(calibrator, dtype)
    ours, theirs = calibrator(z), calibrator(torch.from_numpy(z))
    assert isinstance(ours, np.ndarray)
    assert isinstance(theirs, torch.Tensor)
    assert ours.dtype == theirs.numpy().dtype == dtype
    assert np.abs(ours - theirs.numpy()).max() <= tolerance
    assert np.array_equal(calibrator(Foreign(z)), ours)
    assert torch.equal(calibrator.as_module()(torch.from_numpy(z)), theirs)


@pytest.mark.parametrize("name", BINARY)
def test_nan_stays_nan_in_arrays_and_tensors(name):
    z = np.array([np.nan, 1.0]).reshape(1, 1, 1, 2)
    calibrator = fitted(name)
    assert np.isnan(calibrator(z)).ravel().tolist() == [True, False]
    assert calibrator(torch.from_numpy(z)).isnan().flatten().tolist() == [True, False]


@pytest.mark.parametrize("name", ["temperature", "vector"])
def test_k_classes_are_fitted_alike_on_arrays_and_on_tensors_that_stay_tensors(name, monkeypatch):
    """Tensors in memory become arrays; those on an accelerator stay, as all do here."""
    batches = class_batches(void=True)
    arrays = [Batch(batch.logits.numpy(), batch.masks.numpy()) for batch in batches]
    ours = create(name, num_classes=4).fit(lambda: arrays)
    monkeypatch.setattr(base, "as_array", lambda values: values)
    theirs = create(name, num_classes=4).fit(lambda: batches)
    for table in ours.tables:
        np.testing.assert_allclose(getattr(ours, table), getattr(theirs, table), rtol=1e-10, atol=1e-12)


def test_a_histogram_counts_arrays_of_every_library_alike():
    z, y = crooked(5000)
    parts = []
    for convert in (np.asarray, torch.from_numpy, Foreign, list):
        histogram = LogitHistogram()
        histogram.update(convert(z), convert(y))
        parts.append(histogram.by_label())
    for part in parts[1:]:
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(part, parts[0], strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_an_array_for_an_array(name):
    calibrator = create(name)
    z, images = logits_for(calibrator, "float32")[1:], np.random.default_rng(0).random((1, 3, 17, 23), np.float32)
    p = calibrator(z, images)
    assert isinstance(p, np.ndarray)
    assert np.array_equal(p, calibrator(torch.from_numpy(z), torch.from_numpy(images)).numpy())


def test_gradients_flow_through_a_calibrator():
    z = torch.zeros(1, 1, 1, 2, dtype=torch.float64, requires_grad=True)
    calibrator = fitted("platt")
    calibrator(z).sum().backward()
    p = calibrator(np.zeros((1, 1, 1, 2)))
    assert z.grad.numpy() == pytest.approx(float(calibrator.a) * p * (1 - p))


def test_tensors_beside_a_calibrator_without_weights_are_refused():
    with pytest.raises(ValueError, match="platt: tensors weight; expected parameters in JSON alone"):
        create("platt").load_extra_state({"weight": np.zeros(1)})


@pytest.mark.parametrize("shape", [(61, 83), (20, 31), (1, 1), (40, 50), (7, 200)])
@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_maps_are_resized_as_by_pytorch(shape, kind):
    rng = np.random.default_rng(0)
    p = rng.integers(0, 256, (3, 40, 50)).astype(np.uint8) if kind == "uint8" else rng.random((3, 40, 50))
    scale = 255 if kind == "uint8" else 1
    expected = torch.nn.functional.interpolate(torch.from_numpy(p / scale)[None], shape, mode="bilinear")[0].numpy()
    np.testing.assert_allclose(resize_map(p, shape), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(resize_map(p[1], shape), expected[1], rtol=0, atol=1e-14)


def test_the_logit_of_an_array_is_that_of_a_tensor():
    p = np.random.default_rng(0).random(1000)
    np.testing.assert_allclose(logit(p), logit(torch.from_numpy(p)).numpy(), rtol=1e-14, atol=1e-15)
