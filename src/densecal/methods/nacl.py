"""NACL: cross entropy plus a penalty that pulls the logits of a pixel toward the class shares around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.neighbours import neighbour_shares
from densecal.methods.penalties import check_not_negative
from densecal.methods.registry import register


@register("nacl")
class NeighbourAware(Method):
    """NACL (Murugesan 2023, "Trust your neighbours: penalty-based constraints for model calibration").

    L = CE + weight * mean over pixels and classes of |tau_k - z_k|, where tau_k is the share of class k among the 3 x 3
    labels around the pixel. One sigmoid logit z stands for the pair of logits with difference z whose penalty is least:
    |2 tau - 1 - z| / 2, tau the share of foreground. Deviations: beyond the image the pixels of its border are
    repeated, where MONAI pads with zeros; void neighbours are left out.

    Args:
        weight: Weight of the penalty, at least 0; the paper's 0.1.
        **common: See `Method`.
    """

    def __init__(self, *, weight: float = 0.1, **common: Any) -> None:
        super().__init__(**common)
        check_not_negative("weight", weight)
        self.weight = weight
        self.register_buffer("kernel", torch.ones(3, 3), persistent=False)

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss plus the weighted penalty of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, labels = logits.float(), self.soft_labels(targets)
            tau = neighbour_shares(labels.planes, labels.valid, self.get_buffer("kernel"))
            distance = (2 * tau - 1 - z).abs() / 2 if self.num_classes == 1 else (tau - z).abs()
            shares = pixel_shares(labels.valid, weight)
            penalty = (distance.mean(dim=1, keepdim=True) * shares).mean()
            return super().loss(logits, targets, weight) + self.weight * penalty
