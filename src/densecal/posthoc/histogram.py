"""Histogram binning: p becomes the foreground frequency of its bin."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, namespace, position
from densecal.posthoc.base import MAX_NUMBERS, Calibrator
from densecal.posthoc.logit_histogram import Floats, logit
from densecal.posthoc.registry import register


@register("histogram")
class HistogramBinning(Calibrator):
    """A step function of p: the share of foreground in its bin; it may change which pixels lie above 0.5.

    Bins are [l, u) with 1.0 in the last. An empty bin of equal width has its centre as value. The edges of equal-mass
    bins lie between two values of p, where they divide the pixels most evenly. Ties stay together, so there can be
    fewer bins than requested. Edges are kept as logits.

    Args:
        bins: Number of bins.
        mass: Bins of equal mass instead of equal width.
    """

    tables = ("edges", "values")
    edges: Floats
    values: Floats

    def __init__(self, bins: int = 10, mass: bool = False) -> None:
        super().__init__()
        if not 2 <= bins <= MAX_NUMBERS:
            raise InputError("histogram: bins", str(bins), f"2 to {MAX_NUMBERS:,}")
        self.bins, self.mass = bins, mass
        self.set_table("edges", equal_width_edges(bins))
        self.set_table("values", centres(bins))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the value of the bin of z; NaN, which would fall into the last bin, stays NaN."""
        xp = namespace(z)
        values = self.table("values", z)[position(z, self.table("edges", z), right=True)]
        return xp.where(xp.isnan(z), z, values)

    def check(self) -> None:
        """Raise ValueError unless the edges rise and there is one more value than edges, all of them probabilities."""
        if self.values.size != self.edges.size + 1:
            raise ValueError(f"{self.values.size} values; expected {self.edges.size + 1}, one more than edges")
        if (np.diff(self.edges) <= 0).any():
            raise ValueError("edges that do not rise; expected rising logits")
        if self.values.min() < 0 or self.values.max() > 1:
            raise ValueError("values outside [0, 1]; expected probabilities")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, n, k = data.by_logit()
        edges = equal_mass_edges(z, n, self.bins) if self.mass else equal_width_edges(self.bins)
        if len(edges) == 0:
            raise InputError("histogram", "one value at nearly all pixels", "maps with more levels, or equal width")
        bin_ = np.searchsorted(edges, z, side="right")
        pixels, positives = (np.bincount(bin_, weights, len(edges) + 1) for weights in (n, k))
        empty = centres(len(edges) + 1)  # bins of equal mass are never empty
        self.set_table("values", np.where(pixels > 0, positives / np.maximum(pixels, 1.0), empty))
        self.set_table("edges", edges)


def equal_width_edges(bins: int) -> Floats:
    """Return the logits of the inner edges of equal-width bins of p."""
    edges: Floats = logit(np.arange(1, bins) / bins)
    return edges


def centres(bins: int) -> Floats:
    """Return the centres of equal-width bins of p."""
    return np.asarray((np.arange(bins) + 0.5) / bins)


def equal_mass_edges(z: Floats, n: Floats, bins: int) -> Floats:
    """Return the inner edges, half-way between two neighbouring z, that divide the pixels most evenly."""
    below = np.cumsum(n)[:-1]
    ideal = np.arange(1, bins) / bins * n.sum()
    right = np.searchsorted(below, ideal).clip(0, len(below) - 1) if len(below) else np.empty(0, np.int64)
    left = (right - 1).clip(0)
    nearest = np.unique(np.where(ideal - below[left] <= below[right] - ideal, left, right)) if len(below) else left
    return np.asarray((z[nearest] + z[nearest + 1]) / 2.0, dtype=np.float64)
