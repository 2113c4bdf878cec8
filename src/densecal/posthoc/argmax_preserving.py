"""Class-conditional matrix scaling that keeps the chosen class (arXiv 2607.01902)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.metrics.arrays import Array, namespace
from densecal.posthoc.experts import ExpertScaling
from densecal.posthoc.logit_histogram import Floats, Ints
from densecal.posthoc.registry import register


@register("argmax-preserving")
class ArgmaxPreservingScaling(ExpertScaling):
    """p' = softmax(-(W_c m + b_c)), m_k = log p_c - log p_k >= 0, c the chosen class, which never changes.

    W_c, b_c >= 0, and their row of class c is 0: no logit is above that of c. It is fitted on a sample of at most a
    million pixels.

    Args:
        num_classes: K, at most 100.
        strength: How strongly experts are pulled towards the identity.
    """

    keeps_choice = True

    def active_rows(self, expert: int) -> Ints:
        """Return the rows of the other classes."""
        return np.delete(np.arange(self.num_classes), expert)

    def mix(self) -> Floats:
        """Return 0 for the chosen class, and minus the others."""
        others = self.num_classes - 1
        return np.concatenate([np.zeros((others, 1)), -np.eye(others)], axis=1)

    def features(self, log_p: Array) -> Array:
        """Return the margins of the chosen class over every class."""
        return namespace(log_p).amax(log_p, 1)[:, None] - log_p

    def logits(self, mapped: Array, log_p: Array) -> Array:
        """Return -(W m + b)."""
        return -mapped

    def order(self, labels: Ints, expert: int, log_p: Any) -> Ints:
        """Return 0 for the chosen class, and the others behind it."""
        return np.where(labels == expert, 0, np.where(labels < expert, labels + 1, labels))
