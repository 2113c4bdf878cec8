"""Margin-based label smoothing (MbLS): cross entropy plus a penalty on logit distances above a margin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_not_negative
from densecal.methods.registry import register


def binary_margin_penalty(logits: Tensor, margin: float) -> Tensor:
    """Return relu(|z| - margin) / 2 of every pixel: `class_margin_penalty` of the logits (0, z)."""
    return (logits.abs() - margin).relu() / 2


def class_margin_penalty(logits: Tensor, margin: float) -> Tensor:
    """Return the mean over classes k of relu(max_j z_j - z_k - margin) of every pixel, (B, H, W)."""
    return (logits.amax(dim=1, keepdim=True) - logits - margin).relu().mean(dim=1)


@register("mbls")
class MarginLabelSmoothing(Method):
    """MbLS (Liu 2022, "The devil is in the margin").

    L = CE + weight * mean_k relu(max_j z_j - z_k - margin): the paper's penalty form, averaged over the
    classes as its code does. One sigmoid logit stands for the logits (0, z), which the paper does not treat;
    sigmoid(10) = 0.99995, so binary tasks may want a margin of 3 to 8.

    Args:
        margin: Logit distance without a penalty, at least 0; the paper's 10.
        weight: Weight of the penalty, at least 0; the paper's 0.1.
        **common: See `Method`.
    """

    def __init__(self, *, margin: float = 10.0, weight: float = 0.1, **common: Any) -> None:
        super().__init__(**common)
        check_not_negative("margin", margin)
        check_not_negative("weight", weight)
        self.margin = margin
        self.weight = weight

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean penalised loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            penalty = binary_margin_penalty if self.num_classes == 1 else class_margin_penalty
            shares = pixel_shares(targets != self.ignore_index, weight)
            mean = (penalty(logits.float(), self.margin) * shares).mean()
            return super().loss(logits, targets, weight) + self.weight * mean
