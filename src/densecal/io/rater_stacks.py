"""Masks of several raters in one file: pages or bands, channels of a volume, or the first axis of an array."""

from __future__ import annotations

from pathlib import Path

from densecal.errors import InputError
from densecal.io.map_options import MapOptions
from densecal.io.readers.protocol import LazyArray
from densecal.io.readers.registry import find_reader

_EXPECTED = (
    "a folder of masks for each of two raters or more, or the masks of all in every file: pages of a TIFF file, "
    "channels of a volume, or an array (raters, H, W)"
)


def count_raters(path: Path, max_pixels: int, options: MapOptions) -> int:
    """Return the number of raters in a file of masks.

    Args:
        path: The file.
        max_pixels: Refuse files with more pixels, counted over all raters.
        options: Whether arrays have their channels last.

    Raises:
        InputError: It holds the mask of only one rater.
    """
    reader = find_reader(path)
    if reader is None:
        raise InputError(path, "a picture of one rater", _EXPECTED)
    with reader(path, None, max_pixels) as stored:
        raters = raters_of(stored, str(path), options)
    if raters < 2:
        raise InputError(path, "a mask of one rater", _EXPECTED)
    return raters


def raters_of(stored: LazyArray, name: str, options: MapOptions) -> int:
    """Return the number of raters in an open file of masks.

    Raises:
        InputError: The raters may be on another axis of an array.
    """
    shape = stored.shape
    if stored.channels is not None:
        return shape[stored.channels]
    if stored.geometry is not None or len(shape) < 3:
        return 1
    raters, other = (shape[-1], shape[0]) if options.channels_last else (shape[0], shape[-1])
    if raters > other:
        expected = "raters last, or no --channels-last" if options.channels_last else "raters first, or --channels-last"
        raise InputError(name, f"an array of shape {shape}", expected)
    return raters
