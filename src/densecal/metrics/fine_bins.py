"""Integer tables of values in [0, 1]: pixels and exact sums by bin, and the fine bins that stand for pixels.

A sum is kept in two integers, limbs of 26 and 27 bits a value, so it neither saturates (float32 stops counting at
2**24) nor depends on the order of additions. Fine bins have a fixed relative width on both sides of 0.5, because the
values of a segmentation model crowd at 0 and 1.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densecal.kernels import counting_kernels

_HIGH, _LOW = 2.0**26, 2.0**27
_OCTAVES = 39

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def tally(index: Tensor, value: Tensor, outcome: Tensor, keep: Tensor | None, size: int) -> Tensor:
    """For every index: pixels with outcome 0, with outcome 1, and the two limbs of the sum of values; (size, 4)."""
    scaled = value.flatten() * _HIGH
    high = scaled.floor()
    low = ((scaled - high) * _LOW).round()
    key = index.flatten()
    if keep is not None:  # void pixels go to a slot that is cut off
        key = torch.where(keep.flatten(), key, size)
    both = _bincount(key * 2 + outcome.flatten(), None, 2 * size + 2).view(-1, 2)
    limbs = torch.stack([_bincount(key, high, size + 1), _bincount(key, low, size + 1)], dim=1)
    return torch.cat([both, limbs], dim=1)[:size]


def fine_tally(value: Tensor, outcome: Tensor, steps: int) -> Tensor:
    """``tally`` by the fine bin of every value."""
    index, size = fine_index(value, steps), fine_size(steps)
    counting = kernels(value.device)
    if counting is None:
        return tally(index, value, outcome, None, size)
    table: Tensor = counting.fine_table(value, index, outcome, size)
    return table


def histograms(index: Tensor, size: int) -> Tensor:
    """How often 0 to size - 1 occur in every row of an int64 tensor (B, P); (B, size)."""
    counting = kernels(index.device)
    if counting is None:
        row = torch.arange(len(index), device=index.device)[:, None] * size
        return torch.bincount((index + row).flatten(), minlength=len(index) * size).view(-1, size)
    counts: Tensor = counting.histograms(index, size)
    return counts


@functools.cache
def kernels(device: torch.device) -> ModuleType | None:
    """The kernels that count on a CUDA device, where they count as PyTorch does."""
    return counting_kernels(device, _agree)


def _agree(counting: ModuleType, device: torch.device) -> bool:
    """Whether the kernels count some made-up images as PyTorch does, in every way they are used."""
    random = torch.Generator().manual_seed(0)
    value = torch.randn(3, 2500, dtype=torch.float64, generator=random).mul(20.0).sigmoid()
    label = torch.randint(0, 2, value.shape, generator=random)
    some = torch.rand(value.shape, generator=random) < 0.7
    image = torch.arange(len(value))[:, None] * 10
    views = [
        (torch.maximum(value, 1 - value), (value > 0.5) == (label == 1)),
        (1 - value, label == 0),
        (value, label == 1),
    ]
    cells = [image + (v * 10).to(torch.int64).clamp_(max=9) for v, _ in views]
    found, wanted = [], []
    for valid in (None, some):
        on_device = None if valid is None else valid.to(device)
        found.append(counting.small_tables(value.to(device), label.to(device), on_device, 10))
        tables = [tally(cell, v, hit, valid, 30) for cell, (v, hit) in zip(cells, views, strict=True)]
        wanted.append(torch.stack([table.view(3, 10, 4) for table in tables], dim=1))
    flat, hit, index, size = value.flatten(), label.flatten() == 1, fine_index(value.flatten(), 10), fine_size(10)
    found.append(counting.fine_table(flat.to(device), index.to(device), hit.to(device), size))
    wanted.append(tally(index, flat, hit, None, size))
    for size in (101, 512):
        cell = (value * (size - 1)).to(torch.int64)
        found.append(counting.histograms(cell.to(device), size))
        wanted.append(torch.stack([torch.bincount(row, minlength=size) for row in cell]))
    return all(torch.equal(one.cpu(), other) for one, other in zip(found, wanted, strict=True))


def limbs_to_float(limbs: Tensor) -> Tensor:
    """The sums kept in two integers (..., 2)."""
    high, low = limbs.to(torch.float64).unbind(-1)
    return (high + low / _LOW) / _HIGH


def fine_size(steps: int) -> int:
    """Number of fine bins on both sides of 0.5."""
    return 2 * ((_OCTAVES << steps) + 2)


def fine_index(value: Tensor, steps: int) -> Tensor:
    """Fine bin of a float64 value, rising with it.

    The distance e to the nearer of 0 and 1 is binned by the leading bits of its floating-point form: 2**steps bins
    in every octave from 2**-40 to 2**-1, one below, one for e = 0.5.
    """
    half = fine_size(steps) // 2
    upper = value > 0.5
    distance = torch.where(upper, 1.0 - value, value)
    lowest = (1023 - 40) << steps
    code = ((distance.view(torch.int64) >> (52 - steps)) - lowest + 1).clamp_(min=0)
    return torch.where(upper, 2 * half - 1 - code, code)


def fine_atoms(table: Tensor) -> tuple[Floats, Ints, Ints]:
    """Mean value, pixels and outcomes 1 of the fine bins (size, 4) that hold something."""
    pixels = table[:, 0] + table[:, 1]
    present = pixels > 0
    held, pixels = table[present].cpu(), pixels[present].cpu()
    return (limbs_to_float(held[:, 2:]) / pixels).numpy(), pixels.numpy(), held[:, 1].numpy()


def _bincount(index: Tensor, weights: Tensor | None, size: int) -> Tensor:
    """int64 histogram; integer weights below 2**27 add up exactly in float64 for a chunk of pixels."""
    if index.device.type == "cpu":  # numpy's is twice as fast as torch's here
        array = np.bincount(index.numpy(), None if weights is None else weights.numpy(), size)
        return torch.from_numpy(array).to(torch.int64)
    return torch.bincount(index, weights, size).to(torch.int64)
