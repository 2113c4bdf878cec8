"""The parts of a record that hold smooth diagrams, consistency bands, figures by region and class, and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import consistency as bands
from densecal.metrics import regions as areas
from densecal.metrics import smooth

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
        """Return a curve as a record holds it."""
        return cls(curve.bandwidth, curve.error, _floats(curve.accuracy), _floats(curve.density))


@dataclass(frozen=True)
class Consistency:
    """What a calibrated model would show on these images.

    Attributes:
        low: Lower end of the accuracy of every bin of the reliability diagram (95 %).
        high: Upper end.
        ece: Mean ECE of calibrated models.
        ece_high: The ECE that 5 % of them exceed.
        p_value: Share of them whose ECE is at least the one measured.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    ece: float
    ece_high: float
    p_value: float

    @classmethod
    def of(cls, found: bands.Consistency) -> Consistency:
        """Return bands as a record holds them."""
        return cls(_floats(found.low), _floats(found.high), found.ece, found.ece_high, found.p_value)


@dataclass(frozen=True)
class Region:
    """The figures of some pixels or images.

    Attributes:
        name: Which.
        images: Images with pixels in the region.
        pixels: Its pixels.
        figures: Figures by the names that they have under ``calibration``.
        ci: Their 95 % intervals.
        low: Smallest mean size of objects, or mean confidence, of these images.
        high: Largest.
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
        """Return a region as a record holds it."""
        ends = (None, None) if np.isnan(region.low) else (region.low, region.high)
        return cls(region.name, region.images, region.pixels, region.figures, region.ci, *ends)


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())
