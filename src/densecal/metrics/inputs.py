"""What updates of a meter are checked for: labels, ranges, and class probabilities that sum to one."""

from __future__ import annotations

import numpy as np

from densecal.io import SUM_TOLERANCE
from densecal.metrics.arrays import Array, cast, is_bool, is_float, namespace, on_host

SLACK = 1e-6
"""How far probabilities may lie outside [0, 1]: interpolation and averaging in float32 can give 1.0000001."""
SUM_SLACK = SUM_TOLERANCE + SLACK
"""Never stricter than the reader of maps, which adds in another order, and before maps are resized."""


def integer_labels(masks: Array, ignore_index: int | None) -> Array:
    """Return integer masks as uint8 where they already are, which saves memory, and as int64 otherwise."""
    xp = namespace(masks)
    if is_bool(masks):  # Pillow returns booleans whose byte is 255
        return (masks.view(xp.uint8) != 0).view(xp.uint8)
    narrow = masks.dtype == xp.uint8 and 0 <= (ignore_index or 0) <= 255
    return masks if narrow else cast(masks, "int64")


def binary_labels(masks: Array, ignore_index: int | None) -> Array:
    """Return masks as 0 and 1: soft masks are thresholded at 0.5, void pixels keep their value."""
    if not is_float(masks):
        return integer_labels(masks, ignore_index)
    xp = namespace(masks)
    filled = masks if ignore_index is None else xp.where(masks == ignore_index, 0.0, masks)
    if on_host(masks) and masks.size:  # elsewhere the check would stall the device
        low, high = float(filled.min()), float(filled.max())
        if not (low >= 0.0 and high <= 1.0):
            raise ValueError(f"masks hold values from {low:g} to {high:g}; expected 0 to 1")
    labels = cast(filled > 0.5, "int64")
    return labels if ignore_index is None else xp.where(masks == ignore_index, ignore_index, labels)


def check_values(values: Array, valid: Array | None, logits: bool, softmax: bool, chunk: int) -> None:
    """Raise ValueError for a bad batch (B, C, P) in memory before any of it is counted, ``chunk`` pixels at a time."""
    for image in range(len(values)):
        for start in range(0, values.shape[2], chunk):
            part = values[image, :, start : start + chunk]
            keep = None if valid is None else valid[image, start : start + chunk]
            filled = part if keep is None else np.where(keep, part, part.dtype.type(0.0))
            if logits:
                _check_logits(filled, softmax)
                continue
            if out_of_range(np.array([filled.min(), filled.max()], np.float64)).any():  # NaN if any value is
                raise ValueError(
                    "probabilities outside [0, 1] or NaN; expected probabilities, or logits passed as logits="
                )
            if softmax:
                _check_sums(filled, keep)


def _check_logits(part: Array, softmax: bool) -> None:
    """Refuse logits without a sigmoid or softmax: the softmax of +inf, or of -inf in every class, is NaN."""
    if softmax:
        if not np.isfinite(part.max(0)).all():
            raise ValueError("logits that are NaN, +inf, or -inf in every class; expected a finite largest logit")
    elif np.isnan(part.max()):
        raise ValueError("logits that are NaN; expected logits")


def _check_sums(part: Array, keep: Array | None) -> None:
    distance = np.abs(part.sum(0, dtype=np.float64) - 1.0)
    worst = float((distance if keep is None else distance[keep]).max(initial=0.0))
    if worst > SUM_SLACK:
        raise ValueError(f"class probabilities that miss a sum of 1 by {worst:.3g}; expected softmax probabilities")


def clipped(values: Array, valid: Array | None) -> Array:
    """Return probabilities in [0, 1], and 0 for NaN."""
    if valid is not None or not on_host(values):  # void pixels, and bad ones on an accelerator
        values = namespace(values).where(namespace(values).isnan(values), 0.0, values)
    return values.clip(0.0, 1.0)


def out_of_range(values: Array) -> Array:
    """Return where values are not probabilities."""
    return ~((values >= -SLACK) & (values <= 1 + SLACK))


def is_invalid(values: Array, valid: Array | None, sums: bool) -> Array:
    """Return which valid pixels (B, P) of probabilities (B, C, P) are bad; with ``sums``, C classes must sum to 1."""
    bad = out_of_range(values).any(1)
    if sums:
        bad = bad | (abs(values.sum(1) - 1.0) > SUM_SLACK)
    return bad if valid is None else bad & valid
