"""What the losses other than cross entropy share: clean targets, top-label confidence, checks of options."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def without_void(targets: Tensor, ignore_index: int) -> Tensor:
    """Return the targets with void pixels set to 0, a valid label; their share in the loss is 0."""
    return torch.where(targets == ignore_index, 0, targets)


def top_label(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence c in the predicted class and whether that class is right.

    Args:
        logits: (B, 1, H, W) for one sigmoid logit, (B, K, H, W) for K softmax logits.
        targets: Without void: (B, 1, H, W) in [0, 1], binarised here at > 0.5; or class indices (B, H, W).

    Returns:
        c with its gradient, and booleans; both of the shape of `targets`.
    """
    if logits.shape[1] == 1:
        return logits.abs().sigmoid(), (logits > 0) == (targets > 0.5)
    c, predicted = logits.softmax(dim=1).max(dim=1)
    return c, predicted == targets


def check_positive(option: str, value: float) -> None:
    """Raise ValueError unless an option is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option}: found {value}; expected a positive number")


def check_not_negative(option: str, value: float) -> None:
    """Raise ValueError if an option is negative or not finite."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option}: found {value}; expected a number of at least 0")


def check_bins(option: str, value: int) -> None:
    """Raise ValueError unless a number of bins is an integer of at least 1."""
    if value < 1 or value != int(value):
        raise ValueError(f"{option}: found {value}; expected an integer of at least 1")
