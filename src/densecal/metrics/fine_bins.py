"""Integer tables of values in [0, 1]: pixels and exact sums by bin, and the fine bins that replace single pixels.

A sum is kept as two integers, the limbs, which take 26 and 27 bits of every value. It neither saturates (float32 stops
counting at 2**24) nor depends on the order of additions. int64 holds the limbs of 2**36 pixels: long before that,
``carry`` moves the whole numbers elsewhere. Fine bins have a fixed relative width on both sides of 0.5, because
the values of a segmentation model crowd at 0 and 1.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.arrays import Array, arange, bincount, cast, namespace, on_host, take

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_HIGH_BITS, _LOW_BITS = 26, 27
_HIGH, _LOW = 2.0**_HIGH_BITS, 2.0**_LOW_BITS
_OCTAVES = 39
_MOST_KERNEL_BINS = 4096
"""A block of the kernel keeps its counts in memory that a device has little of."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def top_label(values: Array, labels: Array, softmax: bool) -> tuple[Array, Array]:
    """Return the confidence of the winning class and whether it is right.

    A foreground probability of exactly 0.5 predicts background; tied classes go to the first.
    """
    if softmax:
        winner = values.argmax(1)
        return take(values, winner), winner == labels
    return namespace(values).maximum(values, 1.0 - values), (values > 0.5) == (labels == 1)


def true_rank(values: Array, labels: Array) -> Array:
    """Return how many classes come before the true one (B, P): the more probable, and of equally probable the first."""
    true = take(values, labels.clip(0, values.shape[1] - 1))[:, None]
    channel = arange(values.shape[1], values)[:, None]
    return ((values > true) | ((values == true) & (channel < labels[:, None]))).sum(1)


def equal_width_index(value: Array, bins: int) -> Array:
    """Return the equal-width bin [l, u) of every value in [0, 1]; 1.0 lies in the last."""
    return cast(value * bins, "int64").clip(None, bins - 1)


def tally(index: Array, value: Array, outcome: Array, keep: Array | None, size: int) -> Array:
    """Count the pixels with outcome 0 and 1 per index, and sum their values as two limbs; return (size, 4)."""
    xp = namespace(value)
    scaled = value.reshape(-1) * _HIGH
    high = xp.floor(scaled)
    low = xp.round((scaled - high) * _LOW)
    key = index.reshape(-1)
    if keep is not None:  # void pixels go to an extra slot, which is cut off below
        key = xp.where(keep.reshape(-1), key, size)
    both = bincount(key * 2 + outcome.reshape(-1), None, 2 * size + 2).reshape(-1, 2)
    limbs = xp.stack([bincount(key, high, size + 1), bincount(key, low, size + 1)], 1)
    return xp.concatenate([both, limbs], 1)[:size]


def fine_tally(value: Array, outcome: Array, steps: int) -> Array:
    """Apply ``tally`` to the fine bins of the values."""
    index, size = fine_index(value, steps), fine_size(steps)
    counting = kernels_for(value)
    if counting is None:
        return tally(index, value, outcome, None, size)
    return counting.fine_table(value, index, outcome, size)


def histograms(index: Tensor, size: int) -> Tensor:
    """Count how often 0 to size - 1 occur in every row of an int64 tensor (B, P); (B, size)."""
    counting = kernels(index.device)
    if counting is None or size > _MOST_KERNEL_BINS:
        xp = namespace(index)
        row = xp.arange(len(index), device=index.device)[:, None] * size
        return xp.bincount((index + row).flatten(), minlength=len(index) * size).view(-1, size)  # type: ignore[no-any-return]
    return counting.histograms(index, size)  # type: ignore[no-any-return]


def kernels_for(array: Array) -> ModuleType | None:
    """Return the kernels that count where an array is, if there are any."""
    return None if on_host(array) else kernels(array.device)


@functools.cache
def kernels(device: torch.device) -> ModuleType | None:
    """Return the kernels that count on a CUDA device, or None where they are missing or differ from PyTorch."""
    if device.type != "cuda":
        return None
    from densecal.kernels import counting_kernels

    return counting_kernels(device, _agrees)


