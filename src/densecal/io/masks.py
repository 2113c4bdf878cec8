"""Masks on disk, and the one rule that turns their levels into foreground, background and void."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.axes import find_axes
from densecal.io.geometry import Frame, Geometry
from densecal.io.images import (
    alpha_levels,
    grey_levels,
    is_coloured,
    one_bit,
    open_image,
    stored_levels,
)
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.png import read_plain_png
from densecal.io.rater_stacks import raters_of
from densecal.io.readers.protocol import LazyArray
from densecal.io.readers.registry import find_reader
from densecal.io.readers.tiff import is_geotiff
from densecal.io.relabel import Relabel
from densecal.io.suffixes import IMAGE_SUFFIXES, suffix_of

VOID = 255
"""The label of void pixels in masks of K classes unless another is given."""

Levels = NDArray[np.uint8]


@dataclass(frozen=True)
class ForegroundMask:
    """A mask of foreground and background.

    Attributes:
        foreground: bool (H, W).
        void: bool (H, W), the pixels that do not count; ``None`` if all count.
        grey: Whether the mask has levels other than those of foreground, background and void.
        middle: bool (H, W), the pixels of level 128, background to PySODMetrics; ``None`` if there are none.
        geometry: Where the pixels lie, if the format specifies it.
        no_data: bool (space), where the file marks pixels as having no data; ``None`` if there are none.
    """

    foreground: NDArray[np.bool_]
    void: NDArray[np.bool_] | None = None
    grey: bool = False
    middle: NDArray[np.bool_] | None = None
    geometry: Geometry | None = None
    no_data: NDArray[np.bool_] | None = None

    @property
    def frame(self) -> Frame:
        """The grid of pixels."""
        return Frame(self.foreground.shape, self.geometry)


@dataclass(frozen=True)
class LabelMask:
    """A mask of K classes.

    Attributes:
        labels: Class indices, uint8 (space); void pixels have the label of void.
        geometry: Where the pixels lie, if the format specifies it.
        no_data: bool (space), where the file marks pixels as having no data; ``None`` if there are none.
    """

    labels: Levels
    geometry: Geometry | None = None
    no_data: NDArray[np.bool_] | None = None

    @property
    def frame(self) -> Frame:
        """The grid of pixels."""
        return Frame(self.labels.shape, self.geometry)


def foreground_mask(levels: Levels, ignore_index: int | None = None) -> ForegroundMask:
    """Separate foreground and background: masks of 0 and 1 are used as they are, all others are cut at > 127.

    Args:
        levels: The mask as stored, uint8 (H, W).
        ignore_index: The level of void pixels; without it, no pixel is void.
    """
    if ignore_index is None:
        if levels.max(initial=0) == 1:
            return ForegroundMask(levels == 1)
        grey = bool((levels + np.uint8(1) > 1).any())  # 0 and 255 become 1 and 0
        return ForegroundMask(levels > 127, None, grey, _middle(levels) if grey else None)
    void = levels == ignore_index
    others = levels[~void]
    if others.max(initial=0) == 1:
        return ForegroundMask(levels == 1, void)
    grey = bool(((others != 0) & (others != 255)).any())
    return ForegroundMask((levels > 127) & ~void, void, grey, _middle(levels) if grey else None)


def read_foreground(
    source: Path | BinaryIO,
    name: str,
    ignore_index: int | None = None,
    max_pixels: int = MAX_PIXELS,
    options: MapOptions = AS_STORED,
) -> ForegroundMask:
    """Read a mask of foreground and background.

    Args:
        source: Path or open file.
        name: Name of the file in error messages.
        ignore_index: The level of void pixels; without it, no pixel is void.
        max_pixels: Refuse larger masks.
        options: The order of axes, where the format does not specify it.
    """
    if options.relabel is not None:
        labels = _read_label_levels(source, name, max_pixels, options)
        levels = _relabel(labels.levels, options.relabel, name)
        return _stored_foreground(replace(labels, levels=levels), name, ignore_index)
    if has_reader(source) or (_has_channels(options) and isinstance(source, Path)):
        return _stored_foreground(read_stored_mask(source, name, max_pixels, options), name, ignore_index)
    plain = _read_plain(source, max_pixels)
    if plain is not None:
        return ForegroundMask(plain) if plain.dtype == bool else foreground_mask(plain, ignore_index)
    with open_image(source, name, max_pixels, "a mask of one page and one band") as image:
        if image.mode == "1":
            return ForegroundMask(one_bit(image))
        return _opaque_mask(image, name, ignore_index)[1]


def read_labels(
    source: Path | BinaryIO, name: str, classes: int, ignore_index: int | None = VOID, max_pixels: int = MAX_PIXELS
) -> Levels:
    """Return the labels of `read_label_mask`, uint8 (H, W) or (D, H, W)."""
    return read_label_mask(source, name, classes, ignore_index, max_pixels).labels


def read_label_mask(
    source: Path | BinaryIO,
    name: str,
    classes: int,
    ignore_index: int | None = VOID,
    max_pixels: int = MAX_PIXELS,
    options: MapOptions = AS_STORED,
) -> LabelMask:
    """Read a mask of K classes.

    Args:
        source: Path or open file.
        name: Name of the file in error messages.
        classes: K.
        ignore_index: The label of void pixels.
        max_pixels: Refuse larger masks.
        options: The order of axes, where the format does not specify it.

    Returns:
        The labels; palette images give the index.

    Raises:
        InputError: A label is neither a class nor void.
    """
    stored = _read_label_levels(source, name, max_pixels, options)
    labels = stored.levels if options.relabel is None else _relabel(stored.levels, options.relabel, name)
    if stored.void is not None:
        if ignore_index is None:
            raise InputError(name, "pixels without data", "--ignore-index, the label of void pixels")
        labels = np.where(stored.void, np.uint8(ignore_index), labels)
    check_labels(labels, name, classes, ignore_index)
    return LabelMask(labels, stored.geometry, stored.void)


def _relabel(labels: Levels, new: Relabel, name: str) -> Levels:
    """Return labels with their new values."""
    new.check(np.flatnonzero(np.bincount(labels.reshape(-1), minlength=256)).tolist(), name)
    return np.array(new.table, np.int16).astype(np.uint8)[labels]


def _read_label_levels(source: Path | BinaryIO, name: str, max_pixels: int, options: MapOptions) -> StoredMask:
    """Read labels as they are stored."""
    if has_reader(source) or (options.rater is not None and isinstance(source, Path)):
        return read_stored_mask(source, name, max_pixels, options)
    plain = _read_plain(source, max_pixels)
    if plain is not None:
        return StoredMask(plain.view(np.uint8), None, None)
    with open_image(source, name, max_pixels, "a mask of one page and one band") as image:
        return StoredMask(_label_indices(image, name), None, None)


def _read_plain(source: Path | BinaryIO, max_pixels: int) -> NDArray[Any] | None:
    """Return the pixels of a plain grey PNG file of 1 or 8 bits, or ``None`` for every other source."""
    plain = read_plain_png(source, max_pixels) if isinstance(source, Path) else None
    return None if plain is None or plain.dtype == np.uint16 else plain


def check_labels(labels: Levels, name: str, classes: int, ignore_index: int | None) -> None:
    """Refuse labels that are neither classes nor void."""
    unknown = labels[(labels >= classes) & (labels != ignore_index)]
    if unknown.size:
        expected = f"labels 0 to {classes - 1}, or {ignore_index} for void"
        raise InputError(name, f"label {int(unknown.max())}", expected)


def one_sided(lowest: int, highest: int, masks: int, classes: int = 1) -> str:
    """Return a warning if all pixels of a set of masks are the same, so that nothing can be learned from them.

    Args:
        lowest: The lowest level or label in all masks, except void.
        highest: The highest level or label.
        masks: Number of masks.
        classes: 1 for foreground masks, whose background is 0, else the number of classes.

    Returns:
        The warning; empty if the masks hold more than one level.
    """
    if lowest != highest:
        return ""
    every = "the only mask" if masks == 1 else f"all {masks:,} masks"
    if classes > 1:
        return f"every pixel of {every} has label {lowest}: nothing can be learned or measured about the other classes"
    present, missing = ("foreground", "background") if lowest else ("background", "foreground")
    return f"every pixel of {every} is {present}: nothing can be learned or measured about {missing}"


def read_mask(
    source: Path | BinaryIO, name: str, classes: int | None = None, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Read a mask.

    Args:
        source: Path or open file.
        name: Name of the file in error messages.
        classes: Number of classes of a label mask; ``None`` or 1 for a foreground mask.
        max_pixels: Refuse larger masks.

    Returns:
        uint8 array (H, W). A foreground mask as stored, 0 to 255 (masks of 0 and 1 are scaled to 0 and 255);
        a label mask as class indices (palette images give the index).
    """
    several = classes is not None and classes > 1
    if has_reader(source):
        stored = read_stored_mask(source, name, max_pixels)
        levels = stored.levels
        if stored.void is not None or levels.ndim != 2:
            raise InputError(name, f"a mask of shape {levels.shape} or pixels without data", "(height, width)")
    else:
        with open_image(source, name, max_pixels, "a mask of one page and one band") as image:
            levels = _label_indices(image, name) if several else _opaque_mask(image, name)[0]
    return levels * np.uint8(255) if levels.max(initial=0) == 1 and not several else levels


