"""Run by test_depthwise.py under Triton's interpreter: prints the largest differences from PyTorch in float64."""

import copy
import functools
import json
import sys
import warnings

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
    """Those of a layer; under autocast to ``precision``, from inputs and gradients that it holds, relative to 1."""
    conv, shape = layer(*case), case[-1]
    given = torch.randn(shape)
    gradient = torch.randn(conv(given).shape)
    if precision is not None:
        given, gradient = given.to(precision).float(), gradient.to(precision).float()
        with torch.no_grad():
            conv.weight.copy_(conv.weight.to(precision))
    ours, theirs = copy.deepcopy(conv), conv.double()
    replace_depthwise(ours)
    a, b = given.clone().requires_grad_(), given.double().requires_grad_()
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        y = ours(a)
    assert type(y.grad_fn).__name__ == "DepthwiseConvolutionBackward", y.grad_fn
    assert y.dtype == (precision or torch.float32), y.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    wanted = theirs(b)
    y.backward(gradient.to(y.dtype))
    wanted.backward(gradient.double())
    return distances(ours, theirs, (y, wanted), (a, b))


def distances(
    ours: nn.Conv2d, theirs: nn.Conv2d, outputs: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Those of two layers after their backward passes."""
    pairs = {"output": outputs, "dx": (inputs[0].grad, inputs[1].grad)}
    for name, parameter in theirs.named_parameters():
        pairs[f"d{name}"] = (getattr(ours, name).grad, parameter.grad)
    assert ours.weight.grad.dtype == torch.float32
    return {name: distance(*pair) for name, pair in pairs.items()}


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours.detach().double() - theirs.detach()).abs() / theirs.detach().abs().clamp(min=1)).max())


def network_difference() -> dict[str, float]:
    """Those of the first stages of EfficientNet-Lite0, which have both kernels and both strides."""
    torch.manual_seed(0)
    whole = timm.create_model("tf_efficientnet_lite0")
    network = nn.Sequential(whole.conv_stem, whole.bn1, whole.blocks[:3]).to(memory_format=torch.channels_last)
    fused = copy.deepcopy(network)
    names = list(fused.state_dict())
    replace_depthwise(fused)
    convolutions = sum("forward" in vars(one) for one in fused.modules())
    assert list(fused.state_dict()) == names
    fused = copy.deepcopy(fused)
    x = torch.randn(2, 3, 18, 18).contiguous(memory_format=torch.channels_last)
    outputs, gradients = [], []
    for one in (network, fused):
        y = one(x)
        (y - 1).square().mean().backward()
        outputs.append(y.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in one.parameters()]))
    network.load_state_dict(fused.state_dict())
    network.eval()
    fused.eval()
    with torch.no_grad():
        evaluation = float((fused(x) - network(x)).abs().max())
    return {
        "convolutions": convolutions,
        "output": float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()),
        "gradient": float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()),
        "evaluation": evaluation,
    }


def warning_of_wrong_kernels() -> str:
    """What is said where a gradient is wrong, after making sure that the layer then computes as it did before."""
    right = depthwise._summed
    depthwise._summed = lambda *given: 1.01 * right(*given)
    agree, depthwise._kernels_agree = depthwise._kernels_agree, functools.cache(depthwise._kernels_agree.__wrapped__)
    conv = layer(*LAYERS[0])
    x = torch.randn(LAYERS[0][-1])
    wanted = conv(x)
    replace_depthwise(conv)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(conv(x), wanted)
        assert torch.equal(conv(x), wanted)
    depthwise._summed, depthwise._kernels_agree = right, agree
    assert len(said) == 1, said
    return str(said[0].message)


if __name__ == "__main__":
    depthwise._DEVICES = ("cpu",)
    depthwise._BLOCK_C = 64  # the interpreter takes as long for a small tile as for a large one
    found = {
        "float32": [differences(case) for case in LAYERS],
        "bfloat16": [differences(LAYERS[i], torch.bfloat16) for i in (0, 7)],
        "float16": [differences(LAYERS[0], torch.float16)],
    }
    depthwise.PROGRAMS = 1  # so that a program sums over several tiles, and the last one over fewer
    found["float32"].append(differences(LARGE))
    found["warning"] = warning_of_wrong_kernels()
    depthwise._BLOCK_C = 256
    found["network"] = network_difference()
    json.dump(found, sys.stdout)
