"""The kernels and graphs on a CUDA device, as users run them. Other tests run them in Triton's interpreter."""

import copy
import warnings

import numpy as np
import pytest
import torch

from densecal.kernels import accelerate, rehearse
from densecal.metrics import CalibrationMeter
from densecal.models import build
from densecal.training.loop import train
from tests.training.common import small_config

pytestmark = pytest.mark.gpu

NETWORKS = [("unet", "tf_efficientnet_lite0"), ("unet", "resnet50"), ("paper-unet", "resnet18")]


@pytest.fixture(autouse=True)
def float32_convolutions(monkeypatch):
    """Convolve in float32: TF32, PyTorch's default, is further from float64 than kernels may be."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def no_kernel_is_refused():
    """Turn the warning that PyTorch replaces a failing kernel into an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* kernels ")
        warnings.filterwarnings("error", message=".*not replayed")
        yield


def pair(arch, encoder):
    """Return a network on the device and its copy in float64."""
    torch.manual_seed(0)
    network = build(arch, encoder).to("cuda", memory_format=torch.channels_last)
    return network, copy.deepcopy(network).double()


def images(batch=4):
    random = torch.Generator().manual_seed(1)
    return torch.rand(batch, 3, 64, 64, generator=random).cuda().contiguous(memory_format=torch.channels_last)


def relative_difference(a, b):
    return float((a.double() - b).abs().max() / b.abs().max())


@pytest.mark.parametrize(("arch", "encoder"), NETWORKS)
def test_predictions_are_those_of_pytorch(arch, encoder):
    network, reference = (model.eval() for model in pair(arch, encoder))
    network = accelerate(network, training=False)
    with torch.no_grad():
        expected = reference(images().double())
        for _ in range(5):  # eager, recorded, replayed
            assert relative_difference(network(images()), expected) < 1e-3


@pytest.mark.parametrize(("arch", "encoder"), NETWORKS)
@pytest.mark.parametrize("graphs", [True, False])
def test_gradients_are_those_of_pytorch(arch, encoder, graphs):
    network, reference = pair(arch, encoder)
    plain = copy.deepcopy(network)
    network = accelerate(network, training=True, graphs=graphs)
    rehearse(network, images(2))
    for _ in range(3):
        gradients = []
        for model, batch in ((network, images()), (plain, images()), (reference, images().double())):
            model.zero_grad()
            model(batch).square().mean().backward()
            gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
        ours, pytorchs, expected = gradients
        assert relative_difference(ours, expected) < 2 * relative_difference(pytorchs, expected) + 1e-5
    for ours, theirs in zip(network.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-3, atol=1e-4)


def test_pixels_are_counted_as_on_a_cpu():
    random = torch.Generator().manual_seed(0)
    p = torch.randn(3, 1, 400, 500, generator=random).mul(8).sigmoid()
    masks = (torch.rand(p.shape, generator=random) < p).float()
    meters = {device: CalibrationMeter() for device in ("cpu", "cuda")}
    for device, meter in meters.items():
        for _ in range(3):  # past a million pixels, where fine bins take over
            meter.update(p.to(device), masks.to(device))
    actual, expected = (meters[device].compute().as_dict() for device in ("cuda", "cpu"))
    for name in expected.keys() - {"ci"}:
        assert actual[name] == pytest.approx(expected[name], abs=1e-12), name


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
@pytest.mark.parametrize("classes", [1, 3])
def test_arrays_of_other_libraries_are_counted_on_the_device(library, classes, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
    others = pytest.importorskip(library)
    random = torch.Generator().manual_seed(0)
    p = torch.rand(2, classes, 60, 70, generator=random)
    p = p if classes == 1 else p.softmax(1)
    masks = torch.randint(0, max(classes, 2), (2, 60, 70), generator=random, dtype=torch.uint8)
    meters = [CalibrationMeter(num_classes=classes, boundary=False) for _ in range(2)]
    meters[0].update(p.cuda(), masks.cuda())
    meters[1].update(others.asarray(p.numpy()), others.asarray(masks.numpy()))
    assert all(meter.sketch._counted.device for meter in meters)  # no host has counted
    ours, theirs = (meter.state_dict() for meter in meters)
    for name, table in ours.items():
        assert np.array_equal(table, theirs[name]), name


def test_a_run_trains_with_kernels_as_it_does_without(tmp_path):
    losses = []
    for kernels in (True, False):
        settings = ["method.name=bce", "engine.accelerator=cuda", "engine.precision=32-true"]
        config = small_config(*settings, f"engine.kernels={kernels}", f"engine.graphs={kernels}")
        losses.append(train(config, tmp_path / str(kernels)).nll)
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
