"""Class-conditional matrix scaling that keeps the order of all classes (arXiv 2607.01902)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.metrics.arrays import Array, arange, namespace, on_host
from densecal.posthoc.experts import ExpertScaling
from densecal.posthoc.logit_histogram import Floats, Ints
from densecal.posthoc.registry import register


@register("order-preserving")
class OrderPreservingScaling(ExpertScaling):
    """p' = softmax of logits that fall by W_c g + b_c >= 0 from rank to rank, g being the gaps of log p between ranks.

    W_c, b_c >= 0, c the chosen class: the order of the classes never changes. It is fitted on a sample of at most a
    million pixels.

    Args:
        num_classes: K, at most 100.
        strength: How strongly experts are pulled towards the identity.
    """

    keeps_choice = True

    def active_rows(self, expert: int) -> Ints:
        """Return the rows of all ranks but the first, which has no gap above it."""
        return np.arange(1, self.num_classes)

    def mix(self) -> Floats:
        """Return minus the sums of gaps down to every rank."""
        return -np.triu(np.ones((self.num_classes - 1, self.num_classes)), 1)

    def features(self, log_p: Array) -> Array:
        """Return 0, and the gaps between neighbouring ranks."""
        xp = namespace(log_p)
        ranked = _by_rank(log_p)[0]
        return xp.concatenate([xp.zeros_like(ranked[:, :1]), ranked[:, :-1] - ranked[:, 1:]], 1)

    def logits(self, mapped: Array, log_p: Array) -> Array:
        """Return minus the sums of gaps, at the classes they belong to."""
        ranks = _by_rank(log_p)[1]
        fallen = -mapped.cumsum(1)
        return np.take_along_axis(fallen, ranks, 1) if on_host(fallen) else fallen.gather(1, ranks)

    def order(self, labels: Ints, expert: int, log_p: Any) -> Ints:
        """Return the ranks of the labels."""
        ranks = _by_rank(log_p.T[None])[1][0]
        return np.asarray(np.take_along_axis(ranks, labels[None], 0)[0])


def _by_rank(log_p: Array) -> tuple[Array, Array]:
    """Return log-probabilities (B, K, P) by falling rank, and the rank of every class; equal ones in their order."""
    if on_host(log_p):
        order = np.argsort(-log_p, axis=1, kind="stable")
        return np.take_along_axis(log_p, order, 1), np.argsort(order, axis=1)
    # a stable sort cannot be exported, counting the classes that come first can
    index = arange(log_p.shape[1], log_p)[:, None]
    ranks = index[None] * 0
    for j in range(log_p.shape[1]):
        other = log_p[:, j : j + 1]
        ranks = ranks + ((other > log_p) | ((other == log_p) & (index > j)))
    return (log_p * 0.0).scatter(1, ranks, log_p), ranks
