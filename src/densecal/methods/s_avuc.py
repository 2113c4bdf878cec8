"""S-AvUC: cross entropy plus a penalty on uncertain correct pixels and on certain wrong ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_not_negative, check_positive, top_label, without_void
from densecal.methods.registry import register


def mixed_entropy(p: Tensor) -> Tensor:
    """Return the entropy in nats over dimension 1 of p mixed with 1e-5 of the uniform distribution."""
    mixed = (1 - 1e-5) * p + 1e-5 / p.shape[1]
    return -(mixed * mixed.log()).sum(dim=1)


def avuc_counts(
    H: Tensor, correct: Tensor, shares: Tensor, num_labels: int, kappa: float = 0.5, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the soft counts n_AC, n_AU, n_IC, n_IU: accurate or inaccurate, certain or uncertain.

    With h = H / log K, q = sigmoid(log(h (1 - kappa) / ((1 - h) kappa)) / T) and tau = tanh H, a certain
    pixel counts (1 - q)(1 - tau) and an uncertain one q tau.

    Args:
        H: Entropies in nats, any shape.
        correct: 0 or 1, of the same shape.
        shares: Weight of every pixel, of the same shape.
        num_labels: K, the values a label can take.
        kappa: Normalised entropy at which q is 1/2.
        temperature: T.
    """
    # At the uniform distribution h rounds to 1 or above it, where log(1 - h) is undefined.
    h = (H / math.log(num_labels)).clamp(max=1 - 1e-6)
    q = ((torch.logit(h) - math.log(kappa / (1 - kappa))) / temperature).sigmoid()
    tau = H.tanh()
    certain, uncertain = (1 - q) * (1 - tau) * shares, q * tau * shares
    wrong = 1 - correct
    return (
        (certain * correct).sum(),
        (uncertain * correct).sum(),
        (certain * wrong).sum(),
        (uncertain * wrong).sum(),
    )


def soft_avuc(n_AC: Tensor, n_AU: Tensor, n_IC: Tensor, n_IU: Tensor) -> Tensor:
    """Return log(1 + (n_AU + n_IC) / (n_AC + n_IU)), the denominator at least 1e-5."""
    return torch.log1p((n_AU + n_IC) / (n_AC + n_IU).clamp(min=1e-5))


@register("s-avuc")
class SoftAvuc(Method):
    """S-AvUC as an auxiliary loss (Karandikar 2021, "Soft calibration objectives for neural networks").

    L = CE + weight * log(1 + (n_AU + n_IC) / (n_AC + n_IU)), see `avuc_counts`, over all pixels of the batch
    with top-label correctness; entropies normalised by log K. The paper tunes kappa, T and the weight per
    task: the defaults are our choices. Deviations: h is kept 1e-6 below 1; soft masks are binarised at > 0.5
    for the term.

    Args:
        kappa: Normalised entropy in (0, 1) that separates certain from uncertain.
        temperature: T, positive; a smaller one separates more sharply.
        weight: Weight of the term, at least 0.
        **common: See `Method`.
    """

    def __init__(self, *, kappa: float = 0.5, temperature: float = 1.0, weight: float = 0.5, **common: Any) -> None:
        super().__init__(**common)
        if not 0 < kappa < 1:
            raise ValueError(f"kappa: found {kappa}; expected a number between 0 and 1, both excluded")
        check_positive("temperature", temperature)
        check_not_negative("weight", weight)
        self.kappa = kappa
        self.temperature = temperature
        self.weight = weight

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss plus the weighted S-AvUC of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, y = logits.float(), without_void(targets, self.ignore_index)
            shares = pixel_shares(targets != self.ignore_index, weight)
            _, correct = top_label(z, y)
            p = torch.cat([z.sigmoid(), (-z).sigmoid()], dim=1) if self.num_classes == 1 else z.softmax(dim=1)
            H = mixed_entropy(p).view_as(correct)
            counts = avuc_counts(H, correct.float(), shares, p.shape[1], self.kappa, self.temperature)
            return super().loss(logits, targets, weight) + self.weight * soft_avuc(*counts)
