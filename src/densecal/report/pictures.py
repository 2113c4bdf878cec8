"""Small pictures for the page: shrunk, coloured and packed as WebP within a budget of bytes."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from densecal.errors import InputError

SIDE = 160
"""No picture of the page is larger."""
_STEPS = ((SIDE, 80), (128, 75), (96, 70), (72, 60), (56, 50), (48, 45), (40, 40))
"""Sides and WebP qualities, tried until everything fits."""
_SAMPLE = 100
"""So many pictures tell whether all would fit."""

Kind = Literal["photo", "mask", "labels", "probability", "confidence", "entropy"]
Array = NDArray[Any]
Bytes = NDArray[np.uint8]

# Perceptually uniform and readable for the colour-blind; the style sheet shows the same ramps beside the gallery.
_RAMPS = {"confidence": "cividis", "entropy": "magma"}
_VOID = (96, 96, 96)


@dataclass(frozen=True)
class Picture:
    """A picture at no more than ``SIDE`` pixels a side.

    Attributes:
        kind: What the pixels mean, which decides how they are coloured and packed.
        pixels: uint8 (H, W, 3) for photographs and labels, else (H, W).
    """

    kind: Kind
    pixels: Bytes


def photo(image: Bytes) -> Picture:
    """A photograph (H, W, 3)."""
    return Picture("photo", _shrunk(image, SIDE, Image.Resampling.BOX))


def mask(foreground: Array, void: Array | None = None) -> Picture:
    """A boolean mask (H, W); void pixels are grey."""
    levels = np.where(foreground, 255, 0).astype(np.uint8)
    if void is not None:
        levels[void] = 128
    return Picture("mask", _shrunk(levels, SIDE, Image.Resampling.BOX))


def labels(classes: Array, void: Array | None = None) -> Picture:
    """Class indices (H, W) in colours; void pixels are grey."""
    colours = (np.array(colormaps["tab20"](np.arange(20)))[:, :3] * 255).astype(np.uint8)
    coloured = colours[classes % len(colours)]
    if void is not None:
        coloured[void] = _VOID
    return Picture("labels", _shrunk(coloured, SIDE, Image.Resampling.NEAREST))


def share(kind: Kind, values: Array) -> Picture:
    """Values in [0, 1] (H, W): a probability, confidence or entropy."""
    return Picture(kind, _shrunk(np.rint(values * 255).astype(np.uint8), SIDE, Image.Resampling.BOX))


class Album:
    """The pictures of a page, each once."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        self._pictures: list[Picture] = []

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, picture: Picture) -> int:
        """The picture's number in ``packed``."""
        key = (picture.kind, picture.pixels.shape, picture.pixels.tobytes())
        if key not in self._places:
            self._places[key] = len(self._pictures)
            self._pictures.append(picture)
        return self._places[key]

    def packed(self, budget: int) -> list[str]:
        """All pictures as WebP in base64, as large and good as the budget allows.

        Args:
            budget: Most characters of all together.

        Raises:
            InputError: They do not fit at any size.
        """
        if not self._pictures:
            return []
        some = np.random.default_rng(0).permutation(len(self))[:_SAMPLE]
        for side, quality in _STEPS:
            sizes = [len(_text(self._pictures[i], side, quality)) + 3 for i in some]
            if np.mean(sizes) * len(self) > budget:
                continue
            texts = [_text(picture, side, quality) for picture in self._pictures]
            if sum(len(text) + 3 for text in texts) <= budget:  # 3: quotes and comma
                return texts
        raise InputError(
            "--examples", f"{len(self):,} pictures, too many for a page of a few megabytes", "fewer examples"
        )


def _text(picture: Picture, side: int, quality: int) -> str:
    """WebP in base64."""
    nearest = picture.kind == "labels"
    pixels = _shrunk(picture.pixels, side, Image.Resampling.NEAREST if nearest else Image.Resampling.BOX)
    if picture.kind in _RAMPS:
        ramp = (np.array(colormaps[_RAMPS[picture.kind]](np.arange(256)))[:, :3] * 255).astype(np.uint8)
        pixels = ramp[pixels]
    stream = io.BytesIO()
    # flat regions pack better without loss
    flat = picture.kind in ("mask", "labels")
    Image.fromarray(pixels).save(stream, format="webp", quality=quality, lossless=flat, method=4)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def _shrunk(pixels: Bytes, side: int, resample: Image.Resampling) -> Bytes:
    """As it is where it is small enough already."""
    height, width = pixels.shape[:2]
    factor = side / max(height, width)
    if factor >= 1:
        return pixels
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(pixels).resize(size, resample))