@dataclass(frozen=True)
class StoredMask:
    """Levels or labels in a file that a reader opens.

    Attributes:
        levels: uint8 (space).
        void: bool (space), where the file says that there is no data; ``None`` if there is data everywhere.
        geometry: Where the pixels lie, if the format specifies it.
    """

    levels: Levels
    void: NDArray[np.bool_] | None
    geometry: Geometry | None


def read_stored_mask(path: Path, name: str, max_pixels: int, options: MapOptions = AS_STORED) -> StoredMask:
    """Read a mask of booleans, or of whole numbers from 0 to 255, with the reader of its format.

    Only one channel is read from a mask with a channel per region or rater.

    Args:
        path: The file.
        name: Its name in error messages.
        max_pixels: Refuse larger masks.
        options: The order of axes, where the format does not specify it.
    """
    reader = find_reader(path)
    channel = options.rater or (options.channel if options.relabel is None else None)
    if reader is None:
        of = "region, or dataset.json" if options.rater is None else "rater"
        raise InputError(name, "a picture of one channel", f"a mask with a channel per {of}")
    channels = 1 if channel is None else channel.of
    with reader(path, None, max_pixels * channels) as stored:
        mask_options = replace(AS_STORED, axes=options.axes)
        if options.rater is not None:
            mask_options = replace(mask_options, channels_last=options.channels_last)
            if (raters := raters_of(stored, name, options)) != channels:
                raise InputError(name, f"masks of {raters} raters", f"masks of {channels}, as in the first file")
        axes = find_axes(stored, name, channels, mask_options, axes_of_space(stored, channels > 1))
        index = None if channel is None else channel.index
        array, void = axes.read_with_void(stored, channel=index)
        geometry = axes.geometry(stored)
    return StoredMask(*to_levels(array, void, name), geometry)


