"""Layers that compute by our kernels. Their weights and names stay."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def replace_forward(network: nn.Module, fits: Callable[[nn.Module], bool], forward: Callable[..., Tensor]) -> None:
    """Let ``forward`` compute the layers that fit, in copies of the network too."""
    for module in network.modules():
        if fits(module):
            module.forward = functools.partial(forward, module)


def computed_in(conv: nn.Conv2d, x: Tensor) -> torch.dtype | None:
    """Return the precision that `conv2d` would compute in."""
    if x.dtype in PRECISIONS and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.dtype == conv.weight.dtype else None
