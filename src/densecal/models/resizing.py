"""Doubling the size of a map in its own precision; on CUDA by the kernels of `densecal.kernels.upsampling`."""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from densecal.kernels.self_test import agree


def doubled(x: Tensor, mode: str, align_corners: bool | None = None) -> Tensor:
    """Double the size of a map (B, C, H, W), nearest or bilinear, as `interpolate` does.

    Under autocast `interpolate` goes through float32, which costs twice the memory and time without need.
    """
    case = x.device, mode, align_corners, torch.is_grad_enabled()
    if x.is_cuda and not torch.compiler.is_compiling() and _kernels_agree(*case):
        return _by_kernels(x, mode, align_corners)
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners)
    return interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners)


def _by_kernels(x: Tensor, mode: str, align_corners: bool | None) -> Tensor:
    from densecal.kernels.upsampling import BILINEAR, BILINEAR_CORNERS, NEAREST, Doubling

    kind = NEAREST if mode == "nearest" else BILINEAR_CORNERS if align_corners else BILINEAR
    return Doubling.apply(x, kind)  # type: ignore[no-any-return]


@functools.cache
def _kernels_agree(device: torch.device, mode: str, align_corners: bool | None, training: bool) -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    random = torch.Generator().manual_seed(0)  # its own, so that a resumed run draws the same dropout
    given, gradient = torch.randn(2, 5, 4, 7, generator=random), torch.randn(2, 5, 8, 14, generator=random)
    return agree(
        f"{mode} upsampling",
        lambda x: _by_kernels(x, mode, align_corners),
        lambda x: interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners),
        [given],
        gradient if training else None,
        device,
    )
