"""A map and its mask, read at the size of the mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.axes import check_order
from densecal.io.geometry import Frame, Geometry, check_geometry
from densecal.io.map_files import StoredMap, read_stored_map
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.map_values import to_probabilities
from densecal.io.masks import VOID, ForegroundMask, read_foreground, read_label_mask

Array = NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """A prediction map and its mask; without a mask, every pixel is background.

    Attributes:
        stem: Name of the image.
        prediction: The map.
        mask: The mask.
        parts: The files of a map that has one per class, starting with ``prediction``; empty for other maps.
        group: The group of the image, where images are grouped.
    """

    stem: str
    prediction: Path
    mask: Path | None
    parts: tuple[Path, ...] = ()
    group: str | None = None

    @property
    def unit(self) -> str:
        """The unit that intervals resample: the group, or the image."""
        return self.stem if self.group is None else self.group

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the map."""
        return self.parts or (self.prediction,)


@dataclass(frozen=True)
class ForegroundPair:
    """A foreground map at the size of its mask.

    Attributes:
        prediction: uint8 or uint16 levels, or floats in [0, 1], (H, W).
        mask: Foreground, background and void.
        resized: Whether the map had another size and was resized.
        geometry: Where the pixels of the map lie, if its format specifies it.
        no_data: Number of pixels that the files mark as having no data.
    """

    prediction: Array
    mask: ForegroundMask
    resized: bool
    geometry: Geometry | None = None
    no_data: int = 0

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Distance between voxels along every axis, in mm; ``None`` for pictures, and where no file specifies it."""
        return space_between(self.mask.geometry or self.geometry, self.prediction.ndim)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Where the mask is not void."""
        return np.ones(self.prediction.shape, bool) if self.mask.void is None else ~self.mask.void


@dataclass(frozen=True)
class ClassPair:
    """A map of K classes at the size of its mask.

    Attributes:
        prediction: Probabilities (K, H, W) or (K, D, H, W).
        labels: Class indices; void pixels have the label of void.
        resized: Whether the map had another size and was resized.
        spacing: Distance between voxels along every axis, in mm; ``None`` for pictures, and where no file specifies it.
        no_data: Number of pixels that the files mark as having no data.
    """

    prediction: Array
    labels: NDArray[np.uint8]
    resized: bool
    spacing: tuple[float, ...] | None = None
    no_data: int = 0


def space_between(geometry: Geometry | None, axes: int) -> tuple[float, ...] | None:
    """Return the distance between voxels along every axis, for volumes."""
    return geometry.spacing if geometry is not None and axes == 3 else None


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
    if pair.mask is None:
        stored = read_stored_map(pair.files, None, max_pixels, options)
        values = to_probabilities(stored.values, False) if options.logits else stored.values
        mask = ForegroundMask(np.zeros(values.shape, bool), stored.void)
        return ForegroundPair(values, mask, False, stored.geometry, _count(stored.void))
    mask = read_foreground(pair.mask, str(pair.mask), ignore_index, max_pixels, options)
    if mask.foreground.size == 0:
        raise InputError(pair.mask, "no pixels", "at least one pixel")
    stored = _read_map(pair, None, max_pixels, options, mask.frame)
    prediction, resized = _at_size(stored, pair, mask.frame, options, False)
    if stored.void is not None:
        void = stored.void if mask.void is None else stored.void | mask.void
        mask = replace(mask, void=void, foreground=mask.foreground & ~void)
    return ForegroundPair(prediction, mask, resized, stored.geometry, _count(stored.void, mask.no_data))


def read_class_pair(
    pair: Pair,
    classes: int,
    ignore_index: int | None = None,
    max_pixels: int = MAX_PIXELS,
    options: MapOptions = AS_STORED,
) -> ClassPair:
    """Read a softmax map and its mask of K classes.

    Args:
        pair: The files.
        classes: K.
        ignore_index: Label of void pixels; 255 unless given.
        max_pixels: Refuse larger files.
        options: How the map is stored.
    """
    assert pair.mask is not None
    void = VOID if ignore_index is None else ignore_index
    mask = read_label_mask(pair.mask, str(pair.mask), classes, void, max_pixels, options)
    stored = _read_map(pair, classes, max_pixels, options, mask.frame)
    prediction, resized = _at_size(stored, pair, mask.frame, options, True)
    labels = mask.labels if stored.void is None else np.where(stored.void, np.uint8(void), mask.labels)
    spacing = space_between(mask.geometry or stored.geometry, labels.ndim)
    return ClassPair(prediction, labels, resized, spacing, _count(stored.void, mask.no_data))


def _count(*missing: NDArray[np.bool_] | None) -> int:
    """Return how many pixels are in any of some sets."""
    given = [pixels for pixels in missing if pixels is not None]
    return int(np.count_nonzero(np.logical_or.reduce(given))) if given else 0


def _read_map(pair: Pair, classes: int | None, max_pixels: int, options: MapOptions, truth: Frame) -> StoredMap:
    """Read a map, and refuse one that does not, or may not, lie where its mask lies."""
    stored = read_stored_map(pair.files, classes, max_pixels, options, len(truth.shape))
    shape = stored.values.shape[-len(truth.shape) :]
    check_order(str(pair.prediction), Frame(shape, stored.geometry), truth, options)
    check_order(str(pair.mask), truth, Frame(shape, stored.geometry), options)
    check_geometry(str(pair.prediction), stored.geometry, truth.geometry, truth.shape)
    return stored


def _at_size(stored: StoredMap, pair: Pair, truth: Frame, options: MapOptions, several: bool) -> tuple[Array, bool]:
    """Return probabilities at the size of a mask, and whether they were resized. Logits are resized as logits."""
    values, shape = stored.values, truth.shape
    actual = values.shape[-len(shape) :]
    if actual == shape:
        return to_probabilities(values, several) if options.logits else values, False
    if len(shape) == 3:
        hint = "; --axes xyz" if actual == shape[::-1] and stored.geometry is None else ""
        raise InputError(pair.prediction, f"a map of shape {actual}", f"{shape}, as its mask has{hint}")
    if stored.void is not None:
        raise InputError(pair.prediction, f"pixels without data in a map of {actual}", f"{shape}, the size of its mask")
    if options.logits:
        return to_probabilities(_resize(values, shape), several), True
    return resize_map(values, shape), True


def resize_map(prediction: Array, shape: tuple[int, ...]) -> Array:
    """Resize probabilities bilinearly (corners not aligned), as floats."""
    levels = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(prediction.dtype, 1.0)
    return _resize(prediction.astype(np.float64) / levels, shape).clip(0.0, 1.0)


def _resize(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Resize the last two axes. The order of operations is that of PyTorch's ``interpolate``."""
    first, second, share = _neighbours(values.shape[-1], shape[-1])
    values = values[..., first] * (1.0 - share) + values[..., second] * share
    first, second, share = _neighbours(values.shape[-2], shape[-2])
    return values[..., first, :] * (1.0 - share[:, None]) + values[..., second, :] * share[:, None]


def _neighbours(side: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the two old pixels between which each new pixel of a side lies, and its position between them."""
    position = ((np.arange(new) + 0.5) * (side / new) - 0.5).clip(min=0.0)
    first = np.minimum(position.astype(np.int64), side - 1)
    return first, np.minimum(first + 1, side - 1), position - first


def pair_files(pairs: Iterable[Pair]) -> Iterator[Path]:
    """Yield the files of pairs."""
    for pair in pairs:
        yield from pair.files if pair.mask is None else (*pair.files, pair.mask)
