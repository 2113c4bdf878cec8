"""Foreground maps of 8 and 16 bits: counted one by one, scored many at a time, which takes hardly longer than one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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

_MOST_WAITING = 64
"""As many are hardly slower than more, whose counts would not fit into the cache."""
_LATER = np.empty(0)
"""Stands for an entry that `LevelMaps.score` replaces."""


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
        if len(self.waiting) == _MOST_WAITING or (self.waiting and self.waiting[0].counts.shape != counts.shape):
            self.score()
        size = math.nan if spacing is None else math.prod(spacing)
        self.waiting.append(_Map(unit, len(part.is_float), len(part.rows), counts, overlap, surfaces, neighbours, size))
        part.rows.append(_LATER)
        part.per_image.add(cases=_LATER, confidences=_LATER, overlaps=_LATER)
        if zones is not None:
            part.per_image.add(zones=_LATER)
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
        cases, overlaps = level_cases(counts), level_overlaps(counts)
        cases[:, 3:5] = [m.surfaces for m in maps]
        near = np.array([m.neighbours for m in maps])
        sure = complete_confidences(level_confidences(counts), near, self.settings.full)
        columns: dict[str, Iterable[Array]] = {
            "cases": cases[:, None],
            "confidences": np.column_stack([[m.size for m in maps], sure]),
            "overlaps": [own if m.overlap is None else m.overlap for m, own in zip(maps, overlaps, strict=True)],
        }
        if self.settings.full:
            columns["zones"] = level_rows(by_zone.reshape(-1, 2, levels), bins).reshape(*by_zone.shape[:2], -1)
        for name, column in columns.items():
            entries = part.per_image.entries(name)
            for m, entry in zip(maps, column, strict=True):
                entries[m.image] = entry
        for m, row in zip(maps, level_rows(counts, bins), strict=True):
            part.rows[m.row] = row
