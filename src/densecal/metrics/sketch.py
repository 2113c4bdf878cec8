"""The one-pass statistic behind every calibration figure: integer tables that merge exactly and never grow.

For every bin of a value v in [0, 1], a table holds the number of pixels with outcome 0 and with outcome 1, and the
exact sum of v (`fine_bins.py`). The whole numbers of large sums are in a table of their own, such as ``top_whole``.
Everything is exact up to ``exact.PIXEL_LIMIT`` pixels, and more are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from densecal.metrics.arrays import Array, arange, cast, largest, namespace, on_host, sigmoid, softmax, to_host, zeros
from densecal.metrics.count_tables import CountTables
from densecal.metrics.exact import add_pixels, total_count
from densecal.metrics.fine_bins import (
    Floats,
    Ints,
    concatenate_atoms,
    equal_width_index,
    fine_atoms,
    fine_tally,
    kernels_for,
    limbs_to_float,
    tally,
    top_label,
    top_label_atoms,
    true_rank,
)  # fmt: skip
from densecal.metrics.image_rows import RowTable, rows_of, score_sums
from densecal.metrics.inputs import check_values, clipped, is_invalid
from densecal.metrics.levels import BOUNDARY_DISTANCES, MAX_LEVEL, ROW_SCALARS, top_ks
from densecal.metrics.sketch_files import STEPS_SIGMOID, STEPS_SOFTMAX, read_sketch, write_sketch
from densecal.metrics.softmax_counts import SoftmaxCounts, counts_for

EXACT_PIXELS = 1 << 20
"""Up to this number, pixels of float maps are kept one by one; beyond it they are counted in fine bins."""

_MAX_RAW_VALUES = 1 << 26
_CHUNK, _DEVICE_CHUNK = 1 << 21, 1 << 23
_MAX_IMAGE = 1 << 34


class Sketch:
    """Everything that calibration figures need to know about the pixels seen so far.

    The tables are NumPy arrays. Arrays on an accelerator are counted there, in tables of their own; the host waits for
    them only when the counts are read.

    Args:
        bins: Equal-width bins whose figures must be exact.
        num_classes: 1 for a single foreground probability, K for K channels.
        multilabel: K independent sigmoid channels instead of a softmax over K classes.
        boundary: Also measure the boundary bands of ``levels.BOUNDARY_DISTANCES``.
    """

    def __init__(self, bins: int = 10, num_classes: int = 1, multilabel: bool = False, boundary: bool = True) -> None:
        if bins < 1:
            raise ValueError(f"bins is {bins}; expected at least 1")
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}; expected 1 for binary maps or K >= 2")
        self.bins, self.num_classes, self.boundary = bins, num_classes, boundary
        self.softmax = num_classes > 1 and not multilabel
        # Class-wise tables: background and foreground of a binary map, else one per channel.
        self.channels = 2 if num_classes == 1 else num_classes
        self.top_ks = top_ks(num_classes) if self.softmax else ()
        self._steps = STEPS_SOFTMAX if self.softmax else STEPS_SIGMOID
        bands = len(BOUNDARY_DISTANCES)
        self._counted = CountTables(
            {
                "top": np.zeros((bins, 4), np.int64),
                "bands": np.zeros((bands, bins, 4), np.int64),
                "classes": np.zeros((self.channels, bins, 4), np.int64),
                # boundary zone, mask value, 16-bit level
                "levels": np.zeros((bands + 1, 2, MAX_LEVEL + 1), np.int64),
                "invalid": np.zeros((), np.int64),
            }
        )
        self.rows = RowTable(len(ROW_SCALARS) + bins)
        self.raw: list[tuple[Array, Array]] = []
        self._raw_pixels = 0
        self._pixels = 0
        """Pixels of every channel for multi-label maps, void ones included."""

    @property
    def tables(self) -> dict[str, Ints]:
        """All counts by table; those on an accelerator are fetched."""
        return self._counted.fetch()

    # ------------------------------------------------------------------ updates

    def update(
        self,
        values: Array,
        labels: Array,
        valid: Array | None = None,
        zones: Array | None = None,
        logits: bool = False,
    ) -> None:
        """Count a batch of float probabilities, in float64, chunk by chunk.

        Args:
            values: Probabilities (B, C, P), C channels of P pixels.
            labels: (B, P) class indices for a softmax, else (B, C, P) zeros and ones.
            valid: bool (B, P), False at void pixels.
            zones: (B, P) 0 and 1 in the boundary bands, 2 beyond.
            logits: Whether the values are logits, whose sigmoid or softmax is counted.
        """
        batch, channels, pixels = values.shape
        # Small chunks save memory; a GPU is only busy with large ones.
        if on_host(values):
            chunk = min(_CHUNK, max(1 << 16, (1 << 19) // channels))
        else:
            chunk = max(_CHUNK, _DEVICE_CHUNK // channels)
        if channels * pixels > _MAX_IMAGE:
            raise ValueError(f"an image of {channels * pixels:,} values; expected at most {_MAX_IMAGE:,}")
        total = add_pixels(self._pixels, self._weight(batch, pixels))
        counts = None
        if self.softmax and not logits:
            counts = counts_for(values, valid, self.bins, self.top_ks, zones is not None, self._is_large)
        if counts is None and on_host(values):  # elsewhere the check would stall the device: `compute` raises instead
            check_values(values, valid, logits, self.softmax, chunk)
        before = {**vars(self), "_counted": self._counted.copy(), "raw": list(self.raw)}
        try:
            images = max(1, chunk // max(pixels, 1))
            groups = [slice(first, first + images) for first in range(0, batch, images)]
            parts = [slice(start, start + chunk) for start in range(0, pixels, chunk)]
            rows = [self._count_group(group, parts, values, labels, valid, zones, logits, counts) for group in groups]
            if counts is not None:
                counts.add_classes(values, labels, valid)
                for name, table in counts.tables.items():
                    self._counted.add(name, table)
                self._raw_pixels += counts.fine_pixels
                self._bin_if_large()
            self._pixels = total
            self.rows.append(namespace(values).concatenate(rows))
        except BaseException:  # out of memory, interrupted or not probabilities: the batch was not counted
            vars(self).update(before)
            raise

    def _weight(self, images: int, pixels: int) -> int:
        return images * pixels * (1 if self.softmax else self.num_classes)

    def _count_group(
        self,
        group: slice,
        parts: list[slice],
        values: Array,
        labels: Array,
        valid: Array | None,
        zones: Array | None,
        logits: bool,
        counts: SoftmaxCounts | None,
    ) -> Array:
        """Add a group of images, one part of their pixels after the other, and return their rows."""
        images, _, pixels = values[group].shape
        table = zeros((images, self.bins, 4), "int64", values)
        scores = zeros((images, 2), "float64", values)
        for part in parts:
            keep = None if valid is None else valid[group, part]
            if counts is not None:
                near = None if zones is None else zones[group, part]
                counts.add(values[group], labels[group, part], keep, near, part, table, scores)
                if "fine" not in counts.tables:
                    self._store(clipped(cast(values[group, :, part], "float64"), keep), labels[group, part], keep)
                continue
            p = self._to_probabilities(cast(values[group, :, part], "float64"), logits)
            if not on_host(p):
                self.add_invalid(is_invalid(p, keep, sums=self.softmax and not logits))
            self._count(
                p,
                cast(labels[group, ..., part], "int64"),
                keep,
                None if zones is None else cast(zones[group, part], "int64"),
                table,
                scores,
            )
        self._counted.add("top", table.sum(0))
        self._counted.carry_if_large(self._weight(images, pixels))
        return rows_of(table, scores)

    def _to_probabilities(self, values: Array, logits: bool) -> Array:
        if not logits:
            return values
        return softmax(values) if self.softmax else sigmoid(values)

    def _count(
        self,
        values: Array,
        labels: Array,
        valid: Array | None,
        zones: Array | None,
        table: Array,
        scores: Array,
    ) -> None:
        """Add a chunk of a group of images to the tables, and to ``table`` and ``scores``, the sums of the group."""
        group, _, pixels = values.shape
        xp = namespace(values)
        values = clipped(values, valid)
        scores += score_sums(values, labels, self.softmax, valid)
        self._store(values, labels, valid)
        counting = kernels_for(values) if self.num_classes == 1 else None
        if counting is not None and zones is None:
            tables = counting.small_tables(values[:, 0], labels[:, 0], valid, self.bins)
            table += tables[:, 0]
            self._counted.add("classes", tables[:, 1:].sum(0))
            return
        confidence, correct = top_label(values, labels, self.softmax)
        confidence, correct = confidence.reshape(group, -1), correct.reshape(group, -1)
        copies = (1, confidence.shape[1] // pixels)
        keep = None if valid is None else xp.tile(valid, copies)
        image = arange(group, values)[:, None]
        bin_ = equal_width_index(confidence, self.bins)
        table += tally(image * self.bins + bin_, confidence, correct, keep, group * self.bins).reshape(table.shape)
        if self.top_ks:
            self._counted.add("top_k", self._count_top_k(values, labels, valid))
        if zones is not None:
            self._count_bands(xp.tile(zones, copies), bin_, confidence, correct, keep)
        classes = [
            tally(equal_width_index(value, self.bins), value, outcome, valid, self.bins)
            for value, outcome in self._channel_outcomes(values, labels)
        ]
        self._counted.add("classes", xp.stack(classes))

    def add_invalid(self, bad: Array) -> None:
        """Count invalid pixels; if there are any, no result can be computed."""
        bad_pixels = bad.sum()
        self._counted.add("invalid", np.asarray(bad_pixels) if on_host(bad) else bad_pixels)

    def _count_bands(self, zones: Array, bin_: Array, confidence: Array, correct: Array, keep: Array | None) -> None:
        """Count the pixels of each boundary band; a pixel of zone 0 lies in every band."""
        size = (len(BOUNDARY_DISTANCES) + 1) * self.bins
        by_zone = tally(zones * self.bins + bin_, confidence, correct, keep, size).reshape(-1, self.bins, 4)
        self._counted.add("bands", by_zone.cumsum(0)[:-1])

    def _count_top_k(self, values: Array, labels: Array, valid: Array | None) -> Array:
        """Return the tables of the probability of the k most probable classes together: is the true one among them?"""
        top, rank, mass, tables = largest(values, self.top_ks[-1]), true_rank(values, labels), 0.0, []
        for k in range(1, self.top_ks[-1] + 1):
            mass = mass + top[:, k - 1]
            if k in self.top_ks:
                share = mass.clip(None, 1.0)
                tables.append(tally(equal_width_index(share, self.bins), share, rank < k, valid, self.bins))
        return namespace(values).stack(tables)

    def _channel_outcomes(self, values: Array, labels: Array) -> Iterator[tuple[Array, Array]]:
        """Yield each class with its probabilities and whether a pixel is of that class, (B, P) each."""
        if self.num_classes == 1:
            yield 1.0 - values[:, 0], labels[:, 0] == 0
            yield values[:, 0], labels[:, 0] == 1
            return
        for channel in range(self.channels):
            outcome = labels == channel if self.softmax else labels[:, channel] == 1
            yield values[:, channel], outcome

    def _store(self, values: Array, labels: Array, valid: Array | None) -> None:
        """Keep the valid pixels; count them in fine bins once there are too many."""
        flat = values.swapaxes(0, 1).reshape(self.num_classes, -1)
        outcomes = labels.reshape(1, -1) if self.softmax else labels.swapaxes(0, 1).reshape(self.num_classes, -1)
        outcomes = cast(outcomes, "int16")
        if valid is not None:
            keep = valid.reshape(-1)
            flat, outcomes = flat[:, keep], outcomes[:, keep]
        self.raw.append((flat, outcomes))
        self._raw_pixels += flat.shape[1]
        self._bin_if_large()

    def _bin_if_large(self) -> None:
        if self._is_large():
            self.bin_pixels()

    def _is_large(self, more: int = 0) -> bool:
        """Return whether pixels are counted in fine bins, if there are so many more."""
        return self.is_binned or self._raw_pixels + more > min(EXACT_PIXELS, _MAX_RAW_VALUES // self.num_classes)

    def _add_to_fine_bins(self, values: Array, outcomes: Array) -> None:
        fine = []
        for channel, value in enumerate(values):
            outcome = outcomes[0] == channel if self.softmax else outcomes[channel] == 1
            fine.append(fine_tally(value, outcome, self._steps))
        self._counted.add("fine", namespace(values).stack(fine))
        if self.softmax:
            confidence, correct = top_label(values[None], cast(outcomes, "int64"), True)
            self._counted.add("fine_top", fine_tally(confidence[0], correct[0], STEPS_SIGMOID))

    def add_levels(self, counts: Ints) -> None:
        """Add 8- or 16-bit foreground maps that were counted by level; add their per-image rows with ``add_rows``.

        Args:
            counts: int64 (Z, 2, L) pixels by boundary zone (Z = 3, or 1 where the bands are not measured), mask value
                and level, summed over the images; L is 256 or 65536.
        """
        if self.num_classes != 1:
            raise ValueError("integer maps are binary; pass float probabilities for several classes")
        total = add_pixels(self._pixels, total_count(counts))
        stride = MAX_LEVEL // (counts.shape[2] - 1)
        # Without zones, every pixel counts as outside the bands.
        self._counted.host["levels"][-len(counts) :, :, ::stride] += counts
        self._pixels = total

    def add_rows(self, rows: Floats) -> None:
        """Add per-image rows, such as those of ``levels.level_rows``."""
        self.rows.append(rows)

    def carry(self) -> None:
        """Take the whole numbers out of the limbs of every sum, which then stay far from the end of int64."""
        self._counted.carry()

    def bin_pixels(self) -> None:
        """Replace the kept pixels by fine bins, whatever their number."""
        for flat, outcomes in self.raw:
            chunk = _CHUNK if on_host(flat) else _DEVICE_CHUNK
            for first in range(0, flat.shape[1], chunk):
                part = slice(first, first + chunk)
                self._add_to_fine_bins(flat[:, part], outcomes[:, part])
        self.raw = []

    @property
    def is_binned(self) -> bool:
        """Whether pixels of float maps are counted in fine bins."""
        return "fine" in self._counted

    # ------------------------------------------------------------------ combining

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch with the same settings."""
        for name in ("bins", "num_classes", "softmax", "boundary"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"cannot merge: {name} is {getattr(self, name)} here and {getattr(other, name)} there")
        self._pixels = add_pixels(self._pixels, other._pixels)
        self._counted.merge(other._counted)
        self.rows.extend(other.rows)
        self.raw += other.raw
        self._raw_pixels += other._raw_pixels
        self._bin_if_large()

    def copy(self) -> Sketch:
        """Return a sketch with the same counts."""
        new = copy.copy(self)
        new._counted = self._counted.copy()
        new._counted.host["levels"] = new._counted.host["levels"].copy()  # the only table that is changed in place
        new.rows, new.raw = self.rows.copy(), list(self.raw)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as NumPy arrays and plain numbers."""
        state: dict[str, Any] = {name: table.copy() for name, table in self.tables.items()}
        state["rows"] = self.image_rows()
        if self.raw:
            state["raw_values"] = np.concatenate([to_host(v) for v, _ in self.raw], 1)
            state["raw_outcomes"] = np.concatenate([to_host(o) for _, o in self.raw], 1)
        state["raw_pixels"] = self._raw_pixels
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the ``state_dict`` of a sketch with the same settings, in arrays or tensors."""
        arrays = {name: to_host(value) for name, value in state.items() if name != "raw_pixels"}
        for name in ("top", "classes"):
            own, given = self._counted.host[name].shape, tuple(arrays[name].shape)
            if own != given:
                raise ValueError(f"state of shape {given} for {name}; expected {own}")
        rows, *raw = (arrays.pop(name, None) for name in ("rows", "raw_values", "raw_outcomes"))
        tables = {name: table.copy() for name, table in arrays.items()}
        for name, table in tables.items():
            if (table < 0).any():
                raise ValueError(f"state with negative numbers in {name}; expected counts that did not overflow")
        self._pixels = add_pixels(total_count(tables["top"][:, :2]), total_count(tables["levels"]))
        self._counted = CountTables(tables)
        self._counted.carry_if_large(self._pixels)
        self.rows = RowTable(len(ROW_SCALARS) + self.bins)
        self.rows.append(rows)
        self.raw = [(raw[0], raw[1])] if raw[0] is not None else []
        self._raw_pixels = int(state["raw_pixels"])

    def to_bytes(self) -> bytes:
        """Return the whole state as the content of a `.sketch` file."""
        return write_sketch(self)

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "sketch") -> Sketch:
        """Make a sketch of what `to_bytes` returned; ``where`` is what an InputError about it names."""
        settings, state = read_sketch(content, where)
        sketch = cls(**settings)
        sketch.load_state_dict(state)
        return sketch

    # ------------------------------------------------------------------ reading

    def image_rows(self) -> Floats:
        """Return the per-image table (images, 5 + bins) in the order of updates: ``ROW_SCALARS``, then gaps by bin."""
        return self.rows.array()

    def counts(self, name: str) -> tuple[Ints, Floats, Ints]:
        """Return pixels, sum of values and pixels with outcome 1 of every bin of a table, from float maps alone."""
        table, whole = self._counted.carried(name)
        pixels, hits, sums = table[..., 0] + table[..., 1], table[..., 1], limbs_to_float(table[..., 2:])
        return pixels, sums + whole, hits

    def level_counts(self, zone: int | None = None) -> Ints:
        """Return the histogram (2, 65536) of the integer maps by mask value and level, for one zone or for all."""
        levels = self._counted.host["levels"]
        return np.asarray(levels.sum(axis=0) if zone is None else levels[zone])

    def class_atoms(self, channel: int) -> tuple[Floats, Ints, Ints]:
        """Return values of one channel, pixels and pixels with outcome 1, unsorted and with ties not merged."""
        parts = [self._float_atoms(channel)]
        if self.num_classes == 1:
            level, pixels, positives = self._level_atoms()
            parts.append((level / MAX_LEVEL, pixels, positives))
        return concatenate_atoms(parts)

    def _level_atoms(self) -> tuple[Ints, Ints, Ints]:
        """Return the levels of the integer maps, their pixels and their foreground pixels."""
        levels = self.level_counts()
        present = np.flatnonzero(levels.sum(axis=0))
        return present, levels[:, present].sum(axis=0), levels[1, present]

    def _float_atoms(self, channel: int) -> tuple[Floats, Ints, Ints]:
        parts: list[tuple[Floats, Ints, Ints]] = []
        for flat, outcomes in self.raw:
            hit = outcomes[0] == channel if self.softmax else outcomes[channel] == 1
            value = to_host(flat[channel])
            parts.append((value, np.ones(len(value), np.int64), to_host(hit).astype(np.int64)))
        if self.is_binned:
            table, whole = self._counted.carried("fine")
            parts.append(fine_atoms(table[channel], whole[channel]))
        return concatenate_atoms(parts)

    def top_atoms(self) -> tuple[Floats, Ints, Ints]:
        """Return confidences, pixels and correct pixels, unsorted and with ties not merged."""
        if not self.softmax:
            parts = [top_label_atoms(*self._float_atoms(c)) for c in range(self.num_classes)]
            if self.num_classes == 1:
                # In integers, because 1 - v / 65535 and (65535 - v) / 65535 can differ as floats.
                level, pixels, positives = self._level_atoms()
                foreground = level > MAX_LEVEL // 2
                top = np.where(foreground, level, MAX_LEVEL - level)
                parts.append((top / MAX_LEVEL, pixels, np.where(foreground, positives, pixels - positives)))
            return concatenate_atoms(parts)
        parts = []
        for flat, outcomes in self.raw:
            confidence, correct = top_label(flat[None], cast(outcomes, "int64"), True)
            value = to_host(confidence[0])
            parts.append((value, np.ones(len(value), np.int64), to_host(correct[0]).astype(np.int64)))
        if self.is_binned:
            parts.append(fine_atoms(*self._counted.carried("fine_top")))
        return concatenate_atoms(parts)
