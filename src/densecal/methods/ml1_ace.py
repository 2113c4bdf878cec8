"""mL1-ACE: cross entropy plus the hard-binned calibration error of every image and class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_bins, check_not_negative, without_void
from densecal.methods.registry import register


def l1_ace(p: Tensor, y: Tensor, valid: Tensor, bins: int) -> Tensor:
    """Return the mean over non-empty bins of |mean p - mean y|, over the last dimension.

    Args:
        p: Probabilities (..., N), in bins of equal width on [0, 1]. The gradient flows through mean p alone.
        y: Labels 0 or 1, (..., N).
        valid: (..., N), 0 leaves a pixel out.
        bins: Number of bins.

    Returns:
        (...); 0 where no pixel is valid.
    """
    b = (p.detach() * bins).long().clamp(max=bins - 1)
    zeros = p.new_zeros(*p.shape[:-1], bins)
    count = zeros.scatter_add(-1, b, valid.to(p.dtype))
    gap = zeros.scatter_add(-1, b, (p - y) * valid) / count.clamp(min=1)
    return gap.abs().sum(dim=-1) / (count > 0).sum(dim=-1).clamp(min=1)


@register("ml1-ace")
class MeanL1Ace(Method):
    """mL1-ACE as an auxiliary loss (Barfoot 2024, "Average calibration error").

    L = CE + weight * mean over images and classes of ACE, ACE = mean over non-empty bins of
    |mean p - mean y|. One sigmoid logit has the foreground term alone, because the background
    mirrors it. The paper combines the term with Dice and cross entropy at equal weights, which is
    `loss={"bce": 1, "dice": 1}`. Deviations: soft masks are binarised at > 0.5 for the term; images without valid
    pixels are left out of the mean.

    Args:
        bins: Equal-width bins on [0, 1]; the paper's 20.
        weight: Weight of the term, at least 0; 1 is the paper's equal weighting.
        **common: See `Method`.
    """

    error = staticmethod(l1_ace)

    def __init__(self, *, bins: int = 20, weight: float = 1.0, **common: Any) -> None:
        super().__init__(**common)
        check_bins("bins", bins)
        check_not_negative("weight", weight)
        self.bins = bins
        self.weight = weight

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss plus the weighted error of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, y = logits.float(), without_void(targets, self.ignore_index)
            valid = (targets != self.ignore_index).flatten(1)
            if self.num_classes == 1:
                p, hard = z.sigmoid(), y > 0.5
            else:
                classes = torch.arange(self.num_classes, device=z.device).view(-1, *[1] * (y.ndim - 1))
                p, hard = z.softmax(dim=1), y.unsqueeze(1) == classes
            p, hard = p.flatten(2), hard.flatten(2).float()
            ace = self.error(p, hard, valid.unsqueeze(1).expand_as(p), self.bins)
            mean = (ace.mean(dim=1) * pixel_shares(valid.any(dim=1), weight)).mean()
            return super().loss(logits, targets, weight) + self.weight * mean