def to_levels(
    array: NDArray[Any], void: NDArray[np.bool_] | None, name: str
) -> tuple[Levels, NDArray[np.bool_] | None]:
    """Return whole numbers from 0 to 255 as uint8, 0 where there is no data, and the pixels without data, if any."""
    with np.errstate(invalid="ignore"):
        levels = array.astype(np.uint8)
        differs = levels != array
    if void is not None:
        differs &= ~void
        void = void if void.any() else None
        levels = levels if void is None else np.where(void, np.uint8(0), levels)
    if differs.any():
        raise InputError(name, f"the value {array[differs][0]:g} in a mask", "whole numbers from 0 to 255, or booleans")
    return levels, void


def axes_of_space(stored: LazyArray, several: bool) -> int:
    """Return the number of spatial axes of a mask. A volume of a single slice is a picture."""
    channels = 0 if several and stored.channels is None else stored.channels
    lengths = [length for axis, length in enumerate(stored.shape) if axis != channels]
    return 3 if len(lengths) >= 3 and lengths[-3] > 1 else 2


def _has_channels(options: MapOptions) -> bool:
    """Return whether masks have a channel per region or rater."""
    return options.channel is not None or options.rater is not None


def has_reader(source: Path | BinaryIO) -> TypeGuard[Path]:
    """Return whether a mask has a reader, as arrays, volumes and GeoTIFF files have."""
    if not isinstance(source, Path):
        return False
    suffix = suffix_of(source)
    return is_geotiff(source) if suffix in (".tif", ".tiff") else suffix not in IMAGE_SUFFIXES


