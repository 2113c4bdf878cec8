"""Run by test_small_convolutions.py under Triton's interpreter: prints the largest differences from PyTorch in float64.

They compute in float16, because the interpreter has no products of bfloat16 matrices.
"""

import copy
import functools
import json
import pickle
import sys
import warnings
from collections.abc import Callable

import faster_interpreter  # noqa: F401 (in the same folder)
import torch
from depthwise_check import distances  # in the same folder
from torch import Tensor, nn

from densecal.kernels import small_convolutions
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
    """Return those of a layer, relative to 1, for inputs, weights and gradients that are exact in float16."""
    conv, x = layer(case)
    x = x.half().float()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(parameter.half())
    ours, theirs = copy.deepcopy(conv), conv.double()
    replace_small_convolutions(ours)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = in_half(ours, a), theirs(b)
    assert type(y.grad_fn).__name__ == "SmallConvolutionBackward", y.grad_fn
    assert y.dtype == torch.float16, y.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(y.shape).half()
    y.backward(gradient)
    expected.backward(gradient.double())
    return distances(ours, theirs, (y, expected), (a, b))


def replaced_convolutions() -> list[str]:
    """Return the names of those in a U-Net."""
    network = build("unet", "tf_efficientnet_lite0", None, 1)
    replace_small_convolutions(network)
    return [
        name for name, module in network.named_modules() if isinstance(module, nn.Conv2d) and "forward" in vars(module)
    ]


def full_precision_is_left_alone() -> bool:
    conv, x = layer(LAYERS[0])
    expected = conv(x)
    replace_small_convolutions(conv)
    return bool(torch.equal(conv(x), expected))


def warning_of(name: str, wrong: Callable[..., Callable[..., Tensor]], case: tuple) -> str:
    """Return the warning about a wrong function, after checking that the layer computes as it did before."""
    correct = getattr(small_convolutions, name)
    setattr(small_convolutions, name, wrong(correct))
    agree = small_convolutions._kernels_agree
    small_convolutions._kernels_agree = functools.cache(agree.__wrapped__)
    conv, x = layer(case)
    expected = in_half(conv, x)
    replace_small_convolutions(conv)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(in_half(conv, x), expected)
        assert torch.equal(in_half(conv, x), expected)
    setattr(small_convolutions, name, correct)
    small_convolutions._kernels_agree = agree
    assert len(caught) == 1, caught
    return str(caught[0].message)


def warnings_of_wrong_kernels() -> list[str]:
    def larger(correct: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *arguments, **options: 1.02 * correct(*arguments, **options)

    def without_bias(correct: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, taps, bias, back: correct(x, taps, None, back)

    def of_first_tile(correct: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, dy: correct(x[..., :8, :16].contiguous(), dy[..., :8, :16].contiguous())

    cases = [
        ("_taps_gradient", larger, 1),
        ("_run_convolution", larger, 1),
        ("_run_convolution", without_bias, 2),
        ("_taps_gradient", of_first_tile, 0),
    ]
    return [warning_of(name, wrong, LAYERS[i]) for name, wrong, i in cases]


def a_copy_has_weights_of_its_own() -> bool:
    conv, x = layer(LAYERS[0])
    replace_small_convolutions(conv)
    for copied in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        with torch.no_grad():
            copied.weight.zero_()
        assert not in_half(copied, x).any()
    return bool(in_half(conv, x).any())


if __name__ == "__main__":
    small_convolutions._DEVICES = ("cpu",)
    output = {"layers": [differences(case) for case in LAYERS]}
    small_convolutions._PROGRAMS = 5  # so that a program sums over several tiles, and the last one over fewer
    output["layers"].append(differences((16, 4, False, (3, 15, 18))))
    output["warnings"] = warnings_of_wrong_kernels()
    output["copy"] = a_copy_has_weights_of_its_own()
    output["convolutions"] = replaced_convolutions()
    output["full precision"] = full_precision_is_left_alone()
    json.dump(output, sys.stdout)