def _agrees(counting: ModuleType, device: torch.device) -> bool:
    """Return whether the kernels count random images as PyTorch does, in every way they are used."""
    import torch

    random = torch.Generator().manual_seed(0)
    value = torch.randn(3, 2500, dtype=torch.float64, generator=random).mul(20.0).sigmoid()
    label = torch.randint(0, 2, value.shape, generator=random)
    most = torch.rand(value.shape, generator=random) < 0.7
    image = torch.arange(len(value))[:, None] * 10
    views = [
        (torch.maximum(value, 1 - value), (value > 0.5) == (label == 1)),
        (1 - value, label == 0),
        (value, label == 1),
    ]
    indices = [image + (v * 10).to(torch.int64).clamp_(max=9) for v, _ in views]
    actual, expected = [], []
    for valid in (None, most):
        on_device = None if valid is None else valid.to(device)
        actual.append(counting.small_tables(value.to(device), label.to(device), on_device, 10))
        tables = [tally(index, v, hit, valid, 30) for index, (v, hit) in zip(indices, views, strict=True)]
        expected.append(torch.stack([table.view(3, 10, 4) for table in tables], dim=1))
    flat, hit, index, size = value.flatten(), label.flatten() == 1, fine_index(value.flatten(), 10), fine_size(10)
    actual.append(counting.fine_table(flat.to(device), index.to(device), hit.to(device), size))
    expected.append(tally(index, flat, hit, None, size))
    for size in (101, 512):
        index = (value * (size - 1)).to(torch.int64)
        actual.append(counting.histograms(index.to(device), size))
        expected.append(torch.stack([torch.bincount(row, minlength=size) for row in index]))
    return all(torch.equal(table.cpu(), other) for table, other in zip(actual, expected, strict=True))


def carry(table: Array) -> tuple[Array, Array]:
    """Take the whole numbers out of the sums of a table (..., 4), so that both limbs are small again.

    Returns:
        The table, and the whole numbers (...).
    """
    high = table[..., 2] + (table[..., 3] >> _LOW_BITS)
    rest = [table[..., 0], table[..., 1], high & ((1 << _HIGH_BITS) - 1), table[..., 3] & ((1 << _LOW_BITS) - 1)]
    return namespace(table).stack(rest, -1), high >> _HIGH_BITS


def limbs_to_float(limbs: Array) -> Array:
    """Return the sums that are kept as two integers (..., 2)."""
    limbs = cast(limbs, "float64")
    return (limbs[..., 0] + limbs[..., 1] / _LOW) / _HIGH


def fine_size(steps: int) -> int:
    """Return the number of fine bins, those on both sides of 0.5 together."""
    return 2 * ((_OCTAVES << steps) + 2)


def fine_index(value: Array, steps: int) -> Array:
    """Return the index of the fine bin of every float64 value; it rises with the value.

    The distance e to the nearer of 0 and 1 is binned by the leading bits of its floating-point form: 2**steps bins
    in every octave from 2**-40 to 2**-1, one below, one for e = 0.5.
    """
    xp = namespace(value)
    half = fine_size(steps) // 2
    upper = value > 0.5
    distance = xp.where(upper, 1.0 - value, value)
    lowest = (1023 - 40) << steps
    code = ((distance.view(xp.int64) >> (52 - steps)) - lowest + 1).clip(0)
    return xp.where(upper, 2 * half - 1 - code, code)


def fine_atoms(table: Ints, whole: Ints) -> tuple[Floats, Ints, Ints]:
    """Return mean value, pixels and pixels with outcome 1 of the non-empty fine bins of a table (size, 4).

    Args:
        table: Pixels and limbs.
        whole: The whole numbers that ``carry`` took out of the sums.
    """
    pixels = table[:, 0] + table[:, 1]
    present = pixels > 0
    sums = limbs_to_float(table[present, 2:]) + whole[present]
    pixels = pixels[present]
    return sums / pixels, pixels, table[present, 1]


def top_label_atoms(value: Floats, pixels: Ints, positives: Ints) -> tuple[Floats, Ints, Ints]:
    """Return confidence, pixels and correct pixels from foreground probabilities."""
    foreground = value > 0.5
    return (
        np.where(foreground, value, 1.0 - value),
        pixels,
        np.where(foreground, positives, pixels - positives),
    )


def concatenate_atoms(parts: list[tuple[Floats, Ints, Ints]]) -> tuple[Floats, Ints, Ints]:
    """Return values, pixels and outcomes of several parts as one."""
    values, pixels, outcomes = zip(*parts, strict=True) if parts else (([],), ([],), ([],))
    return (
        np.concatenate(values).astype(np.float64),
        np.concatenate(pixels).astype(np.int64),
        np.concatenate(outcomes).astype(np.int64),
    )
