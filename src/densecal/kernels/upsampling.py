"""Doubling the size of a map, nearest or bilinear, on CUDA by kernels of our own for channels-last maps.

PyTorch's kernels take a third of the step of the paper's U-Net, where moving the bytes would take a twentieth; under
autocast they also go through float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from densecal.kernels.launch import launch

NEAREST, BILINEAR, BILINEAR_CORNERS = 0, 1, 2
_TILE = 2048
_REACH = {NEAREST: 2, BILINEAR: 4, BILINEAR_CORNERS: 6}
"""Outputs that an input can touch, in one dimension; those of input i begin at 2 i - REACH / 2 + 1."""


@triton.jit
def _source(o, size, MODE: tl.constexpr):
    """Where output o of a dimension lies among ``size`` inputs."""
    if MODE == 2:
        return o.to(tl.float32) * ((size - 1) / (2 * size - 1))
    return tl.maximum(o.to(tl.float32) * 0.5 - 0.25, 0.0)


@triton.jit
def _share(k: tl.constexpr, i, size, MODE: tl.constexpr):
    """Weight of input i in the k-th of the outputs it can touch; 0 beyond the map."""
    if MODE == 0:
        return tl.full(i.shape, 1.0, tl.float32)
    if MODE == 1:  # a quarter, three, three and a quarter; at an edge an output has nothing else to hold
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
    """Every input gathers from the outputs it touched, so nothing is added atomically."""
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
            place = base + (2 * iy + first + ky) * (2 * W) + 2 * ix + first + kx
            g = tl.load(dy + place[:, None] * C + c, mask=inside & (w > 0)[:, None], other=0.0)
            total += w[:, None] * g.to(tl.float32)
    tl.store(dx + m[:, None] * C + c, total.to(dx.dtype.element_ty), mask=inside)


class Doubling(torch.autograd.Function):
    """A map (B, C, H, W) at twice its size, as `torch.nn.functional.interpolate` gives it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mode: int) -> Tensor:
        """Take one of the modes of this file."""
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
        """Gather the gradient."""
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


def _launch(kernel: Any, a: Tensor, b: Tensor, pixels: int, height: int, width: int, channels: int, **how: int) -> None:
    block_c = min(triton.next_power_of_2(channels), 128)
    block_m = _TILE // block_c
    grid = (triton.cdiv(pixels, block_m), triton.cdiv(channels, block_c))
    launch(kernel, grid, a, b, pixels, height, width, channels, BLOCK_M=block_m, BLOCK_C=block_c, **how)
