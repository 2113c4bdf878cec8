"""Confidence penalty: cross entropy minus a share of the entropy of the prediction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_not_negative
from densecal.methods.registry import register


def binary_entropy(logits: Tensor) -> Tensor:
    """Return H(p) = -p log p - (1 - p) log(1 - p) in nats for p = sigmoid(logits)."""
    return -logits.sigmoid() * logsigmoid(logits) - (-logits).sigmoid() * logsigmoid(-logits)


def class_entropy(logits: Tensor) -> Tensor:
    """Return H(p) = -sum_k p_k log p_k in nats of every pixel (B, H, W), for p = softmax over dimension 1."""
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


@register("confidence-penalty")
class ConfidencePenalty(Method):
    """Confidence penalty (Pereyra 2017, "Penalizing confident output distributions").

    L = CE - weight * mean H(p), the paper's objective with its beta named `weight`, H in nats. H is summed
    over the classes as in the paper; the code of MbLS averages, so that its weight w is w / K here. No
    deviation.

    Args:
        weight: Weight of the entropy, at least 0; 0.1 by default.
        **common: See `Method`.
    """

    def __init__(self, *, weight: float = 0.1, **common: Any) -> None:
        super().__init__(**common)
        check_not_negative("weight", weight)
        self.weight = weight

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean penalised loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            entropy = binary_entropy if self.num_classes == 1 else class_entropy
            shares = pixel_shares(targets != self.ignore_index, weight)
            H = (entropy(logits.float()) * shares).mean()
            return super().loss(logits, targets, weight) - self.weight * H
