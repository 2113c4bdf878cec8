"""Counts of maps and masks of an evaluation that look wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks
from densecal.metrics.segmentation import count_levels

FEW_LEVELS = 32
_TOP_SHARE = 0.1
"""A map that spans the whole range, with a smaller share of its foreground at the highest level, looks stretched."""
_SAMPLE = 4096

Array = NDArray[Any]


@dataclass
class Findings:
    """Numbers of maps and masks by what looks wrong with them."""

    maps: int = 0
    stretched: int = 0
    both_classes: int = 0
    inverted: int = 0
    few_levels: int = 0
    foreground: int = 0
    """Maps whose mask contains foreground."""
    masks: int = 0
    """Masks with at least one valid pixel. Images that show no object on purpose are not counted."""
    empty_masks: int = 0
    full_masks: int = 0
    grey_masks: int = 0
    resized: int = 0
    volumes: int = 0
    unplaced: int = 0
    """Volumes whose files do not specify the spacing of voxels."""

    voided: int = 0
    """Images whose files mark some pixels as having no data."""
    no_data: int = 0
    """Number of these pixels."""

    def note_space(self, axes: int, spacing: tuple[float, ...] | None) -> None:
        """Count an image with this number of spatial axes."""
        self.volumes += axes == 3
        self.unplaced += axes == 3 and spacing is None

    def note_no_data(self, pixels: int) -> None:
        """Count the pixels of an image that have no data."""
        self.voided += pixels > 0
        self.no_data += pixels

    def add(self, other: Findings) -> None:
        """Add the findings of other pairs."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def inspect_levels(self, counts: Array) -> None:
        """Count how integer maps, given by their level counts (B, 2, L), do not look like probabilities."""
        pixels = counts.sum(axis=1)
        top = pixels.shape[1] - 1
        spans = (pixels[:, 0] > 0) & (pixels[:, top] > 0)
        few_at_top = pixels[:, top] < _TOP_SHARE * pixels[:, top // 2 + 1 :].sum(axis=1)
        total = counts.sum(axis=2)
        both = (total > 0).all(axis=1)
        self.foreground += int((total[:, 1] > 0).sum())
        outside, inside = ((counts @ np.arange(top + 1)) / np.maximum(total, 1)).T
        self.maps += len(counts)
        self.few_levels += int(((pixels > 0).sum(axis=1) < FEW_LEVELS).sum())
        self.stretched += int((spans & few_at_top).sum())
        self.both_classes += int(both.sum())
        self.inverted += int((both & (inside < outside)).sum())

    def inspect_floats(self, prediction: Array, mask: Array) -> None:
        """Do the same for a float map, given its values rounded to bytes, its exact extremes and distinct values."""
        if prediction.size == 0:
            return
        as_bytes = Findings()
        counts = sum(
            count_levels(np.rint(prediction[r] * 255).astype(np.uint8), mask[r]) for r in row_chunks(mask.shape)
        )
        as_bytes.inspect_levels(np.asarray(counts))
        as_bytes.stretched *= bool(prediction.min() == 0 and prediction.max() == 1)
        sample = prediction.reshape(-1)[:: max(1, prediction.size // _SAMPLE)]
        as_bytes.few_levels = int(len(np.unique(sample)) < FEW_LEVELS and len(np.unique(prediction)) < FEW_LEVELS)
        self.add(as_bytes)
