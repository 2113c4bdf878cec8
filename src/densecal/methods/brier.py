"""The Brier loss: the squared error of the probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import without_void
from densecal.methods.registry import register


def binary_brier(logits: Tensor, targets: Tensor) -> Tensor:
    """Return (sigmoid(z) - y)^2 of every pixel, for hard or soft targets of the shape of the logits."""
    return (logits.sigmoid() - targets).square()


def class_brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Return sum_k (p_k - [k = y])^2 of every pixel (B, H, W), from K logits and class indices."""
    p = logits.softmax(dim=1)
    y = labels.unsqueeze(1)
    return p.scatter_add(1, y, torch.full_like(y, -1, dtype=p.dtype)).square().sum(dim=1)


@register("brier")
class Brier(Method):
    """Brier loss instead of cross entropy (Brier 1950, "Verification of forecasts").

    One sigmoid logit: mean (p - y)^2, soft masks allowed. K classes: Brier's score, mean sum_k (p_k - y_k)^2,
    which for K = 2 is twice the former. Its gradient vanishes at saturated pixels, right or wrong: start from
    a model trained with cross entropy if training stalls. No options of its own.

    Args:
        **common: See `Method`.
    """

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean Brier loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            values = binary_brier if self.num_classes == 1 else class_brier
            shares = pixel_shares(targets != self.ignore_index, weight)
            return (values(logits.float(), without_void(targets, self.ignore_index)) * shares).mean()
