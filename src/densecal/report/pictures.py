"""Small pictures for the page, coloured and encoded as WebP within a budget of bytes."""

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
"""Largest side of a picture, in pixels."""
_STEPS = ((SIDE, 80), (128, 75), (96, 70), (72, 60), (56, 50), (48, 45), (40, 40))
"""Sides and WebP qualities, tried in this order until everything fits."""
_SAMPLE = 100
"""Number of pictures that are encoded to estimate whether all fit."""

Kind = Literal["photo", "mask", "labels", "probability", "confidence", "entropy"]
Array = NDArray[Any]
Bytes = NDArray[np.uint8]

# Perceptually uniform, and readable for the colour-blind. The style sheet has the same ramps for the gallery's legend.
_RAMPS = {"confidence": "cividis", "entropy": "magma"}
_VOID = (96, 96, 96)


@dataclass(frozen=True)
class Picture:
    """A picture with no side longer than ``SIDE`` pixels.

    Attributes:
        kind: What the pixels mean, which decides how they are coloured and encoded.
        pixels: uint8 (H, W, 3) for photographs and labels, else (H, W).
    """

    kind: Kind
    pixels: Bytes


def photo(image: Bytes, shape: tuple[int, ...] | None = None) -> Picture:
    """Return the picture of a photograph (H, W, 3).

    Args:
        image: The pixels.
        shape: Height and width of the photograph, where the pixels were resized to the square that a network sees.
    """
    if shape is not None:
        factor = SIDE / max(shape)
        height, width = (max(1, round(side * factor)) for side in shape)
        image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    return Picture("photo", _shrink(image, SIDE, Image.Resampling.BOX))


def mask(foreground: Array, void: Array | None = None) -> Picture:
    """Return the picture of a boolean mask (H, W). Void pixels are grey."""
    levels = np.where(foreground, 255, 0).astype(np.uint8)
    if void is not None:
        levels[void] = 128
    return Picture("mask", _shrink(levels, SIDE, Image.Resampling.BOX))


def labels(classes: Array, void: Array | None = None) -> Picture:
    """Return class indices (H, W) in colours. Void pixels are grey."""
    colours = (np.array(colormaps["tab20"](np.arange(20)))[:, :3] * 255).astype(np.uint8)
    coloured = colours[classes % len(colours)]
    if void is not None:
        coloured[void] = _VOID
    return Picture("labels", _shrink(coloured, SIDE, Image.Resampling.NEAREST))


def unit_map(kind: Kind, values: Array) -> Picture:
    """Return the picture of values in [0, 1] (H, W): a probability, confidence or entropy."""
    return Picture(kind, _shrink(np.rint(values * 255).astype(np.uint8), SIDE, Image.Resampling.BOX))


class Album:
    """The pictures of a page, each once."""

    def __init__(self) -> None:
        self._indices: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        self._pictures: list[Picture] = []

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, picture: Picture) -> int:
        """Add a picture, unless it is there, and return its index in ``encode``."""
        key = (picture.kind, picture.pixels.shape, picture.pixels.tobytes())
        if key not in self._indices:
            self._indices[key] = len(self._pictures)
            self._pictures.append(picture)
        return self._indices[key]

    def encode(self, budget: int) -> list[str]:
        """Return all pictures as WebP in base64, as large and good as the budget allows.

        Args:
            budget: Largest number of characters, of all pictures together.

        Raises:
            InputError: They do not fit at any size.
        """
        if not self._pictures:
            return []
        sample = np.random.default_rng(0).permutation(len(self))[:_SAMPLE]
        for side, quality in _STEPS:
            sizes = [len(_webp(self._pictures[i], side, quality)) + 3 for i in sample]
            if np.mean(sizes) * len(self) > budget:
                continue
            texts = [_webp(picture, side, quality) for picture in self._pictures]
            if sum(len(text) + 3 for text in texts) <= budget:  # 3: quotes and comma
                return texts
        raise InputError(
            "--examples", f"{len(self):,} pictures, too many for a page of a few megabytes", "fewer examples"
        )


def _webp(picture: Picture, side: int, quality: int) -> str:
    """Return a picture as WebP in base64."""
    nearest = picture.kind == "labels"
    pixels = _shrink(picture.pixels, side, Image.Resampling.NEAREST if nearest else Image.Resampling.BOX)
    if picture.kind in _RAMPS:
        ramp = (np.array(colormaps[_RAMPS[picture.kind]](np.arange(256)))[:, :3] * 255).astype(np.uint8)
        pixels = ramp[pixels]
    stream = io.BytesIO()
    # flat regions are smaller without loss
    flat = picture.kind in ("mask", "labels")
    Image.fromarray(pixels).save(stream, format="webp", quality=quality, lossless=flat, method=4)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def _shrink(pixels: Bytes, side: int, resample: Image.Resampling) -> Bytes:
    """Shrink pixels to a longest side, and keep those that are smaller."""
    height, width = pixels.shape[:2]
    factor = side / max(height, width)
    if factor >= 1:
        return pixels
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(pixels).resize(size, resample))
