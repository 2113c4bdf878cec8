"""Random numbers that are functions of (seed, epoch, sample index, stream), equal on every device and process count."""

from __future__ import annotations

from enum import IntEnum, unique

import torch
from torch import Tensor

# Multipliers of the SplitMix64 finaliser (Steele, Lea, Flood 2014) as signed 64-bit integers.
_GOLDEN = -7046029254386353131
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685
_MASK_30, _MASK_27, _MASK_31, _MASK_40 = (1 << 34) - 1, (1 << 37) - 1, (1 << 33) - 1, (1 << 24) - 1


@unique
class Stream(IntEnum):
    """Independent uses of the same (seed, epoch, sample index). A number never changes its meaning."""

    LABEL = 10
    """Which images' labels are perturbed."""
    MODERATION_NOISE = 11
    """Noise of dynamic moderation, per pixel."""
    MMCE_PIXEL = 20
    """Which pixels MMCE compares."""
    MIXUP = 21
    """How two images are blended."""
    AUGMENT = 201
    """Flip, translation and crop."""
    SIZE = 301
    """Image size of a batch."""
    COLOUR = 302
    """Brightness, contrast, colour and sharpness."""
    MASK_NOISE = 303
    """Salt and pepper in masks, per pixel."""
    EBM_TRAINING = 310
    """Langevin dynamics of EBMGSOD's training."""
    EBM_PREDICTION = 311
    """Langevin dynamics of EBMGSOD's predictions."""
    INFORMATIONLESS_KIND = 401
    """Which images lose their information, and how."""
    INFORMATIONLESS_PHASE = 402
    INFORMATIONLESS_PATCH = 403
    INFORMATIONLESS_CROP = 404


def uniform(seed: int, epoch: int, index: Tensor, stream: int = 0, count: int = 1) -> Tensor:
    """Draw ``count`` uniforms in [0, 1) for every sample of a batch.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        index: Sample indices, int64, shape (B,).
        stream: One of ``Stream``, or a number of the caller's own.
        count: Numbers per sample.

    Returns:
        float32 tensor (B, count) on the device of ``index``; multiples of 2**-24, so every value is exact.

    Examples:
        >>> a = uniform(0, 3, torch.tensor([5, 9]))
        >>> b = uniform(0, 3, torch.tensor([9]))
        >>> bool(a[1, 0] == b[0, 0])
        True
    """
    key = 0
    for part in (seed, epoch, stream):
        key = _wrap((key ^ part) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019)
        key = _wrap(key ^ ((key & 0xFFFFFFFFFFFFFFFF) >> 29))
    per_sample = _mix(index.to(torch.int64) * _GOLDEN + key)
    counter = torch.arange(1, count + 1, device=index.device, dtype=torch.int64) * _GOLDEN
    bits = _mix(per_sample[:, None] + counter)
    return ((bits >> 40) & _MASK_40).to(torch.float32) * 2.0**-24


def normal(seed: int, epoch: int, index: Tensor, stream: int = 0, count: int = 1) -> Tensor:
    """Draw ``count`` standard normals for every sample of a batch, float32 (B, count); see ``uniform``.

    Each normal is the quantile of one uniform, so none is larger than 5.5 in magnitude.
    """
    # Shifted by half a step, because uniforms can be 0; in float64, where the largest does not round to 1.
    u = uniform(seed, epoch, index, stream, count).double() + 2.0**-25
    normals: Tensor = torch.special.ndtri(u).float()
    return normals


def _mix(x: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser; shifts in torch keep the sign, so the shifted-in bits are masked out."""
    x = (x ^ ((x >> 30) & _MASK_30)) * _MIX_1
    x = (x ^ ((x >> 27) & _MASK_27)) * _MIX_2
    return x ^ ((x >> 31) & _MASK_31)


def _wrap(value: int) -> int:
    """Reduce a Python integer to signed 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value
