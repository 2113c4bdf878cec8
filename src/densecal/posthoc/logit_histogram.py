"""The one-pass statistic behind the calibrators of one logit: pixels by (logit, label), in bounded memory.

Up to a million float logits are kept as they are. Beyond that they are counted in fine bins, whose width is about a
thousandth of 1 + |z|. Counts are int64, and a float64 sum of z per (bin, label) makes the mean of a bin exact. 8- and
16-bit maps are counted by level, which loses nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densecal.errors import InputError
from densecal.metrics.exact import add_pixels, total_count

P_CLIP = 1e-7
"""Float probabilities are clipped to [P_CLIP, 1 - P_CLIP] before their logit is taken."""
EXACT_PIXELS = 1 << 20
"""Up to this number, float logits are kept one by one; beyond it they are counted in fine bins."""

_STEPS = 10
_OCTAVES = 14
_HALF = _OCTAVES << _STEPS
_SIZE = 2 * _HALF
_LIMIT = 2.0**_OCTAVES - 1.0
_CHUNK = 1 << 18
_VOID = 2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def logit(p: Tensor) -> Tensor:
    """Return log(p / (1 - p)) in float64, with p clipped to [P_CLIP, 1 - P_CLIP]."""
    p = p.double().clamp(P_CLIP, 1.0 - P_CLIP)
    return p.log() - (-p).log1p()


def level_logits(levels: int) -> Tensor:
    """Return the logits (levels,) that the levels of an integer map stand for.

    A level stands for all probabilities that round to it and counts as their middle. That is v / (levels - 1), but a
    quarter of a level further inside for the lowest and the highest level, whose range is only half a level.
    """
    v = torch.arange(levels, dtype=torch.float64)
    v[0], v[-1] = 0.25, levels - 1.25
    return logit(v / (levels - 1))


class LogitHistogram:
    """Count pixels by logit and label.

    Examples:
        >>> histogram = LogitHistogram()
        >>> histogram.update(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        >>> histogram.pixels, histogram.foreground
        (3, 1)
    """

    def __init__(self) -> None:
        self._raw: list[tuple[Tensor, Tensor]] = []
        self._raw_pixels = 0
        self._is_binned = False
        # The last slot is for void pixels.
        self._counts = torch.zeros(2 * _SIZE + 1, dtype=torch.int64)
        self._sums = torch.zeros(2 * _SIZE + 1, dtype=torch.float64)
        self._invalid = torch.zeros((), dtype=torch.int64)
        self._levels: dict[int, Ints] = {}
        self._counted = 0  # pixels, void ones included

    # ------------------------------------------------------------------ counting

    def update(self, logits: Tensor, masks: Tensor, ignore_index: int | None = None) -> None:
        """Count a batch, on the device it is on and without waiting for that device.

        Args:
            logits: Floats of any shape, clipped to +-16383.
            masks: As many zeros and ones; soft values above 0.5 count as 1.
            ignore_index: Mask value of void pixels, which are not counted.

        Raises:
            ValueError: NaN logits or masks outside [0, 1]. On CUDA this is raised when the counts are read.
        """
        if logits.numel() != masks.numel() or not logits.is_floating_point():
            raise ValueError(
                f"{logits.dtype} logits of shape {tuple(logits.shape)} and masks of shape {tuple(masks.shape)}; "
                "expected floats and as many masks"
            )
        counted = add_pixels(self._counted, logits.numel())
        self._move(logits.device)
        flat, labels = logits.detach().reshape(-1), masks.detach().reshape(-1)
        chunks = [slice(first, first + _CHUNK) for first in range(0, flat.numel(), _CHUNK)]
        parts = [(flat[chunk], labels[chunk]) for chunk in chunks]
        invalid = sum(_is_invalid(z, y, ignore_index).sum() for z, y in parts)
        if logits.device.type == "cpu":  # checked before counting, so that a bad batch changes nothing
            _raise_invalid(int(invalid))
        self._invalid += invalid
        self._counted = counted
        for z, y in parts:
            label = (y > 0.5).to(torch.int64)
            if ignore_index is not None:
                label = torch.where(y == ignore_index, _VOID, label)
            if logits.device.type != "cpu":
                label = torch.where(z.isnan(), _VOID, label)
            self._raw.append((z.double().nan_to_num().clamp(-_LIMIT, _LIMIT), label.to(torch.uint8)))
            self._raw_pixels += z.numel()
            self._bin_if_large()

    def _bin_if_large(self) -> None:
        if not self._is_binned and self._raw_pixels <= EXACT_PIXELS:
            return
        self._is_binned = True
        for z, label in self._raw:
            key = torch.where(label == _VOID, 2 * _SIZE, fine_bin(z) + _SIZE * label.to(torch.int64))
            if key.device.type == "cpu":  # NumPy's bincount is several times as fast as torch's scatter here
                self._add_on_cpu(key, z)
            else:
                self._add_on_device(key, z)
        self._raw, self._raw_pixels = [], 0

    def _add_on_cpu(self, key: Tensor, z: Tensor) -> None:
        index = key.numpy()
        self._counts += torch.from_numpy(np.bincount(index, minlength=2 * _SIZE + 1))
        self._sums += torch.from_numpy(np.bincount(index, z.numpy(), minlength=2 * _SIZE + 1))

    def _add_on_device(self, key: Tensor, z: Tensor) -> None:
        # Not torch.bincount, which makes the host wait for the largest key.
        self._counts.index_add_(0, key, torch.ones_like(key))
        self._sums.index_add_(0, key, z)

    def add_levels(self, counts: Ints) -> None:
        """Count 8- or 16-bit maps.

        Args:
            counts: int64 (2, L), pixels by mask value and level, L = 256 or 65536; ``[1, v]`` is foreground of level v.
        """
        self._counted = add_pixels(self._counted, total_count(counts))
        levels = counts.shape[1]
        self._levels[levels] = self._levels.get(levels, 0) + counts

    def merge(self, other: LogitHistogram) -> None:
        """Add the counts of another histogram, which stays as it is."""
        counted = add_pixels(self._counted, other._counted)
        self._counts += other._counts.to(self._counts.device)
        self._sums += other._sums.to(self._sums.device)
        self._invalid += other._invalid.to(self._invalid.device)
        for levels, counts in other._levels.items():
            self._levels[levels] = self._levels.get(levels, 0) + counts
        self._counted = counted
        self._raw += [(z.to(self._counts.device), label.to(self._counts.device)) for z, label in other._raw]
        self._raw_pixels += other._raw_pixels
        self._is_binned |= other._is_binned
        self._bin_if_large()

    def _move(self, device: torch.device) -> None:
        if self._counts.device != device:
            self._counts, self._sums = self._counts.to(device), self._sums.to(device)
            self._invalid = self._invalid.to(device)
            self._raw = [(z.to(device), label.to(device)) for z, label in self._raw]

    # ------------------------------------------------------------------ reading

    @property
    def pixels(self) -> int:
        """Number of pixels counted."""
        return sum(self._by_class())

    @property
    def foreground(self) -> int:
        """Number of foreground pixels counted."""
        return self._by_class()[1]

    def _by_class(self) -> tuple[int, int]:
        totals = self._counts[: 2 * _SIZE].view(2, _SIZE).sum(dim=1).tolist()
        for label in (0, 1):
            totals[label] += sum(int((labels == label).sum()) for _, labels in self._raw)
            totals[label] += sum(int(counts[label].sum()) for counts in self._levels.values())
        return totals[0], totals[1]

    @property
    def saturated(self) -> float:
        """Share of pixels at levels 0 and 255 of 8-bit maps, whose logits are only known to lie beyond +-6.2."""
        ends = self._levels[256][:, [0, 255]].sum() if 256 in self._levels else 0
        return float(ends) / max(self.pixels, 1)

    def require_both_classes(self, who: str) -> None:
        """Raise InputError unless there are foreground and background pixels."""
        pixels, foreground = self.pixels, self.foreground
        if foreground in (0, pixels):
            missing = "no pixels" if not pixels else f"no {'background' if foreground else 'foreground'} pixels"
            raise InputError(who, missing, "foreground and background pixels to fit on")

    def by_label(self) -> tuple[Floats, Floats, Floats]:
        """Return logit, label (0 or 1) and number of pixels of every kept pixel, (bin, label) and (level, label)."""
        z, y = self._kept_pixels()
        counts = self._counts[: 2 * _SIZE].cpu().numpy()
        key = np.flatnonzero(counts)
        means = self._sums[: 2 * _SIZE].cpu().numpy()[key] / counts[key]
        zs, ys, n = [z, means], [y, key // _SIZE], [np.ones(len(z)), counts[key]]
        for levels, table in sorted(self._levels.items()):
            label, level = np.nonzero(table)
            zs.append(level_logits(levels).numpy()[level])
            ys.append(label)
            n.append(table[label, level])
        return _concatenate(zs), _concatenate(ys), _concatenate(n)

    def by_logit(self) -> tuple[Floats, Floats, Floats]:
        """Return logit, pixels and foreground pixels of every value, bin and level, by rising logit, ties merged."""
        z, y = self._kept_pixels()
        counts = self._counts[: 2 * _SIZE].cpu().numpy().reshape(2, _SIZE)
        sums = self._sums[: 2 * _SIZE].cpu().numpy().reshape(2, _SIZE).sum(axis=0)
        total = counts.sum(axis=0)
        present = np.flatnonzero(total)
        zs, n, k = [z, sums[present] / total[present]], [np.ones(len(z)), total[present]], [y, counts[1, present]]
        for levels, table in sorted(self._levels.items()):
            level = np.flatnonzero(table.any(axis=0))
            zs.append(level_logits(levels).numpy()[level])
            n.append(table[:, level].sum(axis=0))
            k.append(table[1, level])
        return merge_ties(_concatenate(zs), _concatenate(n), _concatenate(k))

    def _kept_pixels(self) -> tuple[Floats, Floats]:
        """Return the logits and labels of the pixels that are kept one by one."""
        _raise_invalid(int(self._invalid))
        if not self._raw:
            return np.empty(0), np.empty(0)
        z, y = (torch.cat(parts).cpu().numpy() for parts in zip(*self._raw, strict=True))
        return z[y != _VOID], y[y != _VOID].astype(np.float64)


def fine_bin(z: Tensor) -> Tensor:
    """Return the bin, 0 to 28671, of a float64 logit; it rises with the logit, and no bin holds logits of both signs.

    Bins are the leading bits of 1 + |z| as a floating-point number: 1024 bins per octave, so they are 0.001 wide below
    |z| = 1, 0.002 below 3, 0.004 below 7, ...
    """
    code = ((z.abs() + 1.0).view(torch.int64) >> (52 - _STEPS)) - (1023 << _STEPS)
    code = code.clamp(0, _HALF - 1)
    return torch.where(z < 0, _HALF - 1 - code, _HALF + code)


def merge_ties(x: Floats, n: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """Sort by x and add up the n and k of equal x."""
    values, inverse = np.unique(x, return_inverse=True)
    total, positives = (np.bincount(inverse, weights, len(values)).astype(np.float64) for weights in (n, k))
    return values, total, positives


def _is_invalid(z: Tensor, y: Tensor, ignore_index: int | None) -> Tensor:
    invalid = z.isnan() | ~((y >= 0) & (y <= 1))
    return invalid if ignore_index is None else invalid & (y != ignore_index)


def _raise_invalid(count: int) -> None:
    if count:
        raise ValueError(f"{count:,} pixels with NaN logits or masks outside [0, 1]; expected logits, and 0 or 1")


def _concatenate(parts: list[Any]) -> Floats:
    return np.asarray(np.concatenate(parts), dtype=np.float64)
