"""The one-pass statistic behind every calibration figure: integer tables that merge exactly and never grow.

For every bin of a value v in [0, 1], a table holds the number of pixels with outcome 0 and with outcome 1, and the
exact sum of v (`fine_bins.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from densecal.metrics.fine_bins import Floats, Ints, fine_atoms, fine_tally, kernels, limbs_to_float, tally
from densecal.metrics.levels import BOUNDARY_DISTANCES, MAX_LEVEL, NLL_FLOOR, ROW_SCALARS

EXACT_PIXELS = 1 << 20
"""Up to this number, pixels of float maps are kept one by one; beyond it they are counted in fine bins."""

_MAX_RAW_VALUES = 1 << 26
_CHUNK, _CUDA_CHUNK = 1 << 21, 1 << 23
_SLACK = 1e-6
"""How far probabilities may lie outside [0, 1]: interpolation and averaging in float32 can give 1.0000001."""
# log2 of the fine bins per octave. K classes have K tables, so theirs are coarser.
_STEPS_SIGMOID, _STEPS_SOFTMAX = 10, 7


class Sketch:
    """Everything that calibration figures need to know of the pixels seen so far.

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
        self._steps = _STEPS_SOFTMAX if self.softmax else _STEPS_SIGMOID
        bands = len(BOUNDARY_DISTANCES)
        self.tables: dict[str, Tensor] = {
            "top": torch.zeros(bins, 4, dtype=torch.int64),
            "bands": torch.zeros(bands, bins, 4, dtype=torch.int64),
            "classes": torch.zeros(self.channels, bins, 4, dtype=torch.int64),
            # boundary zone, mask value, 16-bit level
            "levels": torch.zeros(bands + 1, 2, MAX_LEVEL + 1, dtype=torch.int64),
            "invalid": torch.zeros((), dtype=torch.int64),
        }
        self.rows: list[Tensor] = []
        self.raw: list[tuple[Tensor, Tensor]] = []
        self._raw_pixels = 0

    # ------------------------------------------------------------------ updates

    def update(
        self,
        values: Tensor,
        labels: Tensor,
        valid: Tensor | None = None,
        zones: Tensor | None = None,
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
        if values.device.type == "cpu":
            chunk = min(_CHUNK, max(1 << 16, (1 << 19) // channels))
        else:
            chunk = max(_CHUNK, _CUDA_CHUNK // channels)
        images = max(1, chunk // max(pixels, 1))
        if values.device.type == "cpu":  # elsewhere the check would stall the device: `compute` raises instead
            _check_values(values, valid, logits, chunk)
        for first in range(0, batch, images):
            group = slice(first, first + images)
            table = torch.zeros(min(images, batch - first), self.bins, 4, dtype=torch.int64, device=values.device)
            scores = torch.zeros(len(table), 2, dtype=torch.float64, device=values.device)
            for start in range(0, pixels, chunk):
                part = slice(start, start + chunk)
                self._count(
                    self._to_probabilities(values[group, :, part].to(torch.float64), logits),
                    labels[group, ..., part].to(torch.int64),
                    None if valid is None else valid[group, part],
                    None if zones is None else zones[group, part].to(torch.int64),
                    table,
                    scores,
                )
            self._add("top", table.sum(0))
            self.rows.append(_rows(table, scores))

    def _to_probabilities(self, values: Tensor, logits: bool) -> Tensor:
        if not logits:
            return values
        return values.softmax(dim=1) if self.softmax else values.sigmoid()

    def _count(
        self,
        values: Tensor,
        labels: Tensor,
        valid: Tensor | None,
        zones: Tensor | None,
        table: Tensor,
        scores: Tensor,
    ) -> None:
        """Add a chunk of a group of images to the tables, and to ``table`` and ``scores``, the sums of the group."""
        group, _, pixels = values.shape
        device = values.device
        bad = _out_of_range(values)
        self.add_invalid(bad if valid is None else bad & valid[:, None])
        values = values.nan_to_num(0.0).clamp(0.0, 1.0)
        scores += _scores(values, labels, self.softmax, valid)
        self._store(values, labels, valid)
        counting = kernels(device) if self.num_classes == 1 else None
        if counting is not None and zones is None:
            tables = counting.small_tables(values[:, 0], labels[:, 0], valid, self.bins)
            table += tables[:, 0]
            self._add("classes", tables[:, 1:].sum(0))
            return
        confidence, correct = top_label(values, labels, self.softmax)
        confidence, correct = confidence.flatten(1), correct.flatten(1)
        keep = None if valid is None else valid.repeat(1, confidence.shape[1] // pixels)
        image = torch.arange(group, device=device)[:, None]
        bin_ = equal_width_index(confidence, self.bins)
        table += tally(image * self.bins + bin_, confidence, correct, keep, group * self.bins).view_as(table)
        if zones is not None:
            self._count_bands(zones.repeat(1, confidence.shape[1] // pixels), bin_, confidence, correct, keep)
        classes = torch.zeros(self.tables["classes"].shape, dtype=torch.int64, device=device)
        for channel, value, outcome in self._channel_outcomes(values, labels):
            classes[channel] = tally(equal_width_index(value, self.bins), value, outcome, valid, self.bins)
        self._add("classes", classes)

    def add_invalid(self, bad: Tensor) -> None:
        """Count invalid pixels; if there are any, no result can be computed."""
        self._add("invalid", bad.sum())

    def _count_bands(
        self, zones: Tensor, bin_: Tensor, confidence: Tensor, correct: Tensor, keep: Tensor | None
    ) -> None:
        """Count the pixels of each boundary band; a pixel of zone 0 lies in every band."""
        size = (len(BOUNDARY_DISTANCES) + 1) * self.bins
        by_zone = tally(zones * self.bins + bin_, confidence, correct, keep, size).view(-1, self.bins, 4)
        self._add("bands", by_zone.cumsum(0)[:-1])

    def _channel_outcomes(self, values: Tensor, labels: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each class with its probabilities and whether a pixel is of that class, (B, P) each."""
        if self.num_classes == 1:
            yield 0, 1.0 - values[:, 0], labels[:, 0] == 0
            yield 1, values[:, 0], labels[:, 0] == 1
            return
        for channel in range(self.channels):
            outcome = labels == channel if self.softmax else labels[:, channel] == 1
            yield channel, values[:, channel], outcome

    def _store(self, values: Tensor, labels: Tensor, valid: Tensor | None) -> None:
        """Keep the valid pixels; count them in fine bins once there are too many."""
        flat = values.transpose(0, 1).flatten(1)
        outcomes = labels.flatten()[None] if self.softmax else labels.transpose(0, 1).flatten(1)
        outcomes = outcomes.to(torch.int16)
        if valid is not None:
            keep = valid.flatten()
            flat, outcomes = flat[:, keep], outcomes[:, keep]
        self.raw.append((flat, outcomes))
        self._raw_pixels += flat.shape[1]
        self._bin_if_large()

    def _bin_if_large(self) -> None:
        if self.is_binned or self._raw_pixels > min(EXACT_PIXELS, _MAX_RAW_VALUES // self.num_classes):
            self.bin_pixels()

    def _add_to_fine_bins(self, values: Tensor, outcomes: Tensor) -> None:
        fine = []
        for channel, value in enumerate(values):
            outcome = outcomes[0] == channel if self.softmax else outcomes[channel] == 1
            fine.append(fine_tally(value, outcome, self._steps))
        self._add("fine", torch.stack(fine))
        if self.softmax:
            confidence, correct = top_label(values[None], outcomes.to(torch.int64), True)
            self._add("fine_top", fine_tally(confidence[0], correct[0], _STEPS_SIGMOID))

    def add_levels(self, counts: Ints) -> None:
        """Add 8- or 16-bit foreground maps that were counted by level; add their per-image rows with ``add_rows``.

        Args:
            counts: int64 (Z, 2, L) pixels by boundary zone (Z = 3, or 1 where the bands are not measured), mask value
                and level, summed over the images; L is 256 or 65536.
        """
        if self.num_classes != 1:
            raise ValueError("integer maps are binary; pass float probabilities for several classes")
        stride = MAX_LEVEL // (counts.shape[2] - 1)
        self.tables["levels"] = self.tables["levels"].cpu()
        # Without zones, every pixel counts as outside the bands.
        self.tables["levels"][-len(counts) :, :, ::stride] += torch.from_numpy(counts)

    def add_rows(self, rows: Floats) -> None:
        """Add per-image rows, such as those of ``levels.level_rows``."""
        self.rows.append(torch.from_numpy(rows))

    def bin_pixels(self) -> None:
        """Replace the kept pixels by fine bins, whatever their number."""
        for flat, outcomes in self.raw:
            chunk = _CHUNK if flat.device.type == "cpu" else _CUDA_CHUNK
            for first in range(0, flat.shape[1], chunk):
                part = slice(first, first + chunk)
                self._add_to_fine_bins(flat[:, part], outcomes[:, part])
        self.raw = []

    @property
    def is_binned(self) -> bool:
        """Whether pixels of float maps are counted in fine bins."""
        return "fine" in self.tables

    def _add(self, name: str, table: Tensor) -> None:
        """Add to a table, on the device of the newest data."""
        old = self.tables.get(name)
        self.tables[name] = table if old is None else old.to(table.device) + table

    # ------------------------------------------------------------------ combining

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch with the same settings."""
        for name in ("bins", "num_classes", "softmax", "boundary"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"cannot merge: {name} is {getattr(self, name)} here and {getattr(other, name)} there")
        for name, table in other.tables.items():
            self._add(name, table.clone())
        self.rows += other.rows
        self.raw += other.raw
        self._raw_pixels += other._raw_pixels
        self._bin_if_large()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as CPU tensors and plain numbers."""
        state: dict[str, Any] = {name: table.cpu().clone() for name, table in self.tables.items()}
        state["rows"] = torch.from_numpy(self.image_rows())
        if self.raw:
            state["raw_values"] = torch.cat([v.cpu() for v, _ in self.raw], 1)
            state["raw_outcomes"] = torch.cat([o.cpu() for _, o in self.raw], 1)
        state["raw_pixels"] = self._raw_pixels
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the state by the ``state_dict`` of a sketch with the same settings."""
        for name in ("top", "classes"):
            if state[name].shape != self.tables[name].shape:
                raise ValueError(
                    f"state of shape {tuple(state[name].shape)} for {name}; expected {tuple(self.tables[name].shape)}"
                )
        not_tables = ("rows", "raw_values", "raw_outcomes", "raw_pixels")
        self.tables = {name: value.clone() for name, value in state.items() if name not in not_tables}
        self.rows = [state["rows"].clone()]
        self.raw = [(state["raw_values"], state["raw_outcomes"])] if "raw_values" in state else []
        self._raw_pixels = int(state["raw_pixels"])

    # ------------------------------------------------------------------ reading

    def image_rows(self) -> Floats:
        """Return the per-image table (images, 5 + bins) in the order of updates: ``ROW_SCALARS``, then gaps by bin."""
        if not self.rows:
            return np.zeros((0, len(ROW_SCALARS) + self.bins))
        return np.concatenate([rows.cpu().numpy() for rows in self.rows])

    def counts(self, name: str) -> tuple[Ints, Floats, Ints]:
        """Return pixels, sum of values and pixels with outcome 1 of every bin of a table, from float maps alone."""
        table = self.tables[name].cpu()
        pixels, hits = table[..., 0] + table[..., 1], table[..., 1]
        return pixels.numpy(), limbs_to_float(table[..., 2:]).numpy(), hits.numpy()

    def level_counts(self, zone: int | None = None) -> Ints:
        """Return the histogram (2, 65536) of the integer maps by mask value and level, for one zone or for all."""
        levels: Ints = self.tables["levels"].cpu().numpy()
        return np.asarray(levels.sum(axis=0) if zone is None else levels[zone])

    def class_atoms(self, channel: int) -> tuple[Floats, Ints, Ints]:
        """Return values of one channel, pixels and pixels with outcome 1, unsorted and with ties not merged."""
        parts = [self._float_atoms(channel)]
        if self.num_classes == 1:
            level, pixels, positives = self._level_atoms()
            parts.append((level / MAX_LEVEL, pixels, positives))
        return _concatenate(parts)

    def _level_atoms(self) -> tuple[Ints, Ints, Ints]:
        """Return the levels of the integer maps, their pixels and their foreground pixels."""
        levels = self.level_counts()
        present = np.flatnonzero(levels.sum(axis=0))
        return present, levels[:, present].sum(axis=0), levels[1, present]

    def _float_atoms(self, channel: int) -> tuple[Floats, Ints, Ints]:
        parts: list[tuple[Floats, Ints, Ints]] = []
        for flat, outcomes in self.raw:
            hit = outcomes[0] == channel if self.softmax else outcomes[channel] == 1
            value = flat[channel].cpu().numpy()
            parts.append((value, np.ones(len(value), np.int64), hit.cpu().numpy().astype(np.int64)))
        if "fine" in self.tables:
            parts.append(fine_atoms(self.tables["fine"][channel]))
        return _concatenate(parts)

    def top_atoms(self) -> tuple[Floats, Ints, Ints]:
        """Return confidences, pixels and correct pixels, unsorted and with ties not merged."""
        if not self.softmax:
            parts = [_top_label_atoms(*self._float_atoms(c)) for c in range(self.num_classes)]
            if self.num_classes == 1:
                # In integers, because 1 - v / 65535 and (65535 - v) / 65535 can differ as floats.
                level, pixels, positives = self._level_atoms()
                foreground = level > MAX_LEVEL // 2
                top = np.where(foreground, level, MAX_LEVEL - level)
                parts.append((top / MAX_LEVEL, pixels, np.where(foreground, positives, pixels - positives)))
            return _concatenate(parts)
        parts = []
        for flat, outcomes in self.raw:
            confidence, correct = top_label(flat[None], outcomes.to(torch.int64), True)
            value = confidence[0].cpu().numpy()
            parts.append((value, np.ones(len(value), np.int64), correct[0].cpu().numpy().astype(np.int64)))
        if "fine_top" in self.tables:
            parts.append(fine_atoms(self.tables["fine_top"]))
        return _concatenate(parts)


def integer_labels(masks: Tensor, ignore_index: int | None) -> Tensor:
    """Return integer masks as uint8 where they already are, which saves memory, and as int64 otherwise."""
    if masks.dtype == torch.bool:  # Pillow returns booleans whose byte is 255
        return masks.view(torch.uint8).ne(0).view(torch.uint8)
    narrow = masks.dtype == torch.uint8 and 0 <= (ignore_index or 0) <= 255
    return masks if narrow else masks.to(torch.int64)


def binary_labels(masks: Tensor, ignore_index: int | None) -> Tensor:
    """Return masks as 0 and 1: soft masks are thresholded at 0.5, void pixels keep their value."""
    if not masks.is_floating_point():
        return integer_labels(masks, ignore_index)
    void = torch.zeros((), dtype=torch.bool, device=masks.device) if ignore_index is None else masks == ignore_index
    if masks.device.type == "cpu" and masks.numel():  # elsewhere the check would stall the device
        low, high = (float(end) for end in masks.masked_fill(void, 0.0).aminmax())
        if not (low >= 0.0 and high <= 1.0):
            raise ValueError(f"masks hold values from {low:g} to {high:g}; expected 0 to 1")
    return (masks > 0.5).to(torch.int64).masked_fill(void, ignore_index or 0)


def _check_values(values: Tensor, valid: Tensor | None, logits: bool, chunk: int) -> None:
    """Raise ValueError for a bad batch before any of it is counted."""
    for image in range(len(values)):
        for start in range(0, values.shape[2], chunk):
            part = values[image, :, start : start + chunk]
            if valid is not None:
                part = part.masked_fill(~valid[image, start : start + chunk], 0.0)
            ends = torch.stack(part.aminmax())  # NaN if any value is
            if bool((ends.isnan() if logits else _out_of_range(ends)).any()):
                raise ValueError(
                    "probabilities outside [0, 1] or NaN; expected probabilities, or logits passed as logits="
                )


def _out_of_range(values: Tensor) -> Tensor:
    return ~((values >= -_SLACK) & (values <= 1 + _SLACK))


def top_label(values: Tensor, labels: Tensor, softmax: bool) -> tuple[Tensor, Tensor]:
    """Return the confidence of the winning class and whether it is right.

    A foreground probability of exactly 0.5 predicts background; tied classes go to the first.
    """
    if softmax:
        winner = values.argmax(dim=1)
        return values.gather(1, winner[:, None])[:, 0], winner == labels
    return torch.maximum(values, 1.0 - values), (values > 0.5) == (labels == 1)


def equal_width_index(value: Tensor, bins: int) -> Tensor:
    """Return the equal-width bin [l, u) of every value in [0, 1]; 1.0 lies in the last."""
    return (value * bins).to(torch.int64).clamp_(max=bins - 1)


def _rows(table: Tensor, scores: Tensor) -> Tensor:
    """Return per-image rows (B, 5 + bins) from per-image bin tables (B, bins, 4)."""
    count, correct = table[..., 0] + table[..., 1], table[..., 1]
    confidence = limbs_to_float(table[..., 2:])
    columns = [
        count.sum(1, True),
        correct.sum(1, True),
        confidence.sum(1, True),
        scores,
        confidence - correct,
    ]
    return torch.cat([column.to(torch.float64) for column in columns], dim=1)


def _scores(values: Tensor, labels: Tensor, softmax: bool, valid: Tensor | None) -> Tensor:
    """Return the sums of Brier score and negative log-likelihood of every image, (B, 2)."""
    if softmax:
        truth = labels.clamp(0, values.shape[1] - 1)[:, None]
        p_true = values.gather(1, truth)
        brier = (values.square().sum(1, True) - 2.0 * p_true + 1.0).clamp(min=0.0)
    else:
        p_true = torch.where(labels == 1, values, 1.0 - values)
        brier = (1.0 - p_true).square()
    nll = -p_true.clamp(NLL_FLOOR, 1.0 - NLL_FLOOR if not softmax else 1.0).log()
    both = torch.stack([brier, nll])
    if valid is not None:
        both = both * valid[:, None]
    return both.flatten(2).sum(2).T


def _top_label_atoms(value: Floats, pixels: Ints, positives: Ints) -> tuple[Floats, Ints, Ints]:
    """Return confidence, pixels and correct pixels from foreground probabilities."""
    foreground = value > 0.5
    return (
        np.where(foreground, value, 1.0 - value),
        pixels,
        np.where(foreground, positives, pixels - positives),
    )


def _concatenate(parts: list[tuple[Floats, Ints, Ints]]) -> tuple[Floats, Ints, Ints]:
    values, pixels, outcomes = zip(*parts, strict=True) if parts else (([],), ([],), ([],))
    return (
        np.concatenate(values).astype(np.float64),
        np.concatenate(pixels).astype(np.int64),
        np.concatenate(outcomes).astype(np.int64),
    )
