"""Images and volumes too large for a network at once: overlapping tiles at their own resolution, blended smoothly.

Tiles of images start at multiples of 32, because encoders halve the side up to five times. So a network that sees no
farther than a quarter of the overlap gives the same result as for the whole image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError

MULTIPLE = 32
"""What `models.factory` pads sides to; importing it from there would need PyTorch."""

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Tiling:
    """How an axis is cut; those of an image are cut alike.

    Attributes:
        tile: Side of a tile in pixels.
        overlap: Pixels that neighbours share, at most half a tile.
        multiple: Tiles start at multiples of it, so tile and overlap are multiples as well.
        whole: Tiles at the end of a side are padded to a whole tile, and not to a multiple.
    """

    tile: int
    overlap: int
    multiple: int = MULTIPLE
    whole: bool = False

    @classmethod
    def of(cls, tile: int, overlap: int | None = None) -> Tiling:
        """Create a tiling from a user's numbers; by default the overlap is a quarter of the tile, at least 32."""
        if tile < 2 * MULTIPLE or tile % MULTIPLE:
            raise InputError("--tile", str(tile), f"a multiple of {MULTIPLE}, at least {2 * MULTIPLE}")
        if overlap is None:
            overlap = max(tile // 4 // MULTIPLE, 1) * MULTIPLE
        if overlap % MULTIPLE or not 0 <= overlap <= tile // 2:
            raise InputError("--overlap", str(overlap), f"a multiple of {MULTIPLE} from 0 to half of --tile {tile}")
        return cls(tile, overlap)

    @classmethod
    def of_volume(cls, tile: int, overlap: int | None = None) -> Tiling:
        """Create the tiling of an axis of volumes, whose tiles may have any side, from a user's numbers.

        They start at multiples of the largest power of two, up to 32, that divides half a tile. By default the overlap
        is a quarter of the tile, at least that multiple.
        """
        if tile < 1:
            raise InputError("--tile", str(tile), "voxels, at least 1")
        half = tile // 2
        multiple = math.gcd(tile, half, MULTIPLE)
        if overlap is None:
            overlap = min(max(tile // 4 // multiple, 1) * multiple, half)
        if overlap % multiple or not 0 <= overlap <= half:
            raise InputError("--overlap", str(overlap), f"a multiple of {multiple} from 0 to half of --tile {tile}")
        return cls(tile, overlap, multiple, whole=True)

    def starts(self, length: int) -> list[int]:
        """Return where the tiles along a side start. The last ends with the side, padded to a multiple."""
        if length <= self.tile:
            return [0]
        last = -(-(length - self.tile) // self.multiple) * self.multiple
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

    def padding(self, side: int) -> int:
        """Return how many pixels are added to a side of a tile."""
        return -side % (self.tile if self.whole else self.multiple)


def blend(
    image: Array, axes: Sequence[Tiling], probabilities: Callable[[Array], Floats], batch: int
) -> Iterator[Floats]:
    """Yield the probabilities of an image or a volume, from top to bottom in chunks of its first axis.

    Memory grows with the other axes and not with the first.

    Args:
        image: (H, W, channels) or (D, H, W, channels).
        axes: How every axis of space is cut.
        probabilities: Tiles (B, space, channels) to probabilities (B, C, space).
        batch: Tiles at a time.

    Yields:
        (C, rows, W) or (C, slices, H, W); together the chunks are those of the whole.
    """
    first_axis, others = axes[0], axes[1:]
    length, *lengths = image.shape[: len(axes)]
    positions = [
        list(zip(axis.starts(side), axis.weights(side), strict=True))
        for axis, side in zip(others, lengths, strict=True)
    ]
    tops, by_top = first_axis.starts(length), first_axis.weights(length)
    beside = list(itertools.product(*positions))
    chunk: Floats | None = None  # the rows of the current tiles, with the contributions of the tiles above
    for i, top in enumerate(tops):
        for first in range(0, len(beside), batch):
            group = beside[first : first + batch]
            cuts = [_cut(image, axes, (top, *(start for start, _ in position))) for position in group]
            tiles = probabilities(np.stack(cuts))
            if chunk is None:
                ends = (along[-1][0] + axis.tile for along, axis in zip(positions, others, strict=True))
                chunk = np.zeros((tiles.shape[1], first_axis.tile, *ends), np.float32)
            for position, p in zip(group, tiles, strict=True):
                inside = [slice(start, start + side) for (start, _), side in zip(position, p.shape[2:], strict=True)]
                part = chunk[(slice(None), slice(p.shape[1]), *inside)]
                part += _weigh(p, (by_top[i], *(weight for _, weight in position)))
        assert chunk is not None
        done = (tops[i + 1] if i + 1 < len(tops) else length) - top
        yield chunk[(slice(None), slice(done), *map(slice, lengths))].copy()
        chunk[:, : first_axis.tile - done] = chunk[:, done:].copy()
        chunk[:, max(first_axis.tile - done, 0) :] = 0


def _weigh(p: Floats, weights: Sequence[Floats]) -> Floats:
    """Multiply probabilities (C, space) by a weight along every axis of space."""
    for axis, weight in enumerate(weights):
        side = p.shape[axis + 1]
        p = p * weight[:side].reshape(-1, *(1,) * (len(weights) - axis - 1))
    return p


def _cut(image: Array, axes: Sequence[Tiling], starts: Sequence[int]) -> Array:
    """Cut out a tile, padded at the far edges of the image as the network does."""
    cut = image[tuple(slice(start, start + axis.tile) for start, axis in zip(starts, axes, strict=True))]
    padding = [(0, axis.padding(side)) for axis, side in zip(axes, cut.shape, strict=False)]
    return np.pad(cut, [*padding, (0, 0)], mode="edge") if any(after for _, after in padding) else cut
