"""Class-conditional temperature: a temperature for each class that the model chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats
from densecal.posthoc.pixel_sample import PixelSample, draw_sample
from densecal.posthoc.registry import register
from densecal.posthoc.temperature import Temperature, inverse_temperature


@register("class-temperature")
class ClassTemperature(Calibrator):
    """p' = sigmoid(z / T_c), or softmax(z / T_c), c the class that z chooses; the chosen class never changes.

    One logit has two temperatures: for background (z <= 0) and for foreground. Each minimises the NLL of the pixels
    where its class is chosen. A class without a best T of its own (never chosen, or never wrong) takes that of all
    pixels. K classes are fitted on a sample of at most a million pixels.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
    """

    multiclass = True
    tables = ("temperatures",)
    temperatures: Floats

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__(num_classes)
        self.set_table("temperatures", np.ones(max(num_classes, 2)))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the sigmoid or softmax of z / T of the chosen class."""
        chosen = z.argmax(1)[:, None] if self.num_classes > 1 else (z > 0) * 1
        return self.squash(z / self.table("temperatures", z)[chosen])

    def check(self) -> None:
        """Raise ValueError unless there is a positive temperature for every class."""
        size, expected = self.temperatures.size, max(self.num_classes, 2)
        if size != expected or not self.temperatures.min() > 0:
            raise ValueError(f"{size} temperatures from {self.temperatures.min()}; expected {expected} above 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        K = self.num_classes
        own: Iterator[float | None]
        if K > 1:
            sample = draw_sample(data, K, ignore_index)
            overall = float(Temperature(K).fit(sample).temperature)
            own = _of_classes(sample)
        else:
            z, y, n = data.by_label()
            overall = 1.0 / inverse_temperature(z, y, n)
            own = _of_sides(z, y, n)
        self.set_table("temperatures", [overall if T is None else T for T in own])


def _of_classes(sample: PixelSample) -> Iterator[float | None]:
    """Yield the temperature of every chosen class, or None where it has none of its own."""
    chosen = sample.log_p.argmax(axis=1)
    for k in range(sample.num_classes):
        try:
            yield float(Temperature(sample.num_classes).fit(sample.select(chosen == k)).temperature)
        except InputError:
            yield None


def _of_sides(z: Floats, y: Floats, n: Floats) -> Iterator[float | None]:
    """Yield the temperature of background and of foreground, or None where it has none of its own."""
    for side in (z <= 0, z > 0):
        try:
            yield 1.0 / inverse_temperature(z[side], y[side], n[side])
        except InputError:
            yield None
