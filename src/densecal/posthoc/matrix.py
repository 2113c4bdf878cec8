"""Matrix scaling: a full matrix and a bias for K logits (Guo 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.linalg import null_space

from densecal.errors import InputError
from densecal.metrics.arrays import Array, softmax
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.newton import NoMinimumError
from densecal.posthoc.pixel_sample import LOG_FLOOR, clipped_log_softmax, draw_sample, require_classes
from densecal.posthoc.registry import register
from densecal.posthoc.softmax_regression import Problem, solve


class AffineScaling(Calibrator):
    """p' = softmax(W log p + b): what matrix scaling and Dirichlet calibration have in common.

    Args:
        num_classes: K.
    """

    binary = False
    multiclass = True
    most_classes: ClassVar[int] = 1000
    tables = ("weight", "bias")
    weight: Floats
    bias: Floats

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        if num_classes > self.most_classes:
            raise InputError(f"{self.method}: number of classes", str(num_classes), f"2 to {self.most_classes}")
        self.set_table("weight", np.eye(num_classes).ravel())
        self.set_table("bias", np.zeros(num_classes))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the softmax of W log p + b."""
        K = self.num_classes
        log_p = clipped_log_softmax(z).reshape(z.shape[0], K, -1)
        mapped = self.table("weight", z).reshape(K, K) @ log_p + self.table("bias", z)[:, None]
        return softmax(mapped).reshape(z.shape)

    def check(self) -> None:
        """Raise ValueError unless there are K x K weights and K biases."""
        K = self.num_classes
        if (self.weight.size, self.bias.size) != (K * K, K):
            raise ValueError(f"{self.weight.size} weights and {self.bias.size} biases; expected {K * K} and {K}")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        K = self.num_classes
        sample = draw_sample(data, K, ignore_index)
        require_classes(sample, self.method, every=True)
        log_p, basis = np.maximum(sample.log_p, LOG_FLOOR), self.basis()
        features = np.ones((len(log_p), basis.shape[1] + 1), np.float32)
        features[:, :-1] = log_p @ basis.astype(np.float32)
        start = np.concatenate([np.linalg.pinv(basis).T, np.zeros((K, 1))], axis=1)
        try:
            theta = solve(Problem(features, sample.labels, np.eye(K), self.penalties(), start), start)
        except NoMinimumError:
            raise InputError(
                self.method, "no minimum of the NLL: a class may be told apart without one mistake",
                "data on which the model is sometimes wrong, or the calibrator dirichlet or temperature",
            ) from None  # fmt: skip
        weight, bias = theta[:, :-1] @ basis.T, theta[:, -1]
        self.set_table("weight", self.normalise(weight).ravel())
        self.set_table("bias", bias - bias.mean())

    def basis(self) -> Floats:
        """Return the combinations of log p that W depends on, as columns (K, F)."""
        return np.eye(self.num_classes)

    def penalties(self) -> Floats:
        """Return the penalty of every weight and bias, (K, F + 1)."""
        return np.zeros((self.num_classes, self.basis().shape[1] + 1))

    def normalise(self, weight: Floats) -> Floats:
        """Return a matrix (K, K) that does the same."""
        return weight


@register("matrix")
class MatrixScaling(AffineScaling):
    """p' = softmax(W z + b) by maximum likelihood, the sum of every row of W being 1; it may change the chosen class.

    Because of the equal sums, adding a constant to all logits of a pixel changes nothing, and log p in place of z gives
    the same. So a folder of probability maps gives the same calibrator as the model that wrote them. The mean of b,
    which has no effect, is 0. It is fitted on a sample of at most a million pixels.

    Args:
        num_classes: K.
    """

    def basis(self) -> Floats:
        """Return K - 1 orthogonal differences of log p, because their mean does not matter to such a W."""
        return np.asarray(null_space(np.ones((1, self.num_classes))))

    def normalise(self, weight: Floats) -> Floats:
        """Return the matrix with row and column sums 1 that does the same."""
        return np.asarray(weight - weight.mean(axis=0) + 1.0 / self.num_classes)
