"""The parts of a record that hold smooth diagrams, consistency bands, figures by region and class, and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import consistency as bands
from densecal.metrics import regions as areas
from densecal.metrics import smooth
from densecal.metrics.bootstrap import intervals
from densecal.metrics.cost import ExpectedCost, Prices, expected_cost
from densecal.metrics.curves import Atoms
from densecal.metrics.levels import ROW_SCALARS

Interval = tuple[float, float]


@dataclass(frozen=True)
class SmoothDiagram:
    """The smooth reliability diagram at equally spaced values from 0 to 1.

    Attributes:
        bandwidth: Standard deviation of its kernel.
        error: The smooth calibration error.
        accuracy: Share of correct pixels, or of foreground, around each value; NaN where there are no pixels.
        density: Density of the pixels, 1 on average.
    """

    bandwidth: float
    error: float
    accuracy: tuple[float, ...]
    density: tuple[float, ...]

    @classmethod
    def of(cls, curve: smooth.SmoothCurve) -> SmoothDiagram:
        """Convert a curve for a record."""
        return cls(curve.bandwidth, curve.error, _floats(curve.accuracy), _floats(curve.density))


@dataclass(frozen=True)
class Consistency:
    """The figures that a calibrated model would have on these images.

    Attributes:
        low: Lower end of the accuracy of every bin of the reliability diagram (95 %).
        high: Upper end.
        ece: Mean ECE of calibrated models.
        ece_high: The ECE that 5 % of them exceed.
        p_value: Share of them whose ECE is at least as large as the measured one.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    ece: float
    ece_high: float
    p_value: float

    @classmethod
    def of(cls, consistency: bands.Consistency) -> Consistency:
        """Convert bands for a record."""
        low, high = _floats(consistency.low), _floats(consistency.high)
        return cls(low, high, consistency.ece, consistency.ece_high, consistency.p_value)


@dataclass(frozen=True)
class Region:
    """The figures of a subset of the pixels or images.

    Attributes:
        name: Name of the region.
        images: Number of images with pixels in the region.
        pixels: Number of its pixels.
        figures: Figures by their names under ``calibration``.
        ci: Their 95 % intervals.
        low: Lowest mean size of objects, or mean confidence, among these images.
        high: Highest mean size or mean confidence.
    """

    name: str
    images: int
    pixels: int
    figures: Mapping[str, float]
    ci: Mapping[str, Interval]
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, region: areas.Region) -> Region:
        """Convert a region for a record."""
        ends = (None, None) if np.isnan(region.low) else (region.low, region.high)
        return cls(region.name, region.images, region.pixels, region.figures, region.ci, *ends)


def errors_at(values: NDArray[np.generic], truth: NDArray[np.bool_], threshold: float) -> NDArray[np.float64]:
    """Return the numbers of misses and false alarms of one image if values above a threshold are acted on.

    Args:
        values: Probabilities of one class, floats or 8- or 16-bit levels.
        truth: Which pixels belong to the class.
        threshold: Threshold of the probability.
    """
    if np.issubdtype(values.dtype, np.integer):
        top = np.iinfo(values.dtype).max  # type: ignore[type-var]
        acted = (np.arange(top + 1) / top > threshold)[values]
    else:
        acted = values.astype(np.float64) > threshold
    return np.array([np.count_nonzero(~acted & truth), np.count_nonzero(acted & ~truth)], np.float64)


def expected_costs(
    classes: Sequence[Atoms],
    errors: NDArray[np.float64] | None,
    pixels: NDArray[np.float64],
    prices: Prices,
    groups: Sequence[str] | None,
) -> tuple[ExpectedCost, ...]:
    """Return the costs of acting on every class.

    Args:
        classes: Probabilities of the classes, or of the foreground.
        errors: Misses and false alarms of every image and class at the threshold of the prices, (images, classes, 2);
            without them there are no intervals.
        pixels: Valid pixels of every image.
        prices: Prices of errors.
        groups: The group of every image, where intervals resample groups.
    """
    costs = []
    for k, atoms in enumerate(classes):
        cost = expected_cost(atoms, prices)
        if errors is None:
            costs.append(cost)
            continue
        table = np.zeros((len(pixels), len(ROW_SCALARS) + 1))
        table[:, 0] = pixels
        table[:, ROW_SCALARS.index("brier")] = errors[:, k] @ (prices.miss, prices.false_alarm)
        # A cost per pixel is a ratio of sums over images, as the Brier score is.
        ci = intervals(table, groups)["brier"]
        costs.append(replace(cost, ci=ci))
    return tuple(costs)


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    # one shared NaN object, so that equal records compare as equal
    return tuple(math.nan if math.isnan(value) else value for value in values.tolist())
