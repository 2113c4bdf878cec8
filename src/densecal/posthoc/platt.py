"""Platt scaling: a slope and an offset for the logit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from densecal.errors import InputError
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logistic import mean_nll, overlap
from densecal.posthoc.newton import minimise
from densecal.posthoc.registry import register


@register("platt")
class PlattScaling(Calibrator):
    """p' = sigmoid(a z + b) by maximum likelihood; it may change which pixels lie above 0.5.

    Args:
        targets: Fit to Platt's targets (N+ + 1) / (N+ + 2) and 1 / (N- + 2) instead of 1 and 0, which keeps a and b
            finite on separable data.
    """

    tables = ("a", "b")
    a: Tensor
    b: Tensor

    def __init__(self, targets: bool = False) -> None:
        super().__init__()
        self.targets = targets
        self.register_buffer("a", torch.ones((), dtype=torch.float64))
        self.register_buffer("b", torch.zeros((), dtype=torch.float64))

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """Return the sigmoid of a z + b."""
        return (self.a.to(z.dtype) * z + self.b.to(z.dtype)).sigmoid()

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
