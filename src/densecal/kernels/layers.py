"""Replacing the computation of layers by our kernels. Weights and their names stay the same."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def replace_forward(network: nn.Module, fits: Callable[[nn.Module], bool], forward: Callable[..., Tensor]) -> None:
    """Let ``forward`` compute the layers for which ``fits`` is true, also in copies of the network."""
    for module in network.modules():
        if fits(module):
            module.forward = functools.partial(forward, module)


def compute_dtype(conv: nn.Conv2d, x: Tensor) -> torch.dtype | None:
    """Return the precision in which `conv2d` would compute, or None if input and weights differ in theirs."""
    if x.dtype in PRECISIONS and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.dtype == conv.weight.dtype else None
