"""Depth-wise convolution on CUDA by our own kernels, for channels-last maps.

cuDNN compiles its kernels for it again in every process, which delays the first step of a network of the EfficientNet
family by half a minute, and its backward kernels take three times as long as moving the bytes. Here a program computes
neighbouring pixels from the same inputs. Sums are float32 and added in a fixed order, so steps are deterministic.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d

from densecal.kernels.launch import launch
from densecal.kernels.layers import PRECISIONS, compute_dtype, replace_forward
from densecal.kernels.normalisation import PROGRAMS
from densecal.kernels.self_test import agree

Pair = tuple[int, int]
_DEVICES = ("cuda",)
_BLOCK_M = 32
"""Groups of four pixels per tile. Each of 128 threads gets eight values, which is one load of bfloat16."""
_BLOCK_C = 32
"""Channels per tile: 64 bytes of bfloat16 per pixel, and EfficientNet's channels are close to multiples of it."""
_STEPS = 4
"""Tiles summed per program: few enough that they are still in its cache when it comes to the next row of taps."""
_SIZES = ["rows", "H", "W", "OH", "OW", "top", "left", "steps"]
"""Not specialised, so that a kernel is compiled once for maps of all sizes. C is: divisibility by 16 speeds it up."""


@triton.jit
def _add(totals, i: tl.constexpr, a, b):
    """Add a * b to one of the totals."""
    return totals[:i] + (tl.fma(a, b, totals[i]),) + totals[i + 1 :]  # noqa: RUF005 (no unpacking in Triton)


@triton.jit
def _tile(t, across, BLOCK_M: tl.constexpr, WIDE: tl.constexpr):
    """Return the rows and columns of tile t. Tiles are WIDE columns wide, so that pixels share many neighbours."""
    i = tl.arange(0, BLOCK_M)
    tiles = tl.cdiv(across, WIDE)
    return t // tiles * (BLOCK_M // WIDE) + i // WIDE, t % tiles * WIDE + i % WIDE


