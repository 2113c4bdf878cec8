"""What class-conditional matrix scalings have in common: a matrix and a bias for every class that the model chooses.

    p' = softmax(h_c(f)),  h_c = +-(W_c f + b_c) in one order or another,  c the class that the model chooses

The pixels of one c do not matter to another, so the experts are fitted one by one. All of them together minimise

    mean NLL + strength * mean over c of (mean of (W_c - I)^2 + mean of b_c^2)

An expert with many pixels follows them freely, one with few stays close to the identity, and one without pixels is the
identity (Rethinking Post-Hoc Calibration in Semantic Segmentation, arXiv 2607.01902, penalises W off its diagonal).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, namespace, on_host, softmax
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats, Ints
from densecal.posthoc.newton import NoMinimumError
from densecal.posthoc.pixel_sample import LOG_FLOOR, clipped_log_softmax, draw_sample, require_classes
from densecal.posthoc.softmax_regression import Problem, solve

MOST_CLASSES = 100
"""K experts have K^3 weights, and a file holds a million numbers."""
STRENGTH = 1e-3
_LEAST = 1e-3
"""Least weight on the diagonal where choices are kept: at 0, two classes could become equal."""


class ExpertScaling(Calibrator):
    """A matrix and a bias for every chosen class.

    Args:
        num_classes: K.
        strength: How strongly experts are pulled towards the identity.

    Attributes:
        keeps_choice: Whether weights and biases are at least 0, so that the chosen class stays.
    """

    binary = False
    multiclass = True
    tables = ("weight", "bias")
    keeps_choice: ClassVar[bool] = False
    weight: Floats
    bias: Floats

    def __init__(self, num_classes: int, strength: float = STRENGTH) -> None:
        super().__init__(num_classes)
        if num_classes > MOST_CLASSES:
            raise InputError(f"{self.method}: number of classes", str(num_classes), f"2 to {MOST_CLASSES}")
        if not (strength >= 0 and math.isfinite(strength)):
            raise InputError(f"{self.method}: strength", str(strength), "a number of at least 0")
        self.strength = strength
        weight, bias = self._unchanged()
        self.set_table("weight", weight.ravel())
        self.set_table("bias", bias.ravel())

    # ------------------------------------------------------------------ what kinds of experts define

    @abstractmethod
    def active_rows(self, expert: int) -> Ints:
        """Return the indices of the rows and columns of an expert's matrix that are not always 0."""

    @abstractmethod
    def mix(self) -> Floats:
        """Return how these rows make K logits, (R, K), in the order of `order`."""

    @abstractmethod
    def features(self, log_p: Array) -> Array:
        """Return what matrices multiply, (B, K, P), for log-probabilities (B, K, P)."""

    @abstractmethod
    def logits(self, mapped: Array, log_p: Array) -> Array:
        """Return logits (B, K, P) for W f + b."""

    @abstractmethod
    def order(self, labels: Ints, expert: int, log_p: Any) -> Ints:
        """Return the positions in the order of `mix` of the labels (N,) of an expert's pixels."""

    # ------------------------------------------------------------------ use

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the softmax of what the expert of the chosen class gives."""
        K = self.num_classes
        log_p = clipped_log_softmax(z).reshape(z.shape[0], K, -1)
        weight, bias = self.table("weight", z).reshape(K, K, K), self.table("bias", z).reshape(K, K)
        mapped = _route(self.features(log_p), log_p.argmax(1), weight, bias)
        return softmax(self.logits(mapped, log_p)).reshape(z.shape)

    def check(self) -> None:
        """Raise ValueError unless there are K matrices and biases of the right size, within their bounds."""
        K = self.num_classes
        if (self.weight.size, self.bias.size) != (K**3, K * K):
            raise ValueError(f"{self.weight.size} weights and {self.bias.size} biases; expected {K**3} and {K * K}")
        if self.keeps_choice and min(self.weight.min(), self.bias.min()) < 0:
            raise ValueError("negative weights or biases; expected numbers of at least 0")

    # ------------------------------------------------------------------ fitting

    def _unchanged(self) -> tuple[Floats, Floats]:
        """Return matrices (K, K, K) and biases (K, K) that change nothing."""
        K = self.num_classes
        weight = np.zeros((K, K, K))
        for c in range(K):
            rows = self.active_rows(c)
            weight[c, rows, rows] = 1.0
        return weight, np.zeros((K, K))

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        sample = draw_sample(data, self.num_classes, ignore_index)
        require_classes(sample, self.method)
        weight, bias = self._unchanged()
        log_p = np.maximum(sample.log_p, LOG_FLOOR)
        chosen = log_p.argmax(axis=1)
        for c in range(self.num_classes):
            own = np.flatnonzero(chosen == c)
            if own.size:
                rows = self.active_rows(c)
                theta = self._expert(c, log_p[own], sample.labels[own], own.size / len(chosen))
                weight[c][np.ix_(rows, rows)], bias[c][rows] = theta[:, :-1], theta[:, -1]
        self.set_table("weight", weight.ravel())
        self.set_table("bias", bias.ravel())

    def _expert(self, c: int, log_p: Any, labels: Ints, share: float) -> Floats:
        """Return the weights and biases of an expert, (R, R + 1), from its pixels, a share of all."""
        rows = self.active_rows(c)
        R = rows.size
        features = np.ones((len(labels), R + 1), np.float32)
        features[:, :R] = self.features(log_p.T[None])[0].T[:, rows]
        penalty = np.full((R, R + 1), self.strength / (self.num_classes * share * R * R))
        penalty[:, R] *= R
        problem = Problem(
            features, self.order(labels, c, log_p), self.mix(), penalty, np.eye(R, R + 1),
            _LEAST * np.eye(R, R + 1) if self.keeps_choice else -np.inf,
        )  # fmt: skip
        try:
            return solve(problem, np.eye(R, R + 1))
        except NoMinimumError:
            raise InputError(
                self.method, f"no minimum of the NLL where class {c} is chosen", "a strength above 0"
            ) from None  # fmt: skip


def _route(features: Array, chosen: Array, weight: Array, bias: Array) -> Array:
    """Return W_c f + b_c of the chosen class c for features (B, K, P)."""
    if on_host(features):
        mapped = np.empty_like(features)
        for f, c, out in zip(features, chosen, mapped, strict=True):
            for k in range(len(weight)):
                index = np.flatnonzero(c == k)
                out[:, index] = weight[k] @ f[:, index] + bias[k][:, None]
        return mapped
    xp = namespace(features)
    mapped = features
    for k in range(len(weight)):  # without indices that depend on values, so that it can be exported
        mapped = xp.where((chosen == k)[:, None], weight[k] @ features + bias[k][:, None], mapped)
    return mapped
