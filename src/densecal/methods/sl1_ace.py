"""sL1-ACE: cross entropy plus the calibration error of every image and class over bins with soft edges."""

from __future__ import annotations

from torch import Tensor

from densecal.methods.ml1_ace import MeanL1Ace
from densecal.methods.registry import register

EMPTY = 0.01
"""Bins with less weight than this, in pixels, are empty, as in the public code."""


def soft_l1_ace(p: Tensor, y: Tensor, valid: Tensor, bins: int) -> Tensor:
    """Return the mean over non-empty bins of |mean p - mean y|, over the last dimension.

    A probability belongs to the two bins whose centres (b + 0.5) / bins are next to it, in proportion to its nearness;
    outside the centres, to the first or last bin alone. The gradient flows through p and through these shares.

    Args:
        p: Probabilities (..., N).
        y: Labels 0 or 1, (..., N).
        valid: (..., N), 0 leaves a pixel out.
        bins: Number of bins.

    Returns:
        (...); 0 where no pixel is valid.
    """
    position = (p * bins - 0.5).clamp(0, bins - 1)
    low = position.detach().long()
    high = (low + 1).clamp(max=bins - 1)
    upper = position - low
    zeros = p.new_zeros(*p.shape[:-1], bins)
    weight = [(low, (1 - upper) * valid), (high, upper * valid)]
    count, gap = zeros, zeros
    for b, share in weight:
        count = count.scatter_add(-1, b, share)
        gap = gap.scatter_add(-1, b, share * (p - y))
    full = count >= EMPTY
    mean = gap.abs() / count.clamp(min=EMPTY) * full
    return mean.sum(dim=-1) / full.sum(dim=-1).clamp(min=1)


@register("sl1-ace")
class SoftL1Ace(MeanL1Ace):
    """sL1-ACE as an auxiliary loss (Barfoot 2025, "Average calibration losses for reliable uncertainty").

    `ml1-ace` with soft bins: a probability is shared between the two bins whose centres are next to it, so that the
    gradient also moves it between bins. Deviations as in `ml1-ace`.

    Args:
        bins: Bins of equal width on [0, 1]; the paper's 20.
        weight: Weight of the term, at least 0; 1 is the paper's equal weighting.
        **common: See `Method`.
    """

    error = staticmethod(soft_l1_ace)
