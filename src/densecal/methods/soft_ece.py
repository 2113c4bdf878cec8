"""Soft-binned ECE (SB-ECE): cross entropy plus a calibration error whose bins have soft edges."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_bins, check_not_negative, check_positive, top_label, without_void
from densecal.methods.registry import register


class _SoftSums(torch.autograd.Function):
    """Sums over pixels of u_b and of (c - a) u_b, (2, M), with a derivative that reads the M x pixels only once."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, a: Tensor, shares: Tensor, anchors: Tensor, T: float) -> Tensor:
        # Cut off at e^-40 of the nearest anchor: no sum changes, and denormal numbers would take ten times as long.
        lowest = -0.25 / (len(anchors) ** 2 * T) - 40
        u = (c - anchors.unsqueeze(1)).square_().div_(-T).clamp_(min=lowest).softmax(dim=0)
        ctx.save_for_backward(u, c - a, shares, anchors)
        ctx.T = T
        return torch.stack([u @ shares, u @ (shares * (c - a))])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, r, shares, anchors = ctx.saved_tensors
        # du_b/dc = 2/T u_b (anchor_b - m), where m = sum_b u_b anchor_b
        gS, gR, aS, aR, m = torch.cat([grad, grad * anchors, anchors.unsqueeze(0)]) @ u
        through_u = 2 / ctx.T * (aS - m * gS + r * (aR - m * gR))
        return shares * (gR + through_u), None, None, None, None


def soft_binned_ece(
    c: Tensor, a: Tensor, shares: Tensor, bins: int = 15, temperature: float = 0.01, norm: float = 2.0
) -> Tensor:
    """Return (sum_b S_b / sum S * |C_b - A_b|^p)^(1/p) over soft bins of confidence.

    Args:
        c: Confidences in [0, 1], any shape.
        a: Correctness, 0 or 1, of the same shape.
        shares: Weight of every pixel, of the same shape.
        bins: M; the anchors are (b + 0.5) / M.
        temperature: T of the memberships u_b = softmax_b(-(c - anchor_b)^2 / T).
        norm: p.
    """
    c, a, shares = c.flatten(), a.flatten(), shares.flatten()
    anchors = (torch.arange(bins, device=c.device, dtype=c.dtype) + 0.5) / bins
    S, weighted = _SoftSums.apply(c, a, shares, anchors, temperature)
    gap = weighted / S.clamp(min=1e-5)
    total = (S * gap.abs().pow(norm)).sum() / S.sum().clamp(min=1e-5)
    # The root has no gradient at 0, where nothing is left to improve.
    return torch.where(total > 0, torch.where(total > 0, total, 1).pow(1 / norm), 0)


@register("soft-ece")
class SoftEce(Method):
    """SB-ECE as an auxiliary loss (Karandikar 2021, "Soft calibration objectives for neural networks").

    L = CE + weight * SB-ECE over the top-label confidences of all pixels of the batch; the gradient flows
    through the confidences and memberships, not through the correctness. The paper tunes T and the weight per
    task: 0.01 and 0.5 are our choices, M = 15 and p = 2 those of its code. Soft masks are binarised at > 0.5
    for the term.

    Args:
        bins: M, soft bins on [0, 1].
        temperature: T, positive; a smaller one makes harder bins.
        norm: p, at least 1.
        weight: Weight of the term, at least 0.
        **common: See `Method`.
    """

    def __init__(
        self, *, bins: int = 15, temperature: float = 0.01, norm: float = 2.0, weight: float = 0.5, **common: Any
    ) -> None:
        super().__init__(**common)
        check_bins("bins", bins)
        check_positive("temperature", temperature)
        if not (math.isfinite(norm) and norm >= 1):
            raise ValueError(f"norm: found {norm}; expected a number of at least 1")
        check_not_negative("weight", weight)
        self.bins = bins
        self.temperature = temperature
        self.norm = norm
        self.weight = weight

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss plus the weighted SB-ECE of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            c, correct = top_label(logits.float(), without_void(targets, self.ignore_index))
            shares = pixel_shares(targets != self.ignore_index, weight)
            ece = soft_binned_ece(c, correct.float(), shares, self.bins, self.temperature, self.norm)
            return super().loss(logits, targets, weight) + self.weight * ece
