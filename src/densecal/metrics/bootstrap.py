"""Intervals by resampling images: pixels of one image are not independent, so the image is the unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.levels import ROW_SCALARS

Floats = NDArray[np.float64]

REPLICATES = 1000
LEVEL = 0.95
_BLOCK = 1 << 22


def intervals(rows: Floats) -> dict[str, tuple[float, float]]:
    """Return percentile intervals (95 %) of the figures that follow from the per-image table.

    Args:
        rows: ``Sketch.image_rows()``.

    Returns:
        (low, high) for ece_ew, oe_ew, ue_ew, brier, nll, accuracy, mean_confidence and ece_image_mean.
    """
    return _percentiles(_resample(_sort_rows(rows)))


def paired_intervals(rows_a: Floats, rows_b: Floats) -> dict[str, tuple[float, float]]:
    """Return intervals (95 %) of the difference a - b of two methods on the same images, resampled together.

    Where an interval leaves out 0, the difference is not an accident of which images were drawn.

    Args:
        rows_a: ``Sketch.image_rows()`` of one method.
        rows_b: ``Sketch.image_rows()`` of the other, with the images in the same order.
    """
    if rows_a.shape != rows_b.shape:
        raise ValueError(
            f"paired intervals need the same images and bins: tables of shape {rows_a.shape} and {rows_b.shape}"
        )
    both = _sort_rows(np.concatenate([rows_a, rows_b], axis=1))
    a, b = _resample(both[:, : rows_a.shape[1]]), _resample(both[:, rows_a.shape[1] :])
    return _percentiles({name: a[name] - b[name] for name in a})


def figures(totals: Floats) -> dict[str, Floats]:
    """Return the figures of sums over images; ``totals`` (..., 5 + bins + 2) are summed rows of ``with_image_ece``."""
    sums = dict(zip(ROW_SCALARS, np.moveaxis(totals, -1, 0), strict=False))
    gaps = totals[..., len(ROW_SCALARS) : -2]
    n = sums["count"]
    return {
        "ece_ew": np.abs(gaps).sum(axis=-1) / n,
        "oe_ew": np.maximum(gaps, 0.0).sum(axis=-1) / n,
        "ue_ew": np.maximum(-gaps, 0.0).sum(axis=-1) / n,
        "brier": sums["brier"] / n,
        "nll": sums["nll"] / n,
        "accuracy": sums["correct"] / n,
        "mean_confidence": sums["confidence"] / n,
        "ece_image_mean": totals[..., -2] / totals[..., -1],
    }


def with_image_ece(rows: Floats) -> Floats:
    """Append every image's own ECE and a 1 to its row; drop images without valid pixels."""
    rows = rows[rows[:, 0] > 0]
    own = np.abs(rows[:, len(ROW_SCALARS) :]).sum(axis=1) / rows[:, 0]
    return np.column_stack([rows, own, np.ones(len(rows))])


def _sort_rows(rows: Floats) -> Floats:
    """Order images by their content, so that the order of the updates cannot change an interval."""
    return np.asarray(rows[np.lexsort(rows.T[::-1])])


def _resample(rows: Floats) -> dict[str, Floats]:
    """Return the figures of every bootstrap replicate."""
    table = with_image_ece(rows)
    images = len(table)
    rng = np.random.default_rng(0)
    totals = np.empty((REPLICATES, table.shape[1]))
    step = max(1, _BLOCK // max(images, 1))
    for first in range(0, REPLICATES, step):
        count = min(step, REPLICATES - first)
        drawn = rng.integers(0, images, (count, images))
        drawn += images * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images)
        totals[first : first + count] = weights @ table
    return figures(totals)


def _percentiles(samples: dict[str, Floats]) -> dict[str, tuple[float, float]]:
    tail = 50.0 * (1.0 - LEVEL)
    return {
        name: (float(np.percentile(values, tail)), float(np.percentile(values, 100.0 - tail)))
        for name, values in samples.items()
    }
