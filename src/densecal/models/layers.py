"""Layers and functions that several networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_bn_relu(
    in_channels: int, channels: int, kernel: int = 3, dilation: int = 1, bias: bool = False
) -> nn.Sequential:
    """Build a convolution that keeps the size, followed by batch norm and ReLU."""
    conv = nn.Conv2d(in_channels, channels, kernel, padding=dilation * (kernel // 2), dilation=dilation, bias=bias)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to single, for sums and logarithms that need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def resize_like(x: Tensor, other: Tensor) -> Tensor:
    """Resize a map bilinearly to the height and width of another."""
    return functional.interpolate(x, size=other.shape[-2:], mode="bilinear", align_corners=False)
