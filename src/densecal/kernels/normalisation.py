"""Batch normalisation and activation in as few passes over memory as possible, on CUDA for channels-last maps.

A step of a small network is bound by memory, and PyTorch's own kernels spend a third of it in batch normalisation. Here
the forward pass, activation included, reads its input twice in training and once in evaluation, and writes once. The
backward pass reads input and gradient twice and writes once. The sum that ends a block of ResNet is part of its last
normalisation. Statistics are sums of differences from a channel's first value, which hardly cancel. They are added in a
fixed order, so steps are deterministic.
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn.functional import batch_norm, relu, relu6

from densecal.kernels.launch import launch
from densecal.kernels.layers import PRECISIONS
from densecal.kernels.self_test import agree

NONE, RELU, RELU6 = 0, 1, 2
_ACTIVATIONS = {nn.Identity: NONE, nn.ReLU: RELU, nn.ReLU6: RELU6}
_DEVICES = ("cuda",)
_TILE = 2048
_WIDTH = 64
"""Columns per tile: 128 bytes of bfloat16."""
_WARPS = 4
_SIZES = ["M", "C", "rows", "parts", "count"]
"""Not specialised, so that a kernel is compiled once for maps of all sizes. W is: divisibility by 16 speeds it up."""
PROGRAMS = 1056
"""Enough programs that every multiprocessor of a large GPU has eight."""


@triton.jit
def _gate(pre, gradient, ACTIVATION: tl.constexpr):
    """Return the gradient of the activation's input."""
    if ACTIVATION == 1:
        return tl.where(pre > 0, gradient, 0.0)
    if ACTIVATION == 2:
        return tl.where((pre > 0) & (pre < 6), gradient, 0.0)
    return gradient


@triton.jit
def _tile(start, w, M, W, rows, BLOCK_M: tl.constexpr):
    """Return offsets of the columns w of some rows of a program in a map (M, W), and a mask of those inside the map."""
    m = (tl.program_id(1) * rows + start + tl.arange(0, BLOCK_M)).to(tl.int64)
    return m[:, None] * W + w[None, :], (m < M)[:, None] & (w < W)[None, :]


@triton.jit
def _load_statistics(saved, w, W, C):
    """Load mean, 1 / deviation, scale and offset of columns."""
    source, inside = saved + w % C, w < W
    mean = tl.load(source, mask=inside, other=0.0)
    rstd = tl.load(source + C, mask=inside, other=0.0)
    scale = tl.load(source + 2 * C, mask=inside, other=0.0)
    return mean, rstd, scale, tl.load(source + 3 * C, mask=inside, other=0.0)


@triton.jit(do_not_specialize=_SIZES)
def _sums_forward(x, partial, M, W, C, rows, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr):
    """Sum the differences d of x (M, W) from its first pixel, and their squares, over some rows."""
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    s = tl.load(x + w % C, mask=w < W, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_W), tl.float32)
    square = tl.zeros((BLOCK_M, BLOCK_W), tl.float32)
    for start in range(0, rows, BLOCK_M):
        at, inside = _tile(start, w, M, W, rows, BLOCK_M)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        d = tl.where(inside, v - s[None, :], 0.0)
        total += d
        square += d * d
    _store_sums(partial, w, W, tl.sum(total, 0), tl.sum(square, 0))


@triton.jit
def _store_sums(partial, w, W, first, second):
    """Store two sums per column into ``partial`` (2, programs, W)."""
    out = partial + tl.program_id(1) * W + w
    tl.store(out, first, mask=w < W)
    tl.store(out + tl.num_programs(1) * W, second, mask=w < W)


