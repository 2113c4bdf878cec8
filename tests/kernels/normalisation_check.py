"""Run by test_normalisation.py under Triton's interpreter: prints the largest differences from PyTorch in float64."""

import copy
import json
import sys
import warnings

import faster_interpreter  # noqa: F401 (in the same folder)
import torch
from torch import nn

from densecal.kernels import normalisation, upsampling
from densecal.kernels.normalisation import replace_normalisation
from densecal.kernels.upsampling import replace_upsampling
from densecal.models import build


def differences(shape: tuple[int, ...], activation: nn.Module) -> dict[str, float]:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(shape[1], eps=1e-3, momentum=0.1)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
    ours = nn.Sequential(copy.deepcopy(norm), copy.deepcopy(activation))
    theirs = nn.Sequential(norm, activation).double()
    replace_normalisation(ours)
    assert "forward" in vars(ours[0])
    x = (3 * torch.randn(shape) + 2).contiguous(memory_format=torch.channels_last)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = ours(a), theirs(b)
    gradient = torch.randn(shape)
    y.backward(gradient)
    expected.backward(gradient.double())
    pairs = {
        "output": (y, expected),
        "dx": (a.grad, b.grad),
        "dweight": (ours[0].weight.grad, norm.weight.grad),
        "dbias": (ours[0].bias.grad, norm.bias.grad),
        "mean": (ours[0].running_mean, norm.running_mean),
        "variance": (ours[0].running_var, norm.running_var),
        "tracked": (ours[0].num_batches_tracked, norm.num_batches_tracked),
    }
    errors = {name: float((u.detach().double() - v.detach()).abs().max()) for name, (u, v) in pairs.items()}
    ours.eval()
    theirs.eval()
    expected = theirs(x.double()).detach()
    errors["evaluation with gradients"] = float((ours(x).detach() - expected).abs().max())
    with torch.no_grad():
        errors["evaluation"] = float((ours(x) - expected).abs().max())
    return errors


def upsampling_differences(shape: tuple[int, ...]) -> list[float]:
    errors = []
    for options in ({}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}):
        theirs = nn.Upsample(scale_factor=2, **options)
        ours = copy.deepcopy(theirs)
        replace_upsampling(ours)
        assert "forward" in vars(ours)
        a = torch.randn(shape, requires_grad=True)
        b = a.detach().double().requires_grad_()
        y, expected = ours(a), theirs(b)
        assert y.is_contiguous(memory_format=torch.channels_last)
        gradient = torch.randn(y.shape)
        y.backward(gradient)
        expected.backward(gradient.double())
        errors += [float((y - expected).detach().abs().max()), float((a.grad - b.grad).abs().max())]
    return errors


def network_differences(encoder: str) -> tuple[float, float]:
    """Return those of the gradients in training and of the output in evaluation, relative to the largest value."""
    torch.manual_seed(0)
    network = build("unet", encoder, None, 1, encoder_depth=3, decoder_channels=[8, 8, 8]).train()
    ours = copy.deepcopy(network)
    replace_normalisation(ours)
    replace_upsampling(ours)
    assert all("forward" in vars(block) for block in ours.network.decoder.blocks)
    assert encoder != "resnet50" or "forward" in vars(ours.network.encoder.model.layer1[0])
    x = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    gradients = []
    for either in (network, ours):
        either(x).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in either.parameters() if p.grad is not None]))
    with torch.no_grad():
        outputs = [either.eval()(x) for either in (network, ours)]
    return relative_difference(*gradients), relative_difference(*outputs)


def oddities() -> dict[str, bool]:
    """Return whether a network with our kernels treats unusual inputs as PyTorch does."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU6()).eval()
    ours = copy.deepcopy(plain)
    replace_normalisation(ours)
    x = torch.randn(2, 8, 4, 4)
    copied = copy.deepcopy(ours)
    copied[0].bias.data += 1
    damaged = copy.deepcopy(ours)
    damaged[0].running_mean[3] = torch.nan
    half = copy.deepcopy(ours).half()
    with torch.no_grad():
        checks = {
            "a copy has weights of its own": bool((copied(x) > ours(x)).any()) and torch.allclose(ours(x), plain(x)),
            "NaN is not hidden": bool(damaged(x)[:, 3].isnan().all()),
            "half precision": torch.allclose(half(x.half()).float(), plain(x), atol=1e-2),
            "float64": torch.equal(copy.deepcopy(ours).double()(x.double()), copy.deepcopy(plain).double()(x.double())),
            "an empty batch": ours(x[:0]).shape == (0, 8, 4, 4),
        }
        try:
            ours(torch.randn(2, 4, 4, 4))
        except RuntimeError:
            checks["a wrong number of channels is refused"] = True
    try:
        ours.train()(torch.randn(1, 8, 1, 1))
    except ValueError:
        checks["one value has no variance"] = True
    far = 1000 + torch.randn(2, 8, 16, 16, dtype=torch.float64)
    expected = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU6()).double()(far)
    checks["a mean far from zero"] = torch.allclose(ours(far.float()).double(), expected, atol=1e-3)
    return checks


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


if __name__ == "__main__":
    warnings.filterwarnings("error", message=".* kernels ")
    normalisation._DEVICES = upsampling._DEVICES = ("cpu",)
    if sys.argv[1:] == ["networks"]:
        normalisation._TILE = 1 << 16  # the interpreter takes as long for a small tile as for a large one
        print(json.dumps({name: network_differences(name) for name in ("tf_efficientnet_lite0", "resnet50")}))
        sys.exit()
    layers = [
        differences((3, 5, 7, 6), nn.ReLU()),
        differences((2, 130, 9, 11), nn.ReLU6()),
        differences((4, 24, 16, 16), nn.Identity()),
    ]
    normalisation._TILE = 1 << 16
    upsamplings = [upsampling_differences(shape) for shape in ((2, 5, 4, 7), (1, 3, 1, 1), (1, 130, 5, 3))]
    print(json.dumps({"layers": layers, "upsamplings": upsamplings, "oddities": oddities()}))
