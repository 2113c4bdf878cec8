"""Integer tables of values in [0, 1]: pixels and exact sums by bin, and the fine bins that stand for pixels.

A sum is kept in two integers, limbs of 26 and 27 bits a value, so it neither saturates (float32 stops counting at
2**24) nor depends on the order of additions. Fine bins have a fixed relative width on both sides of 0.5, because the
values of a segmentation model crowd at 0 and 1.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """`counting.py`, on CUDA and where it counts as PyTorch does."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    try:
        from densecal.metrics import counting

        problem = "" if counting.agree(device) else "disagree with PyTorch"
    except Exception as error:  # of a Triton without what they need, or without a compiler: PyTorch's still work
        problem = f"fail ({error})"
    if problem:
        warnings.warn(f"counting kernels {problem} on {device}: PyTorch's are used", stacklevel=2)
        return None
    return counting


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
