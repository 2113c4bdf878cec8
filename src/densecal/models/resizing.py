"""Doubling the size of a map in its own precision; on CUDA by the kernels of `densecal.models.doubling`."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def doubled(x: Tensor, mode: str, align_corners: bool | None = None) -> Tensor:
    """Double the size of a map (B, C, H, W), nearest or bilinear, as `interpolate` does.

    Under autocast `interpolate` goes through float32, which costs twice the memory and time without need.
    """
    if x.is_cuda and not torch.compiler.is_compiling() and _kernels_agree(x.device, mode, align_corners):
        return _by_kernels(x, mode, align_corners)
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners)
    return interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners)


def _by_kernels(x: Tensor, mode: str, align_corners: bool | None) -> Tensor:
    from densecal.models.doubling import BILINEAR, BILINEAR_CORNERS, NEAREST, Doubling

    kind = NEAREST if mode == "nearest" else BILINEAR_CORNERS if align_corners else BILINEAR
    return Doubling.apply(x, kind)  # type: ignore[no-any-return]


@functools.cache
def _kernels_agree(device: torch.device, mode: str, align_corners: bool | None) -> bool:
    """Whether there are kernels that this device's compiler translates rightly: tried once on a small map."""
    if importlib.util.find_spec("triton") is None:
        return False
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = torch.rand(2, 8, 5, 6, device=device, requires_grad=True)
        weight = torch.rand(2, 8, 10, 12, device=device)
        ours = _by_kernels(x, mode, align_corners)
        theirs = interpolate(x, scale_factor=2.0, mode=mode, align_corners=align_corners)
        ours_dx, theirs_dx = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs))
    agree = torch.allclose(ours, theirs, atol=1e-4) and torch.allclose(ours_dx, theirs_dx, atol=1e-4)
    if not agree:
        warnings.warn(f"{mode} upsampling kernels disagree with PyTorch on {device}: PyTorch's are used", stacklevel=3)
    return agree
