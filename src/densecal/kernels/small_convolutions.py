"""3 x 3 convolutions between few channels on CUDA by our own kernels, for channels-last maps.

The last maps of a U-Net are its largest and have the fewest channels. cuDNN's kernels, made for many channels, take
four to forty times as long there as moving the bytes. Here a program computes a rectangle of pixels, so that what its
nine taps read is in its cache. Sums are float32 and added in a fixed order, so steps are deterministic.
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
from densecal.kernels.layers import compute_dtype, replace_forward
from densecal.kernels.self_test import agree

_DEVICES = ("cuda",)
_PRECISIONS = (torch.bfloat16, torch.float16)
_MAX_IN, _MAX_OUT = 32, 16
"""Numbers of channels up to which our kernels are faster."""
_PIXELS, _WIDE = 128, 16
"""Pixels per tile, and per row of a tile."""
_SUM_COLUMNS = 64
"""Columns per summing program. A column is a channel of one of three pixels side by side."""
_PROGRAMS = 528
"""Enough summing programs that every multiprocessor of a large GPU has four."""
_SIZES = ["H", "W", "tiles", "steps"]
"""Arguments that are not specialised, so that a kernel is compiled once for maps of all sizes."""


@triton.jit
def _tile(t, H, W, BLOCK_M: tl.constexpr, WIDE: tl.constexpr):
    """Return the image, rows and columns of the pixels of tile t of all images."""
    HIGH: tl.constexpr = BLOCK_M // WIDE
    i = tl.arange(0, BLOCK_M)
    across = tl.cdiv(W, WIDE)
    each = across * tl.cdiv(H, HIGH)
    inner = t % each
    return (t // each).to(tl.int64), inner // across * HIGH + i // WIDE, inner % across * WIDE + i % WIDE


@triton.jit
def _load_inputs(image, ky, k, row, column, H, W, C: tl.constexpr):
    """Load what taps 3 * ky to 3 * ky + 2 read. The columns k < 3 * C are the channels of three pixels side by side."""
    iy, ix = row + ky - 1, column[:, None] + (k // C - 1)[None, :]
    inside = ((iy >= 0) & (iy < H))[:, None] & (ix >= 0) & (ix < W) & (k < 3 * C)[None, :]
    return tl.load(image + (iy * W + column - 1)[:, None] * C + k[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=_SIZES)
def _convolve(
    x, weight, bias, y, H, W,
    IN: tl.constexpr, OUT: tl.constexpr, BACK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Convolve a rectangle of outputs. With BACK, compute the gradient of the input by flipped taps.

    ``weight`` is (OUT, 3, 3, IN), or (IN, 3, 3, OUT) with BACK.
    """
    image, row, column = _tile(tl.program_id(0), H, W, BLOCK_M, WIDE)
    n = tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    PIECES: tl.constexpr = (3 * IN + BLOCK_K - 1) // BLOCK_K
    for i in range(3 * PIECES):
        ky = i // PIECES
        k = i % PIECES * BLOCK_K + tl.arange(0, BLOCK_K)
        v = _load_inputs(x + image * H * W * IN, ky, k, row, column, H, W, IN)
        if BACK:
            offset = (k % IN * 9 + 8 - 3 * ky - k // IN)[:, None] * OUT + n[None, :]
        else:
            offset = (n * 9 + 3 * ky)[None, :] * IN + k[:, None]
        w = tl.load(weight + offset, mask=(k < 3 * IN)[:, None] & (n < OUT)[None, :], other=0.0)
        total = tl.dot(v, w, total)
    if bias is not None:
        total += tl.load(bias + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    inside = ((row < H) & (column < W))[:, None] & (n < OUT)[None, :]
    out = y + image * H * W * OUT + (row * W + column)[:, None] * OUT + n[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _sum_products(
    x, dy, partial, H, W, tiles, steps,
    IN: tl.constexpr, OUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum gradient times input over ``steps`` tiles, for all taps, into ``partial`` (programs, OUT, 3, 3, IN)."""
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.arange(0, BLOCK_N)
    totals = (tl.zeros((BLOCK_N, BLOCK_K), tl.float32),) * 3
    first = tl.program_id(0) * steps
    for t in range(first, tl.minimum(first + steps, tiles)):
        image, row, column = _tile(t, H, W, BLOCK_M, WIDE)
        inside = ((row < H) & (column < W))[:, None] & (n < OUT)[None, :]
        source = dy + image * H * W * OUT + (row * W + column)[:, None] * OUT + n[None, :]
        g = tl.trans(tl.load(source, mask=inside, other=0.0))
        for ky in tl.static_range(3):
            v = _load_inputs(x + image * H * W * IN, ky, k, row, column, H, W, IN)
            total = tl.dot(g, v, totals[ky])
            totals = totals[:ky] + (total,) + totals[ky + 1 :]  # noqa: RUF005 (no unpacking in Triton)
    target = partial + (tl.program_id(0) * OUT + n)[:, None] * 9 * IN + k[None, :]
    for ky in tl.static_range(3):
        tl.store(target + ky * 3 * IN, totals[ky], mask=(n < OUT)[:, None] & (k < 3 * IN)[None, :])


class SmallConvolution(torch.autograd.Function):
    """Convolution of a map (B, C, H, W) with 3 x 3 taps and a border of zeros, as in `conv2d`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve in the precision of ``x``."""
        layout = torch.channels_last
        x, taps = x.contiguous(memory_format=layout), weight.to(x.dtype).contiguous(memory_format=layout)
        ctx.save_for_backward(x, taps)
        ctx.dtype = weight.dtype
        return _run_convolution(x, taps, None if bias is None else bias.to(x.dtype), back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Compute the gradients that are needed."""
        x, taps = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _run_convolution(dy, taps, None, back=True)
        if ctx.needs_input_grad[1]:
            dweight = _taps_gradient(x, dy).to(ctx.dtype)
        if ctx.needs_input_grad[2]:
            dbias = dy.sum((0, 2, 3), dtype=torch.float32).to(ctx.dtype)
        return dx, dweight, dbias


def _run_convolution(x: Tensor, taps: Tensor, bias: Tensor | None, back: bool) -> Tensor:
    batch, channels, height, width = x.shape
    out = taps.shape[1 if back else 0]
    y = torch.empty((batch, out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    launch(
        _convolve, (_tiles(x),), x, taps, bias, y, height, width,
        IN=channels, OUT=out, BACK=back, BLOCK_M=_PIXELS, BLOCK_K=_block(channels), BLOCK_N=_block(out), WIDE=_WIDE,
        num_stages=3,
    )  # fmt: skip
    return y


def _taps_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of the taps."""
    channels, out, height, width = x.shape[1], *dy.shape[1:]
    tiles, columns = _tiles(x), triton.cdiv(3 * channels, _SUM_COLUMNS)
    steps = max(
        3, triton.cdiv(tiles * columns, _PROGRAMS)
    )  # at least 3, so that the self-test runs the loop more than once
    parts = triton.cdiv(tiles, steps)
    partial = torch.empty(parts, out, 3, 3, channels, device=x.device)
    launch(
        _sum_products, (parts, columns), x, dy, partial, height, width, tiles, steps,
        IN=channels, OUT=out, BLOCK_M=_PIXELS, BLOCK_K=_SUM_COLUMNS, BLOCK_N=_block(out), WIDE=_WIDE, num_stages=2,
    )  # fmt: skip
    return partial.sum(dim=0).permute(0, 3, 1, 2)


def _block(channels: int) -> int:
    """Return a block size that Triton's matrix product supports."""
    return max(16, int(triton.next_power_of_2(channels)))


def _tiles(x: Tensor) -> int:
    return int(len(x) * triton.cdiv(x.shape[2], _PIXELS // _WIDE) * triton.cdiv(x.shape[3], _WIDE))


def replace_small_convolutions(network: nn.Module) -> None:
    """Let a network's convolutions between few channels use the kernels of this file in half precision."""
    replace_forward(network, _fits, _forward)


def _fits(conv: nn.Module) -> bool:
    if type(conv) is not nn.Conv2d or conv.groups > 1 or conv.padding_mode != "zeros":
        return False
    has_kernel = conv.kernel_size == (3, 3) and conv.stride == conv.dilation == conv.padding == (1, 1)
    return has_kernel and conv.in_channels <= _MAX_IN and conv.out_channels <= _MAX_OUT


def _forward(conv: nn.Conv2d, x: Tensor) -> Tensor:
    # conv2d reports what is wrong with an input
    if x.device.type in _DEVICES and x.dim() == 4 and x.shape[1] == conv.in_channels and x.numel():
        dtype = compute_dtype(conv, x)
        case = *conv.weight.shape[:2], conv.bias is not None, torch.is_grad_enabled()
        if dtype in _PRECISIONS and _kernels_agree(x.device, dtype, *case):
            y: Tensor = SmallConvolution.apply(x.to(dtype), conv.weight, conv.bias)
            return y
    return type(conv).forward(conv, x)


@functools.cache
def _kernels_agree(
    device: torch.device, dtype: torch.dtype, out: int, channels: int, biased: bool, training: bool
) -> bool:
    """Test the kernels that training, or prediction, uses, so that none is compiled twice or for nothing."""
    random = torch.Generator().manual_seed(0)  # a generator of its own, so that a resumed run draws the same dropout
    shapes = [(2, out, 9, 17), (2, channels, 9, 17), (out, channels, 3, 3)] + [(out,)] * biased
    gradient, x, weight, *bias = (torch.randn(shape, generator=random) for shape in shapes)
    return agree(
        "small convolution",
        lambda x, weight, bias=None: SmallConvolution.apply(x, weight, bias),
        lambda x, weight, bias=None: conv2d(x, weight, bias, padding=1),
        [tensor.to(dtype) for tensor in (x, weight / (9 * channels) ** 0.5, *bias)],
        gradient.to(dtype) if training else None,
        device,
    )
