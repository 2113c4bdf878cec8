"""What updates of a meter are checked for: labels, ranges, and class probabilities that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from densecal.io import SUM_TOLERANCE

_SLACK = 1e-6
"""How far probabilities may lie outside [0, 1]: interpolation and averaging in float32 can give 1.0000001."""
_SUM_SLACK = SUM_TOLERANCE + _SLACK
"""Never stricter than the reader of maps, which adds in another order, and before maps are resized."""


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


def check_values(values: Tensor, valid: Tensor | None, logits: bool, softmax: bool, chunk: int) -> None:
    """Raise ValueError for a bad batch (B, C, P) before any of it is counted, ``chunk`` pixels at a time."""
    for image in range(len(values)):
        for start in range(0, values.shape[2], chunk):
            part = values[image, :, start : start + chunk]
            keep = None if valid is None else valid[image, start : start + chunk]
            filled = part if keep is None else part.masked_fill(~keep, 0.0)
            if logits:
                _check_logits(filled, softmax)
                continue
            if bool(out_of_range(torch.stack(filled.aminmax())).any()):  # NaN if any value is
                raise ValueError(
                    "probabilities outside [0, 1] or NaN; expected probabilities, or logits passed as logits="
                )
            if softmax:
                _check_sums(part, keep)


def _check_logits(part: Tensor, softmax: bool) -> None:
    """Refuse logits without a sigmoid or softmax: the softmax of +inf, or of -inf in every class, is NaN."""
    if softmax:
        if not bool(part.amax(dim=0).isfinite().all()):
            raise ValueError("logits that are NaN, +inf, or -inf in every class; expected a finite largest logit")
    elif bool(torch.stack(part.aminmax()).isnan().any()):
        raise ValueError("logits that are NaN; expected logits")


def _check_sums(part: Tensor, keep: Tensor | None) -> None:
    worst = float(_distance_from_one(part, 0, keep).max())
    if worst > _SUM_SLACK:
        raise ValueError(f"class probabilities that miss a sum of 1 by {worst:.3g}; expected softmax probabilities")


def _distance_from_one(values: Tensor, dim: int, keep: Tensor | None) -> Tensor:
    distance = (values.sum(dim=dim, dtype=torch.float64) - 1.0).abs_()
    return distance if keep is None else distance.masked_fill_(~keep, 0.0)


def out_of_range(values: Tensor) -> Tensor:
    """Return where values are not probabilities."""
    return ~((values >= -_SLACK) & (values <= 1 + _SLACK))


def is_invalid(values: Tensor, valid: Tensor | None, sums: bool) -> Tensor:
    """Return which valid pixels (B, P) of probabilities (B, C, P) are bad; with ``sums``, C classes must sum to 1."""
    bad = out_of_range(values).any(dim=1)
    if sums:
        bad = bad | (_distance_from_one(values, 1, None) > _SUM_SLACK)
    return bad if valid is None else bad & valid
