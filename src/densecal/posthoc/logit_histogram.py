"""The one-pass statistic behind the calibrators of one logit: pixels by (logit, label), in bounded memory.

Up to a million float logits are kept as they are. Beyond that they are counted in fine bins, whose width is about a
thousandth of 1 + |z|. Counts are int64, and a float64 sum of z per (bin, label) makes the mean of a bin exact. 8- and
16-bit maps are counted by level, which loses nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.metrics.arrays import Array, as_array, beside, cast, is_float, namespace, on_host, to_host
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


def logit(p: Array) -> Array:
    """Return log(p / (1 - p)) in float64, with p clipped to [P_CLIP, 1 - P_CLIP]."""
    xp = namespace(p)
    p = cast(p, "float64").clip(P_CLIP, 1.0 - P_CLIP)
    return xp.log(p) - xp.log1p(-p)


def level_logits(levels: int) -> Floats:
    """Return the logits (levels,) that the levels of an integer map stand for.

    A level stands for all probabilities that round to it and counts as their middle. That is v / (levels - 1), but a
    quarter of a level further inside for the lowest and the highest level, whose range is only half a level.
    """
    v = np.arange(levels, dtype=np.float64)
    v[0], v[-1] = 0.25, levels - 1.25
    return np.asarray(logit(v / (levels - 1)))


class LogitHistogram:
    """Count pixels by logit and label.

    Examples:
        >>> histogram = LogitHistogram()
        >>> histogram.update(np.array([2.0, -1.0, 0.5]), np.array([1, 0, 0]))
        >>> histogram.pixels, histogram.foreground
        (3, 1)
    """

    def __init__(self) -> None:
        self._raw: list[tuple[Array, Array]] = []
        self._raw_pixels = 0
        self._is_binned = False
        # The last slot is for void pixels.
        self._counts: Array = np.zeros(2 * _SIZE + 1, np.int64)
        self._sums: Array = np.zeros(2 * _SIZE + 1, np.float64)
        self._invalid: Array = np.zeros(1, np.int64)
        self._levels: dict[int, Ints] = {}
        self._counted = 0  # pixels, void ones included

    # ------------------------------------------------------------------ counting

    def update(self, logits: Any, masks: Any, ignore_index: int | None = None) -> None:
        """Count a batch, on the device it is on and without waiting for that device.

        Args:
            logits: Floats of any shape, in an array of any library, clipped to +-16383.
            masks: As many zeros and ones; soft values above 0.5 count as 1.
            ignore_index: Mask value of void pixels, which are not counted.

        Raises:
            ValueError: NaN logits or masks outside [0, 1]. On CUDA this is raised when the counts are read.
        """
        logits = as_array(logits)
        masks = beside(as_array(masks), logits)
        flat, labels = logits.reshape(-1), masks.reshape(-1)
        if len(flat) != len(labels) or not is_float(logits):
            raise ValueError(
                f"{logits.dtype} logits of shape {tuple(logits.shape)} and masks of shape {tuple(masks.shape)}; "
                "expected floats and as many masks"
            )
        counted = add_pixels(self._counted, len(flat))
        chunks = [slice(first, first + _CHUNK) for first in range(0, len(flat), _CHUNK)]
        parts = [(flat[chunk], labels[chunk]) for chunk in chunks]
        invalid = sum(_is_invalid(z, y, ignore_index).sum() for z, y in parts)
        if on_host(flat):  # checked before counting, so that a bad batch changes nothing
            _raise_invalid(int(invalid))
        self._move(flat)
        self._invalid = self._invalid + invalid
        self._counted = counted
        xp = namespace(flat)
        for z, y in parts:
            void = xp.isnan(z) if ignore_index is None else xp.isnan(z) | (y == ignore_index)
            label = xp.where(void, _VOID, cast(y > 0.5, "int64"))
            z = xp.where(void, 0.0, cast(z, "float64")).clip(-_LIMIT, _LIMIT)
            self._raw.append((z, cast(label, "uint8")))
            self._raw_pixels += len(z)
            self._bin_if_large()

    def _bin_if_large(self) -> None:
        if not self._is_binned and self._raw_pixels <= EXACT_PIXELS:
            return
        self._is_binned = True
        for z, label in self._raw:
            key = namespace(z).where(label == _VOID, 2 * _SIZE, fine_bin(z) + _SIZE * cast(label, "int64"))
            if on_host(key):
                self._counts += np.bincount(key, minlength=2 * _SIZE + 1)
                self._sums += np.bincount(key, z, minlength=2 * _SIZE + 1)
            else:  # not torch.bincount, which makes the host wait for the largest key
                self._counts.index_add_(0, key, namespace(key).ones_like(key))
                self._sums.index_add_(0, key, z)
        self._raw, self._raw_pixels = [], 0

    def add_levels(self, counts: Ints) -> None:
        """Count 8- or 16-bit maps.

        Args:
            counts: int64 (2, L), pixels by mask value and level, L = 256 or 65536; ``[1, v]`` is foreground of level v.
        """
        self._counted = add_pixels(self._counted, total_count(counts))
        levels = counts.shape[1]
        self._levels[levels] = self._levels.get(levels, 0) + counts

    def merge(self, other: LogitHistogram) -> None:
        """Add the counts of another histogram, which is not changed."""
        counted = add_pixels(self._counted, other._counted)
        self._counts = self._counts + beside(other._counts, self._counts)
        self._sums = self._sums + beside(other._sums, self._sums)
        self._invalid = self._invalid + beside(other._invalid, self._invalid)
        for levels, counts in other._levels.items():
            self._levels[levels] = self._levels.get(levels, 0) + counts
        self._counted = counted
        self._raw += [(beside(z, self._counts), beside(label, self._counts)) for z, label in other._raw]
        self._raw_pixels += other._raw_pixels
        self._is_binned |= other._is_binned
        self._bin_if_large()

    def _move(self, other: Array) -> None:
        """Move all counts to where an array is."""
        self._counts, self._sums, self._invalid = (
            beside(table, other) for table in (self._counts, self._sums, self._invalid)
        )
        self._raw = [(beside(z, other), beside(label, other)) for z, label in self._raw]

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
        totals = self._counts[: 2 * _SIZE].reshape(2, _SIZE).sum(1).tolist()
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
        counts = to_host(self._counts[: 2 * _SIZE])
        key = np.flatnonzero(counts)
        means = to_host(self._sums[: 2 * _SIZE])[key] / counts[key]
        zs, ys, n = [z, means], [y, key // _SIZE], [np.ones(len(z)), counts[key]]
        for levels, table in sorted(self._levels.items()):
            label, level = np.nonzero(table)
            zs.append(level_logits(levels)[level])
            ys.append(label)
            n.append(table[label, level])
        return _concatenate(zs), _concatenate(ys), _concatenate(n)

    def by_logit(self) -> tuple[Floats, Floats, Floats]:
        """Return logit, pixels and foreground pixels of every value, bin and level, by rising logit, ties merged."""
        z, y = self._kept_pixels()
        counts = to_host(self._counts[: 2 * _SIZE]).reshape(2, _SIZE)
        sums = to_host(self._sums[: 2 * _SIZE]).reshape(2, _SIZE).sum(axis=0)
        total = counts.sum(axis=0)
        present = np.flatnonzero(total)
        zs, n, k = [z, sums[present] / total[present]], [np.ones(len(z)), total[present]], [y, counts[1, present]]
        for levels, table in sorted(self._levels.items()):
            level = np.flatnonzero(table.any(axis=0))
            zs.append(level_logits(levels)[level])
            n.append(table[:, level].sum(axis=0))
            k.append(table[1, level])
        return merge_ties(_concatenate(zs), _concatenate(n), _concatenate(k))

    def _kept_pixels(self) -> tuple[Floats, Floats]:
        """Return the logits and labels of the pixels that are kept one by one."""
        _raise_invalid(int(self._invalid[0]))
        if not self._raw:
            return np.empty(0), np.empty(0)
        z, y = (to_host(namespace(parts[0]).concatenate(parts)) for parts in zip(*self._raw, strict=True))
        return z[y != _VOID], y[y != _VOID].astype(np.float64)


def fine_bin(z: Array) -> Array:
    """Return the bin, 0 to 28671, of a float64 logit; it rises with the logit, and no bin holds logits of both signs.

    Bins are the leading bits of 1 + |z| as a floating-point number: 1024 bins per octave, so they are 0.001 wide below
    |z| = 1, 0.002 below 3, 0.004 below 7, ...
    """
    xp = namespace(z)
    code = ((abs(z) + 1.0).view(xp.int64) >> (52 - _STEPS)) - (1023 << _STEPS)
    code = code.clip(0, _HALF - 1)
    return xp.where(z < 0, _HALF - 1 - code, _HALF + code)


def merge_ties(x: Floats, n: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """Sort by x and add up the n and k of equal x."""
    values, inverse = np.unique(x, return_inverse=True)
    total, positives = (np.bincount(inverse, weights, len(values)).astype(np.float64) for weights in (n, k))
    return values, total, positives


def _is_invalid(z: Array, y: Array, ignore_index: int | None) -> Array:
    invalid = namespace(z).isnan(z) | ~((y >= 0) & (y <= 1))
    return invalid if ignore_index is None else invalid & (y != ignore_index)


def _raise_invalid(count: int) -> None:
    if count:
        raise ValueError(f"{count:,} pixels with NaN logits or masks outside [0, 1]; expected logits, and 0 or 1")


def _concatenate(parts: list[Any]) -> Floats:
    return np.asarray(np.concatenate(parts), dtype=np.float64)
