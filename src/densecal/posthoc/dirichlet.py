"""Dirichlet calibration with off-diagonal and intercept regularisation, ODIR (Kull 2019)."""

from __future__ import annotations

import math

import numpy as np

from densecal.errors import InputError
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.matrix import AffineScaling
from densecal.posthoc.registry import register


@register("dirichlet")
class DirichletCalibration(AffineScaling):
    """p' = softmax(W log p + b), by the least NLL + lam mean(W_ij^2, i != j) + mu mean(b^2).

    It may change the chosen class. The penalty keeps classes that are seldom confused apart. It is fitted on a sample
    of at most a million pixels.

    Args:
        num_classes: K.
        lam: Penalty of the weights off the diagonal.
        mu: Penalty of the biases.
    """

    def __init__(self, num_classes: int, lam: float = 1e-3, mu: float = 1e-3) -> None:
        super().__init__(num_classes)
        for name, value in (("lam", lam), ("mu", mu)):
            if not (value >= 0 and math.isfinite(value)):
                raise InputError(f"{self.method}: {name}", str(value), "a number of at least 0")
        self.lam, self.mu = lam, mu

    def penalties(self) -> Floats:
        """Return the penalty of every weight and bias, (K, K + 1)."""
        K = self.num_classes
        weights = self.lam / (K * (K - 1)) * (1.0 - np.eye(K))
        return np.concatenate([weights, np.full((K, 1), self.mu / K)], axis=1)