@triton.jit(do_not_specialize=_SIZES)
def _convolve(
    x, taps, bias, y, rows, H, W, OH, OW, C, top, left,
    K: tl.constexpr, S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Convolve. Four outputs side by side share the inputs of K rows. ``rows`` counts the rows of all images."""
    columns = tl.cdiv(C, BLOCK_C)
    c = tl.program_id(0) % columns * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    row, quad = _tile(tl.program_id(0) // columns, tl.cdiv(OW, 4), BLOCK_M, 2)
    n, oy, ox = (row // OH).to(tl.int64), row % OH, quad * 4
    iy, ix = oy * S - top, ox * S - left
    source = x + ((n * H + iy) * W + ix)[:, None] * C + c
    inside = (row < rows)[:, None] & (c < C)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    if bias is not None:
        total += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    totals = (total, total, total, total)
    # not unrolled: the compiler would load all rows at once, into more registers than there are
    for ky in range(K):
        in_row = inside & ((iy + ky >= 0) & (iy + ky < H))[:, None]
        for j in tl.static_range(K + 3 * S):
            valid = in_row & ((ix + j >= 0) & (ix + j < W))[:, None]
            v = tl.load(source + (ky * W + j) * C, mask=valid, other=0.0).to(tl.float32)
            for r in tl.static_range(4):
                if j >= r * S and j < r * S + K:
                    w = tl.load(taps + (ky * K + j - r * S) * C + c, mask=c < C, other=0.0).to(tl.float32)
                    totals = _add(totals, r, v, w)
    out = y + ((n * OH + oy) * OW + ox)[:, None] * C + c
    for r in tl.static_range(4):
        tl.store(out + r * C, totals[r].to(y.dtype.element_ty), mask=inside & (ox + r < OW)[:, None])


@triton.jit(do_not_specialize=_SIZES)
def _input_gradient_stride_2(
    dy, taps, dx, rows, H, W, OH, OW, C, top, left,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the input at stride 2.

    In each dimension, input 2 * o - pad contributes to outputs o, o - 1, ... through the even taps, and input
    2 * o + 1 - pad through the odd ones. Squares of four inputs share what they load. ``rows`` counts the rows of
    squares of all images.
    """
    columns = tl.cdiv(C, BLOCK_C)
    c = tl.program_id(0) % columns * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    down, across = (H - 1 + top) // 2 - top // 2 + 1, (W - 1 + left) // 2 - left // 2 + 1
    row, square = _tile(tl.program_id(0) // columns, across, BLOCK_M, 4)
    n, oy, ox = (row // down).to(tl.int64), row % down + top // 2, square + left // 2
    source = dy + ((n * OH + oy) * OW + ox)[:, None] * C + c
    inside = (row < rows)[:, None] & (c < C)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    totals = (total, total, total, total)
    for a in tl.static_range((K + 1) // 2):
        in_row = inside & ((oy >= a) & (oy - a < OH))[:, None]
        for b in tl.static_range((K + 1) // 2):
            valid = in_row & ((ox >= b) & (ox - b < OW))[:, None]
            g = tl.load(source - (a * OW + b) * C, mask=valid, other=0.0).to(tl.float32)
            for r in tl.static_range(4):
                if 2 * a + r // 2 < K and 2 * b + r % 2 < K:
                    tap = (2 * a + r // 2) * K + 2 * b + r % 2
                    w = tl.load(taps + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
                    totals = _add(totals, r, g, w)
    for r in tl.static_range(4):
        iy, ix = 2 * oy + r // 2 - top, 2 * ox + r % 2 - left
        valid = inside & ((iy >= 0) & (iy < H) & (ix >= 0) & (ix < W))[:, None]
        tl.store(dx + ((n * H + iy) * W + ix)[:, None] * C + c, totals[r].to(dx.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=_SIZES)
def _sum_products(
    x, dy, partial, rows, H, W, OH, OW, C, top, left, steps,
    K: tl.constexpr, S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum gradient times input over ``steps`` tiles of outputs, for one row of taps after the other."""
    columns = tl.cdiv(C, BLOCK_C)
    c = tl.program_id(0) % columns * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    part = tl.program_id(0) // columns
    for ky in range(K):
        totals = (tl.zeros((BLOCK_M, BLOCK_C), tl.float32),) * K
        for step in range(steps):
            row, quad = _tile(part * steps + step, tl.cdiv(OW, 4), BLOCK_M, 2)
            n, oy, ox = (row // OH).to(tl.int64), row % OH, quad * 4
            iy, ix = oy * S - top + ky, ox * S - left
            out = dy + ((n * OH + oy) * OW + ox)[:, None] * C + c
            source = x + ((n * H + iy) * W + ix)[:, None] * C + c
            inside = ((row < rows) & (iy >= 0) & (iy < H))[:, None] & (c < C)
            for j in tl.static_range(K + 3 * S):
                valid = inside & ((ix + j >= 0) & (ix + j < W))[:, None]
                v = tl.load(source + j * C, mask=valid, other=0.0).to(tl.float32)
                for r in tl.static_range(4):
                    if j >= r * S and j < r * S + K:
                        g = tl.load(out + r * C, mask=inside & (ox + r < OW)[:, None], other=0.0).to(tl.float32)
                        totals = _add(totals, j - r * S, g, v)
        for kx in tl.static_range(K):
            target = partial + ((part * K + ky) * K + kx) * C + c
            tl.store(target, tl.sum(totals[kx], 0)[None, :], mask=c < C)


class DepthwiseConvolution(torch.autograd.Function):
    """Convolution of every channel of a map (B, C, H, W) with its own square of taps, as in `conv2d`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, before: Pair, size: Pair
    ) -> Tensor:
        """Convolve, given the rows and columns of zeros before the map and the height and width of the output."""
        x = x.contiguous(memory_format=torch.channels_last)
        channels, _, side, _ = weight.shape
        taps = torch.empty(side * side, channels, dtype=x.dtype, device=x.device)
        taps.copy_(weight.flatten(1).t())
        ctx.save_for_backward(x, taps, weight, bias)
        ctx.side, ctx.stride, ctx.before = side, stride, before
        return _run_convolution(x, taps, bias, side, stride, before, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        """Compute the gradients that are needed."""
        x, taps, weight, bias = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _input_gradient(dy, taps, ctx.side, ctx.stride, ctx.before, (x.shape[2], x.shape[3]))
        if ctx.needs_input_grad[1]:
            dtaps = _taps_gradient(x, dy, ctx.side, ctx.stride, ctx.before)
            dweight = torch.empty_like(weight).copy_(dtaps.t().view(weight.shape))
        if ctx.needs_input_grad[2]:
            dbias = dy.sum((0, 2, 3), dtype=torch.float32).to(bias.dtype)
        return dx, dweight, dbias, None, None, None


def _run_convolution(
    x: Tensor, taps: Tensor, bias: Tensor | None, side: int, stride: int, before: Pair, size: Pair
) -> Tensor:
    y, rows = _empty(x, size), len(x) * size[0]
    grid = (_tiles(rows, triton.cdiv(size[1], 4), 2) * triton.cdiv(x.shape[1], _BLOCK_C),)
    launch(
        _convolve, grid, x, taps, bias, y, rows, *x.shape[2:], *size, x.shape[1], *before,
        K=side, S=stride, BLOCK_M=_BLOCK_M, BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    return y


def _input_gradient(dy: Tensor, taps: Tensor, side: int, stride: int, before: Pair, size: Pair) -> Tensor:
    """Return the gradient of an input of this size."""
    if stride == 1:
        return _run_convolution(dy, taps.flip(0), None, side, 1, (side - 1 - before[0], side - 1 - before[1]), size)
    down, across = ((i - 1 + pad) // 2 - pad // 2 + 1 for i, pad in zip(size, before, strict=True))
    dx, rows = _empty(dy, size), len(dy) * down
    grid = (_tiles(rows, across, 4) * triton.cdiv(dy.shape[1], _BLOCK_C),)
    launch(
        _input_gradient_stride_2, grid, dy, taps, dx, rows, *size, *dy.shape[2:], dy.shape[1], *before,
        K=side, BLOCK_M=_BLOCK_M, BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    return dx


def _taps_gradient(x: Tensor, dy: Tensor, side: int, stride: int, before: Pair) -> Tensor:
    """Return the gradient of the taps (side * side, C)."""
    batch, channels, height, width = dy.shape
    tiles, columns = _tiles(batch * height, triton.cdiv(width, 4), 2), triton.cdiv(channels, _BLOCK_C)
    steps = max(1, min(_STEPS, tiles * columns // PROGRAMS))
    parts = triton.cdiv(tiles, steps)
    partial = torch.empty(parts, side * side, channels, device=x.device)
    launch(
        _sum_products, (parts * columns,),
        x, dy, partial, batch * height, *x.shape[2:], height, width, channels, *before, steps,
        K=side, S=stride, BLOCK_M=_BLOCK_M, BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    return partial.sum(dim=0)


def _empty(like: Tensor, size: Pair) -> Tensor:
    shape = (*like.shape[:2], *size)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _tiles(rows: int, across: int, wide: int) -> int:
    return int(triton.cdiv(rows, _BLOCK_M // wide) * triton.cdiv(across, wide))


def replace_depthwise(network: nn.Module) -> None:
    """Let the depth-wise convolutions of a network on CUDA use the kernels of this file."""
    replace_forward(network, _fits, _forward)


def _fits(conv: nn.Module) -> bool:
    if not isinstance(conv, nn.Conv2d) or not (type(conv) is nn.Conv2d or _pads_to_same(conv)):
        return False
    is_depthwise = 1 < conv.groups == conv.in_channels == conv.out_channels
    has_kernel = conv.kernel_size in ((3, 3), (5, 5)) and conv.stride in ((1, 1), (2, 2)) and conv.dilation == (1, 1)
    return is_depthwise and has_kernel and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _pads_to_same(conv: nn.Conv2d) -> bool:
    return type(conv).__name__ == "Conv2dSame"  # timm


def _forward(conv: nn.Conv2d, x: Tensor) -> Tensor:
    # conv2d reports what is wrong with an input
    if x.device.type in _DEVICES and x.dim() == 4 and x.shape[1] == conv.in_channels and len(x):
        before, size = _geometry(conv, x.shape[2], x.shape[3])
        side, stride, dtype = conv.kernel_size[0], conv.stride[0], compute_dtype(conv, x)
        training = torch.is_grad_enabled()
        if min(size) > 0 and dtype in PRECISIONS and _kernels_agree(x.device, dtype, side, stride, training):
            y: Tensor = DepthwiseConvolution.apply(x.to(dtype), conv.weight, conv.bias, stride, before, size)
            return y
    return type(conv).forward(conv, x)


def _geometry(conv: nn.Conv2d, *sizes: int) -> tuple[Pair, Pair]:
    """Return how many zeros to pad before a map of these sizes, and the sizes of the output."""
    side, stride = conv.kernel_size[0], conv.stride[0]
    if _pads_to_same(conv):
        totals = [max((triton.cdiv(i, stride) - 1) * stride + side - i, 0) for i in sizes]
    else:
        totals = [2 * int(pad) for pad in conv.padding]
    down, across = ((i + total - side) // stride + 1 for i, total in zip(sizes, totals, strict=True))
    return (totals[0] // 2, totals[1] // 2), (down, across)


@functools.cache
def _kernels_agree(device: torch.device, dtype: torch.dtype, side: int, stride: int, training: bool) -> bool:
    """Test the kernels that training, or prediction, uses, so that none is compiled twice or for nothing."""
    random = torch.Generator().manual_seed(0)  # a generator of its own, so that a resumed run draws the same dropout
    inputs = [torch.randn(shape, generator=random).to(dtype) for shape in ((2, 48, 7, 6), (48, 1, side, side))]
    size = (6 // stride + 1, 5 // stride + 1)
    return agree(
        "depth-wise",
        lambda x, weight: DepthwiseConvolution.apply(x, weight, None, stride, (side // 2, side // 2), size),
        lambda x, weight: conv2d(x, weight, None, stride, side // 2, groups=48),
        inputs,
        torch.randn(2, 48, *size, generator=random).to(dtype) if training else None,
        device,
    )
