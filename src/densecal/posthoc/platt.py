"""Platt scaling: a slope and an offset for the logit."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, sigmoid
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logistic import mean_nll, overlap
from densecal.posthoc.newton import Floats, minimise
from densecal.posthoc.registry import register


@register("platt")
class PlattScaling(Calibrator):
    """p' = sigmoid(a z + b) by maximum likelihood; it may change which pixels lie above 0.5.

    Args:
        targets: Fit to Platt's targets (N+ + 1) / (N+ + 2) and 1 / (N- + 2) instead of 1 and 0, which keeps a and b
            finite on separable data.
    """

    tables = ("a", "b")
    a: Floats
    b: Floats

    def __init__(self, targets: bool = False) -> None:
        super().__init__()
        self.targets = targets
        self.set_table("a", 1.0)
        self.set_table("b", 0.0)

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the sigmoid of a z + b."""
        return sigmoid(self.table("a", z) * z + self.table("b", z))

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, y, n = data.by_label()
        positives, negatives = float(n @ y), float(n @ (1.0 - y))
        t = y
        if self.targets:
            t = np.where(y == 1, (positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0))
        elif not overlap(z, y):
            raise InputError(
                "platt", "logits that a threshold separates by label, for which a is infinite",
                "overlapping classes (or targets=True)",
            )  # fmt: skip
        a, b = minimise(mean_nll(np.stack([z, np.ones_like(z)], axis=1), t, n), [1.0, 0.0])
        self.set_table("a", a)
        self.set_table("b", b)
