"""Run by test_fused.py under Triton's interpreter: prints the largest differences from PyTorch in float64."""

import copy
import json

import torch
from torch import nn
from torch.nn.functional import interpolate

from densecal.models import build
from densecal.models.doubling import BILINEAR, BILINEAR_CORNERS, NEAREST, Doubling
from densecal.training.fused import fuse_normalisation


def differences(shape: tuple[int, ...], activation: nn.Module) -> dict[str, float]:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(shape[1], eps=1e-3, momentum=0.1)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
    ours = nn.Sequential(copy.deepcopy(norm), copy.deepcopy(activation))
    theirs = nn.Sequential(norm, activation).double()
    fuse_normalisation(ours)
    x = (3 * torch.randn(shape) + 2).contiguous(memory_format=torch.channels_last)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, wanted = ours(a), theirs(b)
    gradient = torch.randn(shape)
    y.backward(gradient)
    wanted.backward(gradient.double())
    pairs = {
        "output": (y, wanted),
        "dx": (a.grad, b.grad),
        "dweight": (ours[0].weight.grad, norm.weight.grad),
        "dbias": (ours[0].bias.grad, norm.bias.grad),
        "mean": (ours[0].running_mean, norm.running_mean),
        "variance": (ours[0].running_var, norm.running_var),
        "tracked": (ours[0].num_batches_tracked, norm.num_batches_tracked),
    }
    found = {name: float((u.detach().double() - v.detach()).abs().max()) for name, (u, v) in pairs.items()}
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        return found | {"evaluation": float((ours(x).double() - theirs(x.double())).abs().max())}


def doubling_differences(shape: tuple[int, ...]) -> list[float]:
    found = []
    modes = {
        NEAREST: {"mode": "nearest"},
        BILINEAR: {"mode": "bilinear", "align_corners": False},
        BILINEAR_CORNERS: {"mode": "bilinear", "align_corners": True},
    }
    for mode, options in modes.items():
        a = torch.randn(shape, requires_grad=True)
        b = a.detach().double().requires_grad_()
        ours, theirs = Doubling.apply(a, mode), interpolate(b, scale_factor=2.0, **options)
        gradient = torch.randn(ours.shape)
        ours.backward(gradient)
        theirs.backward(gradient.double())
        found += [float((ours - theirs).detach().abs().max()), float((a.grad - b.grad).abs().max())]
    return found


def network_difference(encoder: str) -> float:
    torch.manual_seed(0)
    network = build("unet", encoder, None, 1, encoder_depth=3, decoder_channels=[8, 8, 8]).train()
    fused = copy.deepcopy(network)
    fuse_normalisation(fused)
    x = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    gradients = []
    for one in (network, fused):
        one(x).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None]))
    scale = gradients[0].abs().max()
    return float((gradients[0] - gradients[1]).abs().max() / scale)


if __name__ == "__main__":
    layers = [
        differences((3, 5, 7, 6), nn.ReLU()),
        differences((2, 130, 9, 11), nn.ReLU6()),
        differences((4, 24, 16, 16), nn.Identity()),
    ]
    networks = {name: network_difference(name) for name in ("tf_efficientnet_lite0", "resnet50")}
    doublings = [doubling_differences(shape) for shape in ((2, 5, 4, 7), (1, 3, 1, 1), (1, 130, 5, 3))]
    print(json.dumps({"layers": layers, "networks": networks, "doublings": doublings}))