@triton.jit(do_not_specialize=_SIZES)
def _finish_forward(
    x, partial, parts, weight, bias, running_mean, running_var, tracked, saved, count, C, eps, momentum,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store mean, 1 / deviation, scale and offset into ``saved`` (4, C), and update the running statistics.

    They follow from the sums ``partial`` (2, parts, C) over ``count`` values per channel.
    """
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_c = c < C
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, parts, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < parts)[:, None] & in_c[None, :]
        source = partial + p[:, None] * C + c[None, :]
        total += tl.load(source, mask=inside, other=0.0)
        square += tl.load(source + parts * C, mask=inside, other=0.0)
    d = tl.sum(total, 0) / count
    variance = tl.maximum(tl.sum(square, 0) / count - d * d, 0.0, propagate_nan=tl.PropagateNan.ALL)
    mean = tl.load(x + c, mask=in_c, other=0.0).to(tl.float32) + d
    old_mean = tl.load(running_mean + c, mask=in_c, other=0.0)
    old_variance = tl.load(running_var + c, mask=in_c, other=0.0)
    tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), mask=in_c)
    unbiased = variance * (count / (count - 1.0))
    tl.store(running_var + c, old_variance + momentum * (unbiased - old_variance), mask=in_c)
    rstd = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + c, mask=in_c, other=0.0) * rstd
    tl.store(saved + c, mean, mask=in_c)
    tl.store(saved + C + c, rstd, mask=in_c)
    tl.store(saved + 2 * C + c, scale, mask=in_c)
    tl.store(saved + 3 * C + c, tl.load(bias + c, mask=in_c, other=0.0) - mean * scale, mask=in_c)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def _store_activations(x, added, scale, offset, y, M, W, rows, w, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr):
    """Store act(x * scale + offset + added) into y for some rows and the columns w."""
    for start in range(0, rows, BLOCK_M):
        at, inside = _tile(start, w, M, W, rows, BLOCK_M)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + offset[None, :]
        if added is not None:
            v += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION > 0:
            v = tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if ACTIVATION == 2:
            v = tl.minimum(v, 6.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _apply_forward(
    x, added, saved, y, M, W, C, rows, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr
):
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    _, _, scale, offset = _load_statistics(saved, w, W, C)
    _store_activations(x, added, scale, offset, y, M, W, rows, w, ACTIVATION, BLOCK_M)


@triton.jit(do_not_specialize=_SIZES)
def _apply_running(
    x, added, mean, variance, weight, bias, y, M, W, C, rows, eps,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Normalise by the running statistics."""
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    c, in_w = w % C, w < W
    deviation = tl.sqrt(tl.load(variance + c, mask=in_w, other=1.0).to(tl.float32) + eps)
    scale = tl.load(weight + c, mask=in_w, other=0.0) / deviation
    offset = tl.load(bias + c, mask=in_w, other=0.0) - tl.load(mean + c, mask=in_w, other=0.0) * scale
    _store_activations(x, added, scale, offset, y, M, W, rows, w, ACTIVATION, BLOCK_M)


@triton.jit(do_not_specialize=_SIZES)
def _sums_backward(
    x, dy, y, gated, saved, partial, M, W, C, rows,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sum the gradient g of the activation's input, and g times the normalised input.

    If a sum was part of the forward pass, its output y decides where g is 0, and g is stored into ``gated``.
    """
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    mean, rstd, scale, offset = _load_statistics(saved, w, W, C)
    total = tl.zeros((BLOCK_M, BLOCK_W), tl.float32)
    product = tl.zeros((BLOCK_M, BLOCK_W), tl.float32)
    for start in range(0, rows, BLOCK_M):
        at, inside = _tile(start, w, M, W, rows, BLOCK_M)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if y is None:
            g = _gate(v * scale[None, :] + offset[None, :], g, ACTIVATION)
        else:
            g = _gate(tl.load(y + at, mask=inside, other=0.0).to(tl.float32), g, ACTIVATION)
            tl.store(gated + at, g.to(gated.dtype.element_ty), mask=inside)
        total += g
        product += g * (v - mean[None, :]) * rstd[None, :]
    _store_sums(partial, w, W, tl.sum(total, 0), tl.sum(product, 0))


@triton.jit(do_not_specialize=_SIZES)
def _apply_backward(
    x, dy, saved, sums, dx, M, W, C, rows, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr
):
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    mean, rstd, scale, offset = _load_statistics(saved, w, W, C)
    count = M * (W // C)
    mean_g = tl.load(sums + w % C, mask=w < W, other=0.0) / count
    slope = tl.load(sums + C + w % C, mask=w < W, other=0.0) / count * rstd
    for start in range(0, rows, BLOCK_M):
        at, inside = _tile(start, w, M, W, rows, BLOCK_M)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        g = _gate(v * scale[None, :] + offset[None, :], g, ACTIVATION)
        d = scale[None, :] * (g - mean_g[None, :] - (v - mean[None, :]) * slope[None, :])
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=inside)


class _NormActivation(torch.autograd.Function):
    """act(batch_norm(x) + added) in training mode, updating the running statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, norm: nn.BatchNorm2d, activation: int
    ) -> Tensor:
        x, added = _channels_last(x, added)
        y = torch.empty_like(x)
        plan = _Plan(x)
        partial = plan.partial(x)
        saved = torch.empty(4, plan.C, device=x.device)
        plan.launch(_sums_forward, x, partial)
        launch(
            _finish_forward, (triton.cdiv(plan.C, 32),),
            x, partial, partial.shape[1], weight, bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
            saved, x.numel() // plan.C, plan.C, norm.eps, norm.momentum, BLOCK_P=256, BLOCK_C=32, num_warps=8,
        )  # fmt: skip
        plan.launch(_apply_forward, x, added, saved, y, ACTIVATION=activation)
        ctx.save_for_backward(x, saved, y if added is not None else None)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        x, saved, y = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        gated = None if y is None else torch.empty_like(x)
        plan = _Plan(x)
        partial = plan.partial(x)
        plan.launch(_sums_backward, x, dy, y, gated, saved, partial, ACTIVATION=ctx.activation)
        sums = partial.sum(dim=1)
        if gated is None:
            plan.launch(_apply_backward, x, dy, saved, sums, dx, ACTIVATION=ctx.activation)
        else:
            plan.launch(_apply_backward, x, gated, saved, sums, dx, ACTIVATION=NONE)
        return dx, sums[1], sums[0], gated, None, None


def _channels_last(x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor | None]:
    layout = torch.channels_last
    return x.contiguous(memory_format=layout), None if added is None else added.contiguous(memory_format=layout)


class _Plan:
    """How the programs of a kernel divide a map, seen as a matrix.

    A row of the matrix holds the channels of one or more pixels, so that its length is a multiple of a tile's columns
    if possible. With four pixels per row, 144 channels leave no column of a tile of 64 idle.
    """

    def __init__(self, x: Tensor) -> None:
        self.C = x.shape[1]
        count = x.numel() // self.C
        pixels = _WIDTH // math.gcd(self.C, _WIDTH)
        self.pixels = pixels if count % pixels == 0 else 1
        self.M, self.W = count // self.pixels, self.C * self.pixels
        self.block_w = min(triton.next_power_of_2(self.W), _WIDTH)
        self.block_m = _TILE // self.block_w
        columns = triton.cdiv(self.W, self.block_w)
        self.rows = triton.cdiv(triton.cdiv(self.M, max(1, PROGRAMS // columns)), self.block_m) * self.block_m
        self.grid = (columns, triton.cdiv(self.M, self.rows))

    def partial(self, x: Tensor) -> Tensor:
        """Allocate two sums per program and column, as (2, sums, C)."""
        return torch.empty(2, self.grid[1] * self.pixels, self.C, device=x.device)

    def launch(self, kernel: Any, *tensors: Tensor | None, **options: float) -> None:
        sizes = (self.M, self.W, self.C, self.rows)
        blocks = {"BLOCK_M": self.block_m, "BLOCK_W": self.block_w}
        launch(kernel, self.grid, *tensors, *sizes, **blocks, num_warps=_WARPS, **options)


def replace_normalisation(network: nn.Module) -> None:
    """Let the batch normalisations of a network, with the activations after them, use the kernels of this file.

    Weights, buffers and their names stay the same. PyTorch computes what the kernels cannot: gradients through a
    normalisation in evaluation mode, other devices and precisions, and, after a warning, everything if the kernels do
    not work.
    """
    if not _running_kernel_agrees(next(network.parameters()).device):
        return
    for module in network.modules():
        for norm, activation in _pairs(module):
            kind = _ACTIVATIONS.get(type(activation))
            if not _fits(norm) or kind is None:
                continue
            norm.forward = functools.partial(_forward, norm, kind)
            if kind != NONE:
                activation.forward = functools.partial(_forward_activation, norm, activation)
    for module in network.modules():
        if type(module) is nn.BatchNorm2d and "forward" not in vars(module) and _fits(module):
            module.forward = functools.partial(_forward, module, NONE)  # type: ignore[method-assign]
        elif _is_bottleneck(module):
            module.forward = functools.partial(_forward_bottleneck, module)


def _pairs(module: Any) -> list[tuple[Any, Any]]:
    """Return the normalisations of a module, each with the activation directly after it."""
    kind = type(module).__name__
    if kind == "BatchNormAct2d":  # timm; it applies its activation itself
        return [(module, module.act)] if isinstance(module.drop, nn.Identity) else []
    if _is_bottleneck(module):
        return [(module.bn1, module.act1), (module.bn2, module.act2)]
    if isinstance(module, nn.Sequential):
        return [(a, b) for a, b in pairwise(module) if type(a) is nn.BatchNorm2d]
    if kind == "FeatureListNet":  # a network of timm as a chain of layers, some of whose outputs are returned
        return [
            (module[a], module[b])
            for a, b in pairwise(module)
            if type(module[a]) is nn.BatchNorm2d and a not in module.return_layers
        ]
    return []


def _is_bottleneck(module: Any) -> bool:
    """Return whether a module is a block of timm's ResNet without optional parts."""
    if type(module).__name__ != "Bottleneck" or not hasattr(module, "drop_block"):
        return False
    extra = module.se is not None or module.drop_path is not None or not isinstance(module.drop_block, nn.Identity)
    return _fits(module.bn3) and type(module.act3) is nn.ReLU and not extra


def _forward_bottleneck(block: Any, x: Tensor) -> Tensor:
    """Compute timm's block, with the sum and its activation as part of the last normalisation."""
    shortcut = x if block.downsample is None else block.downsample(x)
    x = block.act1(block.bn1(block.conv1(x)))
    x = block.aa(block.act2(block.bn2(block.conv2(x))))
    x = block.conv3(x)
    if _uses_kernels(block.bn3, x) and _sum_kernels_agree(x.device, block.bn3.training):
        return _normalise(block.bn3, RELU, x, shortcut.to(x.dtype))
    return block.act3(block.bn3(x) + shortcut)  # type: ignore[no-any-return]


def _fits(norm: nn.Module) -> bool:
    return isinstance(norm, nn.BatchNorm2d) and norm.affine and norm.track_running_stats and norm.momentum is not None


def _uses_kernels(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """Return whether the kernels normalise x. Input and output agree: device, precision and shape are equal."""
    # PyTorch reports what is wrong with an input
    if x.device.type not in _DEVICES or x.dtype not in PRECISIONS or x.dim() != 4 or x.shape[1] != norm.num_features:
        return False
    if norm.training:
        return x.numel() > norm.num_features and _training_kernels_agree(x.device)
    return x.numel() > 0 and not torch.is_grad_enabled()


def _forward(norm: Any, activation: int, x: Tensor) -> Tensor:
    if not _uses_kernels(norm, x):
        return type(norm).forward(norm, x)  # type: ignore[no-any-return]
    return _normalise(norm, activation, x, None)


def _forward_activation(norm: nn.BatchNorm2d, activation: Any, x: Tensor) -> Tensor:
    """Apply the activation, unless the kernels of the normalisation before it have done so."""
    return x if _uses_kernels(norm, x) else type(activation).forward(activation, x)


def _normalise(norm: Any, activation: int, x: Tensor, added: Tensor | None) -> Tensor:
    """Return act(batch_norm(x) + added), computed by the kernels."""
    if norm.training:
        return _NormActivation.apply(x, norm.weight, norm.bias, added, norm, activation)  # type: ignore[no-any-return]
    return _normalise_by_running_statistics(x, added, norm, activation)


def _normalise_by_running_statistics(x: Tensor, added: Tensor | None, norm: nn.BatchNorm2d, activation: int) -> Tensor:
    """Return act(batch_norm(x) + added) for a normalisation in evaluation mode."""
    x, added = _channels_last(x, added)
    y = torch.empty_like(x)
    tensors = (x, added, norm.running_mean, norm.running_var, norm.weight, norm.bias, y)
    _Plan(x).launch(_apply_running, *tensors, eps=norm.eps, ACTIVATION=activation)
    return y


@functools.cache
def _training_kernels_agree(device: torch.device) -> bool:
    x, gradient, weight, bias = _test_tensors(torch.bfloat16)
    norm = nn.BatchNorm2d(len(weight), device=device)
    return agree(
        "batch normalisation",
        lambda x, weight, bias: _NormActivation.apply(x, weight, bias, None, norm, RELU6),
        lambda x, weight, bias: relu6(batch_norm(x, None, None, weight, bias, training=True, eps=norm.eps)),
        [x, weight, bias],
        gradient,
        device,
    )


@functools.cache
def _sum_kernels_agree(device: torch.device, training: bool) -> bool:
    x, added, weight, bias = _test_tensors(torch.bfloat16)
    norm = nn.BatchNorm2d(len(weight), eps=1e-5 if training else 0.0, device=device)
    if not training:
        return agree(
            "residual sum",
            lambda x, added: _normalise_by_running_statistics(x, added, norm, RELU),
            lambda x, added: relu(x + added),
            [x, added],
            None,
            device,
        )

    def theirs(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor) -> Tensor:
        return relu(batch_norm(x, None, None, weight, bias, training=True, eps=norm.eps) + added)

    return agree(
        "residual sum",
        lambda x, weight, bias, added: _NormActivation.apply(x, weight, bias, added, norm, RELU),
        theirs,
        [x, weight, bias, added],
        x.flip(0),
        device,
    )


@functools.cache
def _running_kernel_agrees(device: torch.device) -> bool:
    x, _, mean, bias = _test_tensors(torch.float32)
    norm = nn.BatchNorm2d(len(mean), device=device)
    norm.load_state_dict(norm.state_dict() | {"running_mean": mean, "running_var": 1 + mean**2, "bias": bias})
    return agree(
        "batch normalisation",
        lambda x: _normalise_by_running_statistics(x, None, norm, RELU6),
        lambda x: relu6(batch_norm(x, mean.double(), 1 + mean.double() ** 2, None, bias.double(), eps=norm.eps)),
        [x],
        None,
        device,
    )


def _test_tensors(dtype: torch.dtype) -> list[Tensor]:
    """Return two random maps and two vectors of a value per channel, with the channels of EfficientNet's first map."""
    random = torch.Generator().manual_seed(0)  # a generator of its own, so that a resumed run draws the same dropout
    return [torch.randn(size, generator=random).to(dtype) for size in ((2, 32, 8, 8), (2, 32, 8, 8), (32,), (32,))]
