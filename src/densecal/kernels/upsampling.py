"""Doubling the size of a map, nearest or bilinear, on CUDA by our own kernels, for channels-last maps.

PyTorch's kernels take a third of a step of the paper's U-Net, where moving the bytes would take a twentieth. Under
autocast they also convert to float32.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn.functional import interpolate

from densecal.kernels.launch import launch
from densecal.kernels.layers import replace_forward
from densecal.kernels.self_test import agree

NEAREST, BILINEAR, BILINEAR_CORNERS = 0, 1, 2
_DEVICES = ("cuda",)
_TILE = 2048
_REACH = {NEAREST: 2, BILINEAR: 4, BILINEAR_CORNERS: 6}
"""Number of outputs that an input contributes to, per dimension. Those of input i begin at 2 i - REACH / 2 + 1."""


@triton.jit
def _source(o, size, MODE: tl.constexpr):
    """Return the position of output o among the ``size`` inputs of a dimension."""
    if MODE == 2:
        return o.to(tl.float32) * ((size - 1) / (2 * size - 1))
    return tl.maximum(o.to(tl.float32) * 0.5 - 0.25, 0.0)


@triton.jit
def _share(k: tl.constexpr, i, size, MODE: tl.constexpr):
    """Return the weight of input i in the k-th of the outputs it contributes to, 0 outside the map."""
    if MODE == 0:
        return tl.full(i.shape, 1.0, tl.float32)
    if MODE == 1:  # weights of 1/4, 3/4, 3/4 and 1/4; at an edge, an output depends on one input alone
        inner = i > 0 if k < 2 else i < size - 1
        return tl.where(inner, 0.25, 0.0) if k % 3 == 0 else tl.where(inner, 0.75, 1.0)
    o = 2 * i - 2 + k
    s = _source(o, size, MODE)
    low = s.to(tl.int32)
    part = s - low
    high = tl.minimum(low + 1, size - 1)
    weight = tl.where(low == i, 1.0 - part, 0.0) + tl.where(high == i, part, 0.0)
    return tl.where((o >= 0) & (o < 2 * size), weight, 0.0)


@triton.jit
def _forward(x, y, pixels, H, W, C, MODE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    inside = (m < pixels)[:, None] & (c < C)
    ox, oy, n = m % (2 * W), m // (2 * W) % (2 * H), m // (4 * H * W)
    base = n * H * W
    if MODE == 0:
        v = tl.load(x + (base + oy // 2 * W + ox // 2)[:, None] * C + c, mask=inside, other=0.0)
    else:
        sy, sx = _source(oy, H, MODE), _source(ox, W, MODE)
        y0, x0 = sy.to(tl.int32), sx.to(tl.int32)
        wy, wx = (sy - y0)[:, None], (sx - x0)[:, None]
        y1, x1 = tl.minimum(y0 + 1, H - 1), tl.minimum(x0 + 1, W - 1)
        a = tl.load(x + (base + y0 * W + x0)[:, None] * C + c, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + (base + y0 * W + x1)[:, None] * C + c, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(x + (base + y1 * W + x0)[:, None] * C + c, mask=inside, other=0.0).to(tl.float32)
        e = tl.load(x + (base + y1 * W + x1)[:, None] * C + c, mask=inside, other=0.0).to(tl.float32)
        v = ((a * (1 - wx) + b * wx) * (1 - wy) + (d * (1 - wx) + e * wx) * wy).to(y.dtype.element_ty)
    tl.store(y + m[:, None] * C + c, v, mask=inside)


@triton.jit
def _backward(
    dy, dx, pixels, H, W, C, MODE: tl.constexpr, REACH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Sum the gradient of each input over the outputs it contributes to, so that no atomic addition is needed."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    inside = (m < pixels)[:, None] & (c < C)
    ix, iy, n = (m % W).to(tl.int32), (m // W % H).to(tl.int32), m // (H * W)
    base = n * 4 * H * W
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    first: tl.constexpr = 1 - REACH // 2
    for ky in tl.static_range(REACH):
        wy = _share(ky, iy, H, MODE)
        for kx in tl.static_range(REACH):
            w = wy * _share(kx, ix, W, MODE)
            source = base + (2 * iy + first + ky) * (2 * W) + 2 * ix + first + kx
            g = tl.load(dy + source[:, None] * C + c, mask=inside & (w > 0)[:, None], other=0.0)
            total += w[:, None] * g.to(tl.float32)
    tl.store(dx + m[:, None] * C + c, total.to(dx.dtype.element_ty), mask=inside)


class Doubling(torch.autograd.Function):
    """Doubling the size of a map (B, C, H, W), as in `torch.nn.functional.interpolate`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mode: int) -> Tensor:
        """Upsample by one of the modes of this file."""
        x = x.contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = x.shape
        y = torch.empty(
            (batch, channels, 2 * height, 2 * width),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        _launch(_forward, x, y, 4 * batch * height * width, height, width, channels, MODE=mode)
        ctx.mode = mode
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        """Compute the gradient of the input."""
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = dy.shape
        height, width = height // 2, width // 2
        dx = torch.empty(
            (batch, channels, height, width), dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last
        )
        _launch(
            _backward, dy, dx, batch * height * width, height, width, channels, MODE=ctx.mode, REACH=_REACH[ctx.mode]
        )
        return dx, None


def _launch(
    kernel: Any, a: Tensor, b: Tensor, pixels: int, height: int, width: int, channels: int, **options: int
) -> None:
    block_c = min(triton.next_power_of_2(channels), 128)
    block_m = _TILE // block_c
    grid = (triton.cdiv(pixels, block_m), triton.cdiv(channels, block_c))
    launch(kernel, grid, a, b, pixels, height, width, channels, BLOCK_M=block_m, BLOCK_C=block_c, **options)


def replace_upsampling(network: nn.Module) -> None:
    """Let a network double the size of its maps with the kernels of this file, in the precision of the maps."""
    replace_forward(network, _doubles, _forward_upsample)
    replace_forward(network, _is_unet_block, _forward_unet_block)


def _doubles(module: nn.Module) -> bool:
    return type(module) is nn.Upsample and module.scale_factor == 2 and module.mode in ("nearest", "bilinear")


def _is_unet_block(module: nn.Module) -> bool:
    """Return whether a module is a decoder block of smp's U-Net, which upsamples by a function, not a layer."""
    return type(module).__name__ == "UnetDecoderBlock" and module.interpolation_mode == "nearest"


def _forward_upsample(layer: nn.Upsample, x: Tensor) -> Tensor:
    kind = NEAREST if layer.mode == "nearest" else BILINEAR_CORNERS if layer.align_corners else BILINEAR
    if _is_supported(x, kind):
        return Doubling.apply(x, kind)  # type: ignore[no-any-return]
    return type(layer).forward(layer, x)


def _forward_unet_block(
    block: Any, x: Tensor, height: int, width: int, skip_connection: Tensor | None = None
) -> Tensor:
    if (height, width) != (2 * x.shape[2], 2 * x.shape[3]) or not _is_supported(x, NEAREST):
        return type(block).forward(block, x, height, width, skip_connection)  # type: ignore[no-any-return]
    x = Doubling.apply(x, NEAREST)
    if skip_connection is not None:
        x = block.attention1(torch.cat([x, skip_connection], dim=1))
    return block.attention2(block.conv2(block.conv1(x)))  # type: ignore[no-any-return]


def _is_supported(x: Tensor, kind: int) -> bool:
    return x.device.type in _DEVICES and _kernels_agree(x.device, kind, torch.is_grad_enabled())


@functools.cache
def _kernels_agree(device: torch.device, kind: int, training: bool) -> bool:
    random = torch.Generator().manual_seed(0)  # a generator of its own, so that a resumed run draws the same dropout
    x, gradient = torch.randn(2, 5, 4, 7, generator=random), torch.randn(2, 5, 8, 14, generator=random)
    mode = "nearest" if kind == NEAREST else "bilinear"
    corners = None if kind == NEAREST else kind == BILINEAR_CORNERS
    return agree(
        f"{mode} upsampling",
        lambda x: Doubling.apply(x, kind),
        lambda x: interpolate(x, scale_factor=2.0, mode=mode, align_corners=corners),
        [x],
        gradient if training else None,
        device,
    )
