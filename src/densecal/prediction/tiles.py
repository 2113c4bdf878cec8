"""Images too large for a network at once: overlapping tiles at the image's own resolution, blended smoothly.

Tiles start at multiples of 32, because encoders halve the side up to five times. So a network that sees no farther than
a quarter of the overlap gives the same result as for the whole image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.models.factory import MULTIPLE

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Tiling:
    """How an image is cut.

    Attributes:
        tile: Side of a tile in pixels, a multiple of 32.
        overlap: Pixels that neighbours share, a multiple of 32 and at most half a tile.
    """

    tile: int
    overlap: int

    @classmethod
    def of(cls, tile: int, overlap: int | None = None) -> Tiling:
        """Check what a user asked for; the overlap is a quarter of the tile, at least 32, unless given."""
        if tile < 2 * MULTIPLE or tile % MULTIPLE:
            raise InputError("--tile", str(tile), f"a multiple of {MULTIPLE}, at least {2 * MULTIPLE}")
        if overlap is None:
            overlap = max(tile // 4 // MULTIPLE, 1) * MULTIPLE
        if overlap % MULTIPLE or not 0 <= overlap <= tile // 2:
            raise InputError("--overlap", str(overlap), f"a multiple of {MULTIPLE} from 0 to half of --tile {tile}")
        return cls(tile, overlap)

    def starts(self, length: int) -> list[int]:
        """Return where the tiles along a side start. The last ends with the side, padded to a multiple of 32."""
        if length <= self.tile:
            return [0]
        last = -(-(length - self.tile) // MULTIPLE) * MULTIPLE
        return [*range(0, length - self.tile, self.tile - self.overlap), last]

    def weights(self, length: int) -> list[Floats]:
        """Return the weights (tile,) of every tile along a side; they add up to 1 at every pixel of it.

        The outer quarter of the overlap, where the network lacks the pixels beyond the tile, has no weight, unless the
        image ends there. Between the quarters, weights rise as half a cosine.
        """
        starts = self.starts(length)
        margin = self.overlap // 4
        rise = (
            1 - np.cos(np.pi * (np.arange(self.overlap - 2 * margin) + 0.5) / max(self.overlap - 2 * margin, 1))
        ) / 2
        edge = np.concatenate([np.zeros(margin), rise])
        total = np.zeros(starts[-1] + self.tile)
        raw = []
        for i, start in enumerate(starts):
            weight = np.ones(self.tile)
            if i > 0:
                weight[: len(edge)] = edge
            if i < len(starts) - 1:
                weight[len(weight) - len(edge) :] *= edge[::-1]
            total[start : start + self.tile] += weight
            raw.append(weight)
        return [(w / total[s : s + self.tile]).astype(np.float32) for s, w in zip(starts, raw, strict=True)]

    def blend(self, image: Array, probabilities: Callable[[Array], Floats], batch: int) -> Iterator[Floats]:
        """Yield the probabilities of an image, from top to bottom in chunks of rows.

        Memory grows with the width of the image and not with its height.

        Args:
            image: (H, W, 3) uint8.
            probabilities: Images (B, h, w, 3) to probabilities (B, C, h, w).
            batch: Tiles at a time.

        Yields:
            (C, rows, W); together the chunks have all rows of the image.
        """
        height, width = image.shape[:2]
        rows, columns = self.starts(height), self.starts(width)
        by_row, by_column = self.weights(height), self.weights(width)
        chunk: Floats | None = None  # the rows of the current tiles, with the contributions of the tiles above
        weighted_columns = list(zip(columns, by_column, strict=True))
        for i, top in enumerate(rows):
            for first in range(0, len(weighted_columns), batch):
                group = weighted_columns[first : first + batch]
                tiles = probabilities(np.stack([self._cut(image, top, left) for left, _ in group]))
                if chunk is None:
                    chunk = np.zeros((tiles.shape[1], self.tile, columns[-1] + self.tile), np.float32)
                for (left, weight), p in zip(group, tiles, strict=True):
                    part = chunk[:, : p.shape[1], left : left + p.shape[2]]
                    part += p * by_row[i][: p.shape[1], None] * weight[: p.shape[2]]
            assert chunk is not None
            done = (rows[i + 1] if i + 1 < len(rows) else height) - top
            yield chunk[:, :done, :width].copy()
            chunk[:, : self.tile - done] = chunk[:, done:].copy()
            chunk[:, max(self.tile - done, 0) :] = 0

    def _cut(self, image: Array, top: int, left: int) -> Array:
        """Cut out a tile, padded to a multiple of 32 at the right and lower edges of the image as the network does."""
        cut = image[top : top + self.tile, left : left + self.tile]
        padding = [(0, -side % MULTIPLE) for side in cut.shape[:2]]
        return np.pad(cut, [*padding, (0, 0)], mode="edge") if any(after for _, after in padding) else cut