def _stored_foreground(stored: StoredMask, name: str, ignore_index: int | None) -> ForegroundMask:
    """Return the foreground and the void pixels of a stored mask."""
    mask = foreground_mask(stored.levels, ignore_index)
    counted = stored.levels if mask.void is None else stored.levels[~mask.void]
    if stored.geometry is not None:
        refuse_labels(int(counted.max(initial=0)), name)
    void = mask.void if stored.void is None else stored.void if mask.void is None else stored.void | mask.void
    foreground = mask.foreground if stored.void is None else mask.foreground & ~stored.void
    return ForegroundMask(foreground, void, mask.grey, mask.middle, stored.geometry, stored.void)


def refuse_labels(highest: int, name: str) -> None:
    """Refuse class labels in a georeferenced file where a foreground mask is expected."""
    if 1 < highest < 128:
        expected = f"a foreground mask of 0 and 1; --classes {highest + 1} for class labels"
        raise InputError(name, f"labels up to {highest}", expected)


def _middle(levels: Levels) -> NDArray[np.bool_] | None:
    middle = levels == 128
    return middle if middle.any() else None


def _opaque_mask(image: Image.Image, name: str, ignore_index: int | None = None) -> tuple[Levels, ForegroundMask]:
    """Return the levels of a foreground mask, and its foreground and void pixels.

    Raises:
        InputError: The alpha channel differs from the grey levels, so the mask may be in either.
    """
    levels = _mask_levels(image, name)
    mask = foreground_mask(levels, ignore_index)
    alpha = alpha_levels(image)
    if alpha is not None and not np.array_equal(alpha > 127, mask.foreground):
        actual = (
            f"an alpha channel ({alpha.min()} to {alpha.max()}) that differs from the grey levels ({levels.min()} to "
            f"{levels.max()}), so the mask may be in either"
        )
        raise InputError(name, actual, "a grey mask without transparency")
    return levels, mask


def _mask_levels(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """Return the levels of a foreground mask. Of 16-bit masks with levels above 255, only the high byte is kept.

    Masks of 2 and 4 bits hold 0 and 1, which are returned as they are, or levels, which Pillow stretches to 255.

    The colours of a palette that is not grey are ignored, but its indices may be those of foreground and background.
    """
    expected = (
        "a grey mask, 0 for background and 255 (or 1) for foreground; for labels of K classes --classes K, or "
        "data.classes=K in training"
    )
    if image.mode == "P" and is_coloured(image):
        indices = np.asarray(image)
        used = set(np.unique(indices).tolist())
        if not (used <= {0, 1} or used <= {0, 255}):
            raise InputError(name, f"a colour palette with indices up to {max(used)}", expected)
        return indices
    if image.mode == "L" and (stored := stored_levels(image)).max(initial=0) == 1:
        return stored
    levels = grey_levels(image, name, expected)
    if levels.dtype == np.uint16:
        return (levels >> 8 if levels.max(initial=0) > 255 else levels).astype(np.uint8)
    if levels.dtype != np.uint8:
        raise InputError(name, f"a mask of type {levels.dtype}", "an 8- or 16-bit mask")
    return levels


def _label_indices(image: Image.Image, name: str) -> NDArray[np.uint8]:
    if image.mode == "P":
        return np.asarray(image)
    if image.mode == "L":
        return stored_levels(image)
    if image.mode == "1":
        return one_bit(image).view(np.uint8)
    if alpha_levels(image) is not None:
        raise InputError(name, "transparent pixels", "a label mask without transparency: one index per pixel")
    labels = grey_levels(image, name, "a label mask: grey or palette, one index per pixel")
    if labels.max(initial=0) > 255:
        raise InputError(name, f"label {int(labels.max())}", "labels from 0 to 255")
    return labels.astype(np.uint8)
