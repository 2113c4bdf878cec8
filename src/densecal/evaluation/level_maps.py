"""Foreground maps of 8 and 16 bits: counted one by one, scored many at a time, which takes hardly longer than one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.cases import (
    complete_confidences,
    finite,
    level_cases,
    level_confidences,
    level_neighbours,
)
from densecal.metrics.levels import ZONES, level_rows
from densecal.metrics.overlap import foreground_overlap, level_overlaps
from densecal.metrics.segmentation import count_both_ways, count_levels
from densecal.metrics.volumes import surface_scores

if TYPE_CHECKING:
    from densecal.evaluation.worker import Part, Settings

Array = NDArray[Any]


@dataclass(frozen=True)
class _Map:
    """What is kept of a map until it is scored.

    Attributes:
        unit: Its name, or that of its group.
        image: Its place among the images of the part.
        row: Its place among the rows of the part.
        counts: Pixels by zone, mask value and level, (Z, 2, L).
        overlap: Dice and IoU where the counts do not tell them.
        surfaces: HD95 and surface Dice of a volume.
        neighbours: `metrics.cases.neighbour_confidences`.
        size: The size of a voxel.
    """

    unit: str
    image: int
    row: int
    counts: Array
    overlap: Array | None
    surfaces: Sequence[float]
    neighbours: tuple[float, float]
    size: float


class LevelMaps:
    """Integer maps that wait to be scored.

    Args:
        settings: How to score.
        part: Where the scores go.
    """

    def __init__(self, settings: Settings, part: Part) -> None:
        self.settings, self.part = settings, part
        self.waiting: list[_Map] = []

    def add(
        self,
        unit: str,
        prediction: Array,
        mask: Array,
        void: Array | None,
        zones: Array | None,
        middle: Array | None,
        spacing: tuple[float, ...] | None,
    ) -> Array:
        """Count a map, and put entries into the columns of the part that `score` fills.

        Args:
            unit: Its name, or that of its group.
            prediction: Levels, (H, W) or (D, H, W).
            mask: Foreground.
            void: Pixels that do not count.
            zones: Boundary zones.
            middle: Pixels of the mask that Dice and IoU take as background.
            spacing: Distance of pixels along every axis.

        Returns:
            The counts of the valid pixels, (2, L), or (4, 2, L) by quadrant if the settings ask for S-measure, which
            needs an 8-bit picture without void pixels.
        """
        part, settings = self.part, self.settings
        neighbours = (math.nan, math.nan)
        surfaces: Sequence[float] = neighbours
        half = np.iinfo(prediction.dtype).max // 2
        if settings.full:
            valid = None if void is None else ~void
            neighbours = level_neighbours(prediction, valid)
            if mask.ndim == 3:
                predicted = prediction > half
                shown = predicted if valid is None else predicted & valid
                surfaces = finite(surface_scores(shown, mask, spacing, settings.tolerance))
        if void is not None:
            kept = ~void
            prediction, mask = prediction[kept], mask[kept]
            zones, middle = (None if array is None else array[kept] for array in (zones, middle))
        overlap = None
        if middle is not None:
            overlap = foreground_overlap(prediction > half, mask & ~middle)
        quadrants = None
        if zones is not None and mask.ndim == 2 and void is None and prediction.dtype == np.uint8:
            quadrants, counts = count_both_ways(prediction, mask, zones, ZONES)
        else:
            counts = count_levels(prediction, mask, zones, 1 if zones is None else ZONES)
        if self.waiting and self.waiting[0].counts.shape != counts.shape:
            self.score()
        size = math.nan if spacing is None else math.prod(spacing)
        self.waiting.append(_Map(unit, len(part.is_float), len(part.rows), counts, overlap, surfaces, neighbours, size))
        part.rows.append(np.empty(0))
        empty = np.empty(0)
        part.per_image.add(cases=empty, confidences=empty, overlaps=empty)
        if zones is not None:
            part.per_image.add(zones=empty)
        if settings.entropy:
            part.entropy.add_levels(counts.sum(axis=(0, 1)))
        if counts.shape[-1] > 256:  # many of them would take much memory
            self.score()
        return counts.sum(axis=0) if quadrants is None else quadrants

    def score(self) -> None:
        """Score the maps that wait, all of the same type."""
        if not self.waiting:
            return
        maps, self.waiting = self.waiting, []
        part, bins = self.part, self.settings.bins
        by_zone = np.stack([m.counts for m in maps])
        counts = by_zone.sum(axis=1)
        total, levels = by_zone.sum(axis=0), counts.shape[-1]
        part.levels[levels] = part.levels[levels] + total if levels in part.levels else total
        part.findings.inspect_levels(counts)
        part.folds.add_maps([m.unit for m in maps], counts)
        cases, confidences, overlaps = level_cases(counts), level_confidences(counts), level_overlaps(counts)
        zones = level_rows(by_zone.reshape(-1, 2, levels), bins).reshape(*by_zone.shape[:2], -1)
        columns = {name: part.per_image.entries(name) for name in ("cases", "confidences", "overlaps", "zones")}
        for i, (own, row) in enumerate(zip(maps, level_rows(counts, bins), strict=True)):
            part.rows[own.row] = row
            cases[i, 3:5] = own.surfaces
            columns["cases"][own.image] = cases[i, None]
            sure = complete_confidences(confidences[i], own.neighbours, self.settings.full)
            columns["confidences"][own.image] = np.concatenate([[own.size], sure])
            columns["overlaps"][own.image] = overlaps[i] if own.overlap is None else own.overlap
            if columns["zones"]:
                columns["zones"][own.image] = zones[i]
