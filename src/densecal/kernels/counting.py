"""The tables of `metrics/fine_bins.py` as CUDA kernels: one pass over the pixels, without waiting for the device.

`torch.bincount` synchronises with the device twice per call. Here a block of pixels is summed before it is added to the
table, so that the crowded bins near 0 and 1 do not cause threads to wait for one address. Every figure is an integer
and equal to PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from densecal.kernels.launch import launch

_BLOCK = 2048
_ROUNDING = tl.constexpr(2.0**52)
"""Adding and subtracting it rounds a float64, half to even."""


@triton.jit
def _limbs(value):
    """Split a value into its parts of the two integers that hold a sum."""
    scaled = value * 67108864.0  # 2**26
    high = scaled.to(tl.int64)
    low = ((scaled - high) * 134217728.0 + _ROUNDING) - _ROUNDING  # 2**27
    return high, low.to(tl.int64)


@triton.jit
def _add(table, outcome, kept, high, low):
    """Add the sums of a block to one bin of a table."""
    hit = (kept & outcome).to(tl.int64)
    held = kept.to(tl.int64)
    hits = tl.sum(hit)
    tl.atomic_add(table, tl.sum(held) - hits)
    tl.atomic_add(table + 1, hits)
    tl.atomic_add(table + 2, tl.sum(held * high))
    tl.atomic_add(table + 3, tl.sum(held * low))


@triton.jit
def _add_equal_width(table, value, outcome, kept, bins):
    """Add a block to all bins of an equal-width table."""
    cell = tl.minimum((value * bins).to(tl.int64), bins - 1)
    high, low = _limbs(value)
    for k in range(bins):
        _add(table + 4 * k, outcome, kept & (cell == k), high, low)


@triton.jit
def _small_tables(values, labels, valid, tables, pixels, bins, VOID: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = p < pixels
    v = tl.load(values + image * pixels + p, mask=kept, other=0.0)
    label = tl.load(labels + image * pixels + p, mask=kept, other=0)
    if VOID:
        kept = kept & (tl.load(valid + image * pixels + p, mask=kept, other=0) != 0)
    tables += image * 12 * bins
    _add_equal_width(tables, tl.maximum(v, 1.0 - v), (v > 0.5) == (label == 1), kept, bins)
    _add_equal_width(tables + 4 * bins, 1.0 - v, label == 0, kept, bins)
    _add_equal_width(tables + 8 * bins, v, label == 1, kept, bins)


@triton.jit
def _fine_table(values, index, outcomes, table, pixels, size, BLOCK: tl.constexpr):
    p = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = p < pixels
    cell = tl.load(index + p, mask=kept, other=0)
    outcome = tl.load(outcomes + p, mask=kept, other=0) != 0
    high, low = _limbs(tl.load(values + p, mask=kept, other=0.0))
    # the two bins of saturated pixels may hold most of an image
    _add(table, outcome, kept & (cell == 0), high, low)
    _add(table + 4 * (size - 1), outcome, kept & (cell == size - 1), high, low)
    kept = kept & (cell > 0) & (cell < size - 1)
    tl.atomic_add(table + 4 * cell + outcome.to(tl.int64), tl.full((BLOCK,), 1, tl.int64), mask=kept)
    tl.atomic_add(table + 4 * cell + 2, high, mask=kept)
    tl.atomic_add(table + 4 * cell + 3, low, mask=kept)


@triton.jit
def _histograms(index, counts, pixels, size, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cell = tl.load(index + row * pixels + p, mask=p < pixels, other=-1)
    # values outside the row or the range are counted in the last bin, which is not stored
    cell = tl.where((cell >= 0) & (cell < size), cell, WIDE - 1).to(tl.int32)
    histogram = tl.histogram(cell, WIDE)
    bins = tl.arange(0, WIDE)
    tl.atomic_add(counts + row * size + bins, histogram.to(tl.int64), mask=(bins < size) & (histogram > 0))


def small_tables(values: Tensor, labels: Tensor, valid: Tensor | None, bins: int) -> Tensor:
    """Count the equal-width tables of every image.

    Args:
        values: float64 (B, P) foreground probabilities in [0, 1].
        labels: int64 (B, P), 0 at background and 1 at foreground.
        valid: bool (B, P), False at void pixels.
        bins: Number of bins.

    Returns:
        int64 (B, 3, bins, 4): the tables of the winning class, of background and of foreground.
    """
    batch, pixels = values.shape
    tables = torch.zeros(batch, 3, bins, 4, dtype=torch.int64, device=values.device)
    kept = tables if valid is None else _bytes(valid)
    _launch(
        _small_tables, (batch, pixels), values.contiguous(), labels.contiguous(), kept, tables, pixels, bins,
        VOID=valid is not None,
    )  # fmt: skip
    return tables


def fine_table(value: Tensor, index: Tensor, outcome: Tensor, size: int) -> Tensor:
    """Return the counts and sums of float64 values (P,) in the bins of a fine table."""
    table = torch.zeros(size, 4, dtype=torch.int64, device=value.device)
    _launch(
        _fine_table, (1, len(value)), value.contiguous(), index.contiguous(), _bytes(outcome), table, len(value), size
    )
    return table


def histograms(index: Tensor, size: int) -> Tensor:
    """Count how often each of 0 to size - 1 occurs in every row of an int64 tensor (B, P). Return counts (B, size)."""
    batch, pixels = index.shape
    counts = torch.zeros(batch, size, dtype=torch.int64, device=index.device)
    _launch(_histograms, (batch, pixels), index.contiguous(), counts, pixels, size, WIDE=1 << size.bit_length())
    return counts


def _bytes(flags: Tensor) -> Tensor:
    return flags.contiguous().view(torch.uint8)


def _launch(kernel: Any, shape: tuple[int, int], *arguments: Any, **options: Any) -> None:
    rows, pixels = shape
    if pixels:
        launch(kernel, (rows, triton.cdiv(pixels, _BLOCK)), *arguments, BLOCK=_BLOCK, **options)
