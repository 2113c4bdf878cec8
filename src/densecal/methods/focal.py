"""Focal loss with one gamma, and with a gamma that depends on the sample (FLSD-53)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_not_negative, without_void
from densecal.methods.registry import register


def true_class_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return m = z_y - log sum_{k != y} exp z_k of every pixel, so that sigmoid(m) is p of the true class."""
    y = labels.unsqueeze(1)
    others = logits.scatter(1, y, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, y).squeeze(1) - others


def focal_value(margin: Tensor, gamma: float | Tensor) -> Tensor:
    """Return -(1 - p_t)^gamma log p_t for p_t = sigmoid(margin)."""
    # The power is computed in the log domain: its gradient is finite for every gamma, even where 1 - p_t rounds to 0.
    return -torch.exp(gamma * logsigmoid(-margin)) * logsigmoid(margin)


def binary_focal(logits: Tensor, targets: Tensor, gamma: float | Tensor) -> Tensor:
    """Return y F(p) + (1 - y) F(1 - p) of every pixel, F the focal loss, for hard or soft targets."""
    return targets * focal_value(logits, gamma) + (1 - targets) * focal_value(-logits, gamma)


def flsd_gamma(margin: Tensor) -> Tensor:
    """Return 5 where p_t = sigmoid(margin) is below 0.2, else 3, without a gradient."""
    p_t = margin.detach().sigmoid()
    return torch.where(p_t < 0.2, 5.0, 3.0).to(margin.dtype)


@register("focal")
class Focal(Method):
    """Focal loss instead of cross entropy (Lin 2017; as a calibration method Mukhoti 2020, FL-3).

    L = -(1 - p_t)^gamma log p_t with p_t the probability of the true class, without class balancing. Two
    deviations: it averages over pixels where the public calibration code sums, and it takes soft masks, with
    y F(p) + (1 - y) F(1 - p).

    Args:
        gamma: Focusing exponent, at least 0; 0 is cross entropy. Mukhoti 2020's fixed choice is 3.
        **common: See `Method`.
    """

    def __init__(self, *, gamma: float = 3.0, **common: Any) -> None:
        super().__init__(**common)
        check_not_negative("gamma", gamma)
        self.gamma = gamma

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean focal loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, y = logits.float(), without_void(targets, self.ignore_index)
            if self.num_classes == 1:
                values = binary_focal(z, y, self.gamma)
            else:
                values = focal_value(true_class_margin(z, y), self.gamma)
            return (values * pixel_shares(targets != self.ignore_index, weight)).mean()


@register("flsd")
class SampleDependentFocal(Method):
    """FLSD-53: focal loss with gamma 5 where p_t < 0.2 and 3 elsewhere (Mukhoti 2020).

    gamma is chosen per pixel from a detached p_t; a soft mask is binarised at > 0.5 for that choice alone.
    Means and soft masks as in `Focal`. No options of its own.

    Args:
        **common: See `Method`.
    """

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean focal loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, y = logits.float(), without_void(targets, self.ignore_index)
            if self.num_classes == 1:
                values = binary_focal(z, y, flsd_gamma(torch.where(y > 0.5, z, -z)))
            else:
                margin = true_class_margin(z, y)
                values = focal_value(margin, flsd_gamma(margin))
            return (values * pixel_shares(targets != self.ignore_index, weight)).mean()
