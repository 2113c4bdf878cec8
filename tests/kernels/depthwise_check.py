"""Run by test_depthwise.py under Triton's interpreter: prints the largest differences from PyTorch in float64."""

import copy
import functools
import json
import sys
import warnings

import faster_interpreter  # noqa: F401 (in the same folder)
import timm
import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn

from densecal.kernels import depthwise
from densecal.kernels.depthwise import replace_depthwise

LAYERS = [
    # kind, kernel, stride, padding, bias, shape
    (nn.Conv2d, 3, 1, 1, False, (2, 5, 7, 9)),
    (nn.Conv2d, 5, 1, 2, True, (2, 40, 6, 5)),
    (nn.Conv2d, 3, 2, 1, True, (3, 70, 9, 7)),
    (nn.Conv2d, 5, 2, 2, False, (1, 9, 10, 11)),
    (nn.Conv2d, 3, 1, (2, 0), False, (1, 6, 4, 6)),
    (nn.Conv2d, 5, 2, (0, 1), False, (2, 6, 8, 9)),
    (nn.Conv2d, 3, 1, 1, False, (2, 4, 1, 1)),
    (Conv2dSame, 3, 2, 0, False, (2, 5, 8, 9)),
    (Conv2dSame, 5, 2, 0, True, (1, 10, 7, 12)),
    (Conv2dSame, 5, 1, 0, False, (2, 3, 6, 7)),
]
LARGE = (nn.Conv2d, 3, 1, 1, False, (2, 8, 11, 35))


def layer(kind: type[nn.Conv2d], kernel: int, stride: int, padding, bias: bool, shape: tuple[int, ...]) -> nn.Conv2d:
    torch.manual_seed(0)
    return kind(shape[1], shape[1], kernel, stride, padding, groups=shape[1], bias=bias)


def differences(case: tuple, precision: torch.dtype | None = None) -> dict[str, float]:
    """Return those of a layer, relative to 1. With ``precision``: under autocast, with values exact in it."""
    conv, shape = layer(*case), case[-1]
    x = torch.randn(shape)
    gradient = torch.randn(conv(x).shape)
    if precision is not None:
        x, gradient = x.to(precision).float(), gradient.to(precision).float()
        with torch.no_grad():
            conv.weight.copy_(conv.weight.to(precision))
    ours, theirs = copy.deepcopy(conv), conv.double()
    replace_depthwise(ours)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        y = ours(a)
    assert type(y.grad_fn).__name__ == "DepthwiseConvolutionBackward", y.grad_fn
    assert y.dtype == (precision or torch.float32), y.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    expected = theirs(b)
    y.backward(gradient.to(y.dtype))
    expected.backward(gradient.double())
    return distances(ours, theirs, (y, expected), (a, b))


def distances(
    ours: nn.Conv2d, theirs: nn.Conv2d, outputs: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Return the differences of two layers after their backward passes."""
    pairs = {"output": outputs, "dx": (inputs[0].grad, inputs[1].grad)}
    for name, parameter in theirs.named_parameters():
        pairs[f"d{name}"] = (getattr(ours, name).grad, parameter.grad)
    assert ours.weight.grad.dtype == torch.float32
    return {name: distance(*pair) for name, pair in pairs.items()}


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours.detach().double() - theirs.detach()).abs() / theirs.detach().abs().clamp(min=1)).max())


def network_differences() -> dict[str, float]:
    """Return those of the first stages of EfficientNet-Lite0, which have both kernel sizes and both strides."""
    torch.manual_seed(0)
    whole = timm.create_model("tf_efficientnet_lite0")
    network = nn.Sequential(whole.conv_stem, whole.bn1, whole.blocks[:3]).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(network)
    names = list(ours.state_dict())
    replace_depthwise(ours)
    convolutions = sum("forward" in vars(module) for module in ours.modules())
    assert list(ours.state_dict()) == names
    ours = copy.deepcopy(ours)
    x = torch.randn(2, 3, 18, 18).contiguous(memory_format=torch.channels_last)
    outputs, gradients = [], []
    for either in (network, ours):
        y = either(x)
        (y - 1).square().mean().backward()
        outputs.append(y.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in either.parameters()]))
    network.load_state_dict(ours.state_dict())
    network.eval()
    ours.eval()
    with torch.no_grad():
        evaluation = float((ours(x) - network(x)).abs().max())
    return {
        "convolutions": convolutions,
        "output": float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()),
        "gradient": float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()),
        "evaluation": evaluation,
    }


def warning_of_wrong_kernels() -> str:
    """Return the warning about a wrong gradient, after checking that the layer computes as it did before."""
    correct = depthwise._taps_gradient
    depthwise._taps_gradient = lambda *arguments: 1.01 * correct(*arguments)
    agree, depthwise._kernels_agree = depthwise._kernels_agree, functools.cache(depthwise._kernels_agree.__wrapped__)
    conv = layer(*LAYERS[0])
    x = torch.randn(LAYERS[0][-1])
    expected = conv(x)
    replace_depthwise(conv)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(conv(x), expected)
        assert torch.equal(conv(x), expected)
    depthwise._taps_gradient, depthwise._kernels_agree = correct, agree
    assert len(caught) == 1, caught
    return str(caught[0].message)


if __name__ == "__main__":
    depthwise._DEVICES = ("cpu",)
    depthwise._BLOCK_C = 64  # the interpreter takes as long for a small tile as for a large one
    output = {
        "float32": [differences(case) for case in LAYERS],
        "bfloat16": [differences(LAYERS[i], torch.bfloat16) for i in (0, 7)],
        "float16": [differences(LAYERS[0], torch.float16)],
    }
    depthwise.PROGRAMS = 1  # so that a program sums over several tiles, and the last one over fewer
    output["float32"].append(differences(LARGE))
    output["warning"] = warning_of_wrong_kernels()
    depthwise._BLOCK_C = 256
    output["network"] = network_differences()
    json.dump(output, sys.stdout)
