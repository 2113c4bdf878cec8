"""Ensemble temperature scaling: a mixture of tempered, original and uniform probabilities (Zhang 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.metrics.arrays import Array
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.mixture import mixture_weights
from densecal.posthoc.pixel_sample import draw_sample
from densecal.posthoc.registry import register
from densecal.posthoc.temperature import Temperature

_SUM_TOLERANCE = 1e-6


@register("ensemble-temperature")
class EnsembleTemperature(Calibrator):
    """p' = w1 p(z / T) + w2 p(z) + w3 / K, w >= 0 with sum 1; the chosen class never changes (K is 2 for one logit).

    T is that of temperature scaling, then w minimises the NLL with T fixed. K classes are fitted on a sample of at most
    a million pixels.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
    """

    multiclass = True
    tables = ("temperature", "weights")
    temperature: Floats
    weights: Floats

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__(num_classes)
        self.set_table("temperature", 1.0)
        self.set_table("weights", [1.0, 0.0, 0.0])

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the mixture."""
        w = self.table("weights", z)
        tempered = self.squash(z / self.table("temperature", z))
        return w[0] * tempered + w[1] * self.squash(z) + w[2] / max(self.num_classes, 2)

    def check(self) -> None:
        """Raise ValueError unless T is positive and the weights are shares."""
        if not self.temperature > 0:
            raise ValueError(f"temperature {float(self.temperature)}; expected a number above 0")
        if self.weights.size != 3 or self.weights.min() < 0 or abs(self.weights.sum() - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"weights {self.weights.tolist()[:5]}; expected three numbers of at least 0 with sum 1")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        if self.num_classes > 1:
            data = draw_sample(data, self.num_classes, ignore_index)
        temperature = Temperature(self.num_classes).fit(data)
        if self.num_classes > 1:
            q, n = _true_class(temperature, data.log_p, data.labels), None
        else:
            z, y, n = data.by_label()
            q = _true_class(temperature, np.stack([0.5 * -z, 0.5 * z], axis=1), y.astype(np.int64))
        w = mixture_weights(q, n)
        self.set_table("temperature", temperature.temperature)
        self.set_table("weights", w)


def _true_class(temperature: Temperature, z: Any, labels: Any) -> Floats:
    """Return the three components' probabilities of the true class, (N, 3), for logits (N, K)."""
    columns = [np.full(len(labels), 1.0 / z.shape[1])]
    for s in (1.0, 1.0 / float(temperature.temperature)):
        scaled = s * z.astype(np.float64)
        scaled -= scaled.max(axis=1, keepdims=True)
        own = np.take_along_axis(scaled, labels[:, None], 1)[:, 0]
        columns.insert(0, np.exp(own) / np.exp(scaled).sum(axis=1))
    return np.stack(columns, axis=1)
