"""Run by test_narrow.py under Triton's interpreter: prints the largest differences from PyTorch in float64.

In float16: the interpreter has no products of bfloat16 matrices.
"""

import copy
import functools
import json
import pickle
import sys
import warnings
from collections.abc import Callable

import torch
from depthwise_check import distances  # beside this file
from torch import Tensor, nn

from densecal.kernels import small_convolutions as narrow
from densecal.kernels.small_convolutions import replace_small_convolutions
from densecal.models import build

LAYERS = [
    # channels in and out, bias, shape
    (16, 16, False, (2, 19, 21)),
    (32, 16, False, (1, 8, 16)),
    (16, 1, True, (2, 9, 33)),
    (24, 7, True, (1, 3, 2)),
    (3, 5, False, (3, 1, 1)),
    (1, 1, False, (2, 17, 5)),
]


def layer(case: tuple) -> tuple[nn.Conv2d, Tensor]:
    torch.manual_seed(0)
    channels, out, bias, (batch, height, width) = case
    return nn.Conv2d(channels, out, 3, padding=1, bias=bias), torch.randn(batch, channels, height, width)


def in_half(operation, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return operation(x)


def differences(case: tuple) -> dict[str, float]:
    """Those of a layer, from inputs, weights and gradients that float16 holds, relative to 1."""
    conv, given = layer(case)
    given = given.half().float()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(parameter.half())
    ours, theirs = copy.deepcopy(conv), conv.double()
    replace_small_convolutions(ours)
    a, b = given.clone().requires_grad_(), given.double().requires_grad_()
    y, wanted = in_half(ours, a), theirs(b)
    assert type(y.grad_fn).__name__ == "NarrowConvolutionBackward", y.grad_fn
    assert y.dtype == torch.float16, y.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(y.shape).half()
    y.backward(gradient)
    wanted.backward(gradient.double())
    return distances(ours, theirs, (y, wanted), (a, b))


def fused_convolutions() -> list[str]:
    """The names of those of a U-Net."""
    network = build("unet", "tf_efficientnet_lite0", None, 1)
    replace_small_convolutions(network)
    return [name for name, one in network.named_modules() if isinstance(one, nn.Conv2d) and "forward" in vars(one)]


def full_precision_is_left_alone() -> bool:
    conv, x = layer(LAYERS[0])
    wanted = conv(x)
    replace_small_convolutions(conv)
    return bool(torch.equal(conv(x), wanted))


def warning_of(part: str, wrong: Callable[..., Callable[..., Tensor]], case: tuple) -> str:
    """What is said where a part is wrong, after making sure that the layer then computes as it did before."""
    right = getattr(narrow, part)
    setattr(narrow, part, wrong(right))
    agree, narrow._kernels_agree = narrow._kernels_agree, functools.cache(narrow._kernels_agree.__wrapped__)
    conv, x = layer(case)
    wanted = in_half(conv, x)
    replace_small_convolutions(conv)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(in_half(conv, x), wanted)
        assert torch.equal(in_half(conv, x), wanted)
    setattr(narrow, part, right)
    narrow._kernels_agree = agree
    assert len(said) == 1, said
    return str(said[0].message)


def warnings_of_wrong_kernels() -> list[str]:
    def larger(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *given, **how: 1.02 * right(*given, **how)

    def without_bias(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, taps, bias, back: right(x, taps, None, back)

    def of_first_tile(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, dy: right(x[..., :8, :16].contiguous(), dy[..., :8, :16].contiguous())

    cases = [
        ("_summed", larger, 1),
        ("_convolved", larger, 1),
        ("_convolved", without_bias, 2),
        ("_summed", of_first_tile, 0),
    ]
    return [warning_of(part, wrong, LAYERS[i]) for part, wrong, i in cases]


def a_copy_has_weights_of_its_own() -> bool:
    conv, x = layer(LAYERS[0])
    replace_small_convolutions(conv)
    for copied in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        with torch.no_grad():
            copied.weight.zero_()
        assert not in_half(copied, x).any()
    return bool(in_half(conv, x).any())


if __name__ == "__main__":
    narrow._DEVICES = ("cpu",)
    found = {"layers": [differences(case) for case in LAYERS]}
    narrow._PROGRAMS = 5  # so that a program sums over several tiles, and the last one over fewer
    found["layers"].append(differences((16, 4, False, (3, 15, 18))))
    found["warnings"] = warnings_of_wrong_kernels()
    found["copy"] = a_copy_has_weights_of_its_own()
    found["convolutions"] = fused_convolutions()
    found["full precision"] = full_precision_is_left_alone()
    json.dump(found, sys.stdout)
