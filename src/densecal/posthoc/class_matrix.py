"""Class-conditional matrix scaling: a matrix and a bias for every chosen class (arXiv 2607.01902)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.metrics.arrays import Array
from densecal.posthoc.experts import ExpertScaling
from densecal.posthoc.logit_histogram import Floats, Ints
from densecal.posthoc.registry import register


@register("class-matrix")
class ClassMatrixScaling(ExpertScaling):
    """p' = softmax(W_c log p + b_c), c the class that the model chooses; it may change the chosen class.

    It is fitted on a sample of at most a million pixels.

    Args:
        num_classes: K, at most 100.
        strength: How strongly experts are pulled towards the identity.
    """

    def active_rows(self, expert: int) -> Ints:
        """Return all rows."""
        return np.arange(self.num_classes)

    def mix(self) -> Floats:
        """Return the identity: a row per class."""
        return np.eye(self.num_classes)

    def features(self, log_p: Array) -> Array:
        """Return the log-probabilities."""
        return log_p

    def logits(self, mapped: Array, log_p: Array) -> Array:
        """Return W f + b."""
        return mapped

    def order(self, labels: Ints, expert: int, log_p: Any) -> Ints:
        """Return the labels."""
        return labels
