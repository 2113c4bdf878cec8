"""A map and its mask, read at the size of the mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.map_files import read_values
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.map_values import to_probabilities
from densecal.io.masks import VOID, ForegroundMask, read_foreground, read_labels

Array = NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """A prediction map and its mask; without a mask, every pixel is background."""

    stem: str
    prediction: Path
    mask: Path | None


@dataclass(frozen=True)
class ForegroundPair:
    """A foreground map at the size of its mask.

    Attributes:
        prediction: uint8 or uint16 levels, or floats in [0, 1], (H, W).
        mask: Foreground, background and void.
        resized: Whether the map had another size.
    """

    prediction: Array
    mask: ForegroundMask
    resized: bool

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Where the mask is not void."""
        return np.ones(self.prediction.shape, bool) if self.mask.void is None else ~self.mask.void


def read_foreground_pair(
    pair: Pair, ignore_index: int | None = None, max_pixels: int = MAX_PIXELS, options: MapOptions = AS_STORED
) -> ForegroundPair:
    """Read a foreground map and its mask.

    Args:
        pair: The files.
        ignore_index: Mask level of void pixels.
        max_pixels: Refuse larger files.
        options: How the map is stored.
    """
    values = read_values(pair.prediction, None, max_pixels, options)
    if pair.mask is None:
        prediction, _ = _at_size(values, values.shape, options)
        return ForegroundPair(prediction, ForegroundMask(np.zeros(prediction.shape, bool)), False)
    mask = read_foreground(pair.mask, str(pair.mask), ignore_index, max_pixels)
    if mask.foreground.size == 0:
        raise InputError(pair.mask, "no pixels", "at least one pixel")
    prediction, resized = _at_size(values, mask.foreground.shape, options)
    return ForegroundPair(prediction, mask, resized)


def read_class_pair(
    pair: Pair,
    classes: int,
    ignore_index: int | None = None,
    max_pixels: int = MAX_PIXELS,
    options: MapOptions = AS_STORED,
) -> tuple[Array, NDArray[np.uint8], bool]:
    """Read a softmax map and its mask of K classes.

    Args:
        pair: The files.
        classes: K.
        ignore_index: Label of void pixels; 255 unless given.
        max_pixels: Refuse larger files.
        options: How the map is stored.

    Returns:
        The map (K, H, W) at the size of the mask, the labels (H, W), and whether the map had another size.
    """
    assert pair.mask is not None
    values = read_values(pair.prediction, classes, max_pixels, options)
    void = VOID if ignore_index is None else ignore_index
    labels = read_labels(pair.mask, str(pair.mask), classes, void, max_pixels)
    prediction, resized = _at_size(values, labels.shape, options)
    return prediction, labels, resized


def _at_size(values: Array, shape: tuple[int, ...], options: MapOptions) -> tuple[Array, bool]:
    """Return probabilities at the size of a mask, and whether they had another. Logits are resized as logits."""
    resized = values.shape[-2:] != shape
    if options.logits:
        return to_probabilities(_resize(values, shape) if resized else values), resized
    return resize_map(values, shape) if resized else values, resized


def resize_map(prediction: Array, shape: tuple[int, ...]) -> Array:
    """Resize probabilities bilinearly (corners not aligned), as floats."""
    levels = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(prediction.dtype, 1.0)
    return _resize(prediction.astype(np.float64) / levels, shape).clip(0.0, 1.0)


def _resize(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    import torch
    from torch.nn.functional import interpolate

    maps = torch.from_numpy(values)
    channels = maps[None] if maps.ndim == 3 else maps[None, None]
    resized = interpolate(channels, size=shape, mode="bilinear", align_corners=False)[0]
    return np.asarray(resized.numpy() if maps.ndim == 3 else resized[0].numpy())


def pair_files(pairs: Iterable[Pair]) -> Iterator[Path]:
    """Yield the files of pairs."""
    for pair in pairs:
        yield from (pair.prediction,) if pair.mask is None else (pair.prediction, pair.mask)
