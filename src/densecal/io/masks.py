"""Masks on disk, and the one rule that turns their levels into foreground, background and void."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.images import grey_levels, is_coloured, one_bit, open_image

VOID = 255
"""The label of void pixels in masks of K classes unless another is given."""

Levels = NDArray[np.uint8]


@dataclass(frozen=True)
class ForegroundMask:
    """A mask of foreground and background.

    Attributes:
        foreground: bool (H, W).
        void: bool (H, W), pixels that do not count; ``None`` if all count.
        grey: Whether the mask has levels other than those of foreground, background and void.
        middle: bool (H, W), pixels of level 128, which PySODMetrics calls background; ``None`` if there are none.
    """

    foreground: NDArray[np.bool_]
    void: NDArray[np.bool_] | None = None
    grey: bool = False
    middle: NDArray[np.bool_] | None = None


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
    source: Path | BinaryIO, name: str, ignore_index: int | None = None, max_pixels: int = MAX_PIXELS
) -> ForegroundMask:
    """Read a mask of foreground and background.

    Args:
        source: Path or open file.
        name: What errors call the file.
        ignore_index: The level of void pixels; without it, no pixel is void.
        max_pixels: Refuse larger masks.
    """
    with open_image(source, name, max_pixels) as image:
        if image.mode == "1":
            return ForegroundMask(one_bit(image))
        levels = _mask_levels(image, name)
    return foreground_mask(levels, ignore_index)


def read_labels(
    source: Path | BinaryIO, name: str, classes: int, ignore_index: int | None = VOID, max_pixels: int = MAX_PIXELS
) -> Levels:
    """Read a mask of K classes.

    Args:
        source: Path or open file.
        name: What errors call the file.
        classes: K.
        ignore_index: The label of void pixels.
        max_pixels: Refuse larger masks.

    Returns:
        Class indices, uint8 (H, W); palette images give the index.

    Raises:
        InputError: A label is neither a class nor void.
    """
    labels = read_mask(source, name, classes, max_pixels)
    check_labels(labels, name, classes, ignore_index)
    return labels


def check_labels(labels: Levels, name: str, classes: int, ignore_index: int | None) -> None:
    """Refuse labels that are neither classes nor void."""
    unknown = labels[(labels >= classes) & (labels != ignore_index)]
    if unknown.size:
        expected = f"labels 0 to {classes - 1}, or {ignore_index} for void"
        raise InputError(name, f"label {int(unknown.max())}", expected)


def read_mask(
    source: Path | BinaryIO, name: str, classes: int | None = None, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Read a mask.

    Args:
        source: Path or open file.
        name: What errors call the file.
        classes: Number of classes of a label mask; ``None`` or 1 for a foreground mask.
        max_pixels: Refuse larger masks.

    Returns:
        uint8 array (H, W). A foreground mask as stored, 0 to 255 (masks of 0 and 1 are scaled to 0 and 255);
        a label mask as class indices (palette images give the index).
    """
    with open_image(source, name, max_pixels) as image:
        if classes is not None and classes > 1:
            return _label_indices(image, name)
        levels = _mask_levels(image, name)
    return levels * np.uint8(255) if levels.max(initial=0) == 1 else levels


def _middle(levels: Levels) -> NDArray[np.bool_] | None:
    middle = levels == 128
    return middle if middle.any() else None


def _mask_levels(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """Return the levels of a foreground mask as stored; 16-bit masks that use their high byte are reduced to it.

    The colours of a palette that is not grey mean nothing, but its indices may be those of foreground and background.
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
    levels = grey_levels(image, name, expected)
    if levels.dtype == np.uint16:
        return (levels >> 8 if levels.max(initial=0) > 255 else levels).astype(np.uint8)
    if levels.dtype != np.uint8:
        raise InputError(name, f"a mask of type {levels.dtype}", "an 8- or 16-bit mask")
    return levels


def _label_indices(image: Image.Image, name: str) -> NDArray[np.uint8]:
    if image.mode in ("L", "P"):
        return np.asarray(image)
    if image.mode == "1":
        return one_bit(image).view(np.uint8)
    labels = grey_levels(image, name, "a label mask: grey or palette, one index per pixel")
    if labels.max(initial=0) > 255:
        raise InputError(name, f"label {int(labels.max())}", "labels from 0 to 255")
    return labels.astype(np.uint8)
