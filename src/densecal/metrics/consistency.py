"""Consistency bands of reliability diagrams: what a calibrated model with these maps would show on these images.

No set of images shows a calibrated model exactly on the diagonal, and with few images, whose pixels are wrong
together, far from it. Were the model calibrated, the gap of an image in a bin, (sum of confidence - number correct),
would be as likely above 0 as below. So every resample gives each image, or group of images, a random sign (the wild
bootstrap with the hypothesis imposed: Cameron, Gelbach and Miller 2008): the bins of an image keep their dependence,
and confidences stay what they are. A band is C_b plus the middle 95 % of the resampled gaps of bin b.

Where the gaps of a bin agree in sign over images, the band does not reach the accuracy of the bin: about 5 images are
enough. The ECE of every resample is what calibrated models would have here, so an ECE is evidence of miscalibration
where it is above most of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from densecal.metrics.bootstrap import LEVEL, REPLICATES
from densecal.metrics.curves import Floats, ReliabilityCurve
from densecal.metrics.levels import ROW_SCALARS

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Consistency:
    """What a calibrated model would show.

    Attributes:
        low: Lower end of the accuracy of every bin, NaN in empty bins and where there is only one image.
        high: Upper end.
        ece: Mean ECE of calibrated models.
        ece_high: The ECE that 5 % of them exceed.
        p_value: Share of them whose ECE is at least the one observed.
    """

    low: Floats
    high: Floats
    ece: float
    ece_high: float
    p_value: float


def consistency(rows: Floats, curve: ReliabilityCurve, groups: Sequence[str] | None = None) -> Consistency:
    """Return the consistency bands (95 %) of the equal-width reliability diagram.

    Args:
        rows: ``Sketch.image_rows()``.
        curve: The diagram of the same pixels.
        groups: The group of every image (patient, video, scene), where images of one group are alike.
    """
    gaps = _units(rows[:, len(ROW_SCALARS) :], rows[:, 0], groups)
    if len(gaps) < 2:
        return unknown_bands(curve)
    resampled = np.concatenate([signs @ gaps for signs in _signs(len(gaps))])
    return bands_of(resampled, gaps.sum(axis=0), rows[:, 0].sum(), curve)


def unknown_bands(curve: ReliabilityCurve) -> Consistency:
    """Return the bands of one image, or one group: NaN."""
    empty = np.full(len(curve.count), np.nan)
    return Consistency(empty, empty, np.nan, np.nan, np.nan)


def bands_of(resampled: Floats, gaps: Floats, pixels: float, curve: ReliabilityCurve) -> Consistency:
    """Return the bands from sums over images: a Poisson table's deviations are such sums with other random factors.

    Args:
        resampled: The gap of every bin in every resample, where images have random factors with mean 0 and variance 1.
        gaps: The gap of every bin in the images as they are.
        pixels: Valid pixels.
        curve: The diagram of the same pixels.
    """
    errors = np.abs(resampled).sum(axis=1) / pixels
    observed = np.abs(gaps).sum() / pixels
    filled = curve.count > 0
    ends = np.full((2, len(filled)), np.nan)
    quantiles = [(1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2]
    ends[:, filled] = np.quantile(resampled[:, filled] / curve.count[filled], quantiles, axis=0)
    low, high = np.clip(curve.confidence + ends, 0.0, 1.0)
    # The signs that the images have are one more draw.
    at_least = np.count_nonzero(errors >= observed * (1.0 - 1e-12))
    return Consistency(
        low,
        high,
        float(errors.mean()),
        float(np.quantile(errors, LEVEL)),
        float((1 + at_least) / (1 + len(errors))),
    )


def _units(gaps: Floats, pixels: Floats, groups: Sequence[str] | None) -> Floats:
    """Return the gaps of every unit with valid pixels, ordered by content: the order of images changes nothing."""
    if groups is not None:
        names, unit = np.unique(np.asarray(groups, dtype=object).astype(str), return_inverse=True)
        pixels = np.bincount(unit, pixels, len(names)).astype(np.float64)
        order = np.lexsort([*gaps.T[::-1], unit])
        gaps = np.stack([np.bincount(unit[order], column[order], len(names)) for column in gaps.T], axis=1)
    gaps = gaps[pixels > 0]
    return np.ascontiguousarray(gaps[np.lexsort(gaps.T[::-1])])


def _signs(units: int) -> Iterator[Floats]:
    """Yield random signs of the units, block by block: always the same for as many units."""
    rng = np.random.default_rng(0)
    step = max(1, _BLOCK // units)
    for first in range(0, REPLICATES, step):
        yield rng.choice(np.array([-1.0, 1.0]), (min(step, REPLICATES - first), units))
