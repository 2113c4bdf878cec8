"""Photographs and grey images on disk: decoded with Pillow, within limits. Errors take one line."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.atomic import write_atomically
from densecal.io.regular import check_regular
from densecal.io.urls import is_remote, open_bytes

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""The formats that Pillow may detect, whatever the suffix. For some others it would start external programs."""
_CHUNK_PIXELS = 1 << 20
_COLOUR_TOLERANCE = 12
"""Lossy formats store grey as colour; their channels may differ by this much."""

Array = NDArray[Any]


def read_image(source: Path | BinaryIO, name: str, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Read a photograph as RGB.

    Args:
        source: Path or open file.
        name: What errors call the file.
        max_pixels: Refuse larger images.

    Returns:
        uint8 array (H, W, 3).
    """
    with open_image(source, name, max_pixels) as image:
        if image.mode == "F":
            raise InputError(name, "a float image", "an image of 8 or 16 bits")
        if image.mode.startswith("I"):  # Pillow would clip 16 bits to 8 instead of scaling them
            grey = (grey_levels(image, name, "an image") >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return _pixels(image if image.mode == "RGB" else image.convert("RGB"))


def write_png(path: Path, pixels: Array) -> None:
    """Write 8- or 16-bit levels (H, W) or RGB bytes (H, W, 3) as PNG, atomically."""
    write_atomically(path, lambda stream: save_png(stream, pixels))


def save_png(target: Path | BinaryIO, pixels: Array) -> None:
    """Write 8- or 16-bit levels (H, W) or RGB bytes (H, W, 3) as PNG."""
    Image.fromarray(pixels).save(target, "png", compress_level=1)


@contextlib.contextmanager
def open_image(source: Path | BinaryIO, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Open and decode an image; every failure becomes an InputError."""
    # threads share Pillow's own limit, so it is only ever raised
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        if isinstance(source, Path):
            if is_remote(source):
                with open_bytes(source) as file:
                    source = io.BytesIO(file.read())
            else:
                check_regular(source)
        with Image.open(source, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise InputError(
                    name,
                    f"{width} x {height} pixels",
                    f"at most {max_pixels:,} pixels (raise the limit with --max-pixels)",
                )
            image.load()
            yield image
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(name, "no such file", "a readable image") from None
    except Image.DecompressionBombError as error:
        pixels = first_line(error).split(",")[0]  # the message goes on about decompression bombs
        raise InputError(name, pixels, f"at most {max_pixels:,} pixels (raise the limit with --max-pixels)") from None
    except UnidentifiedImageError:
        raise InputError(name, "not an image, whatever its name", f"the format of {' '.join(IMAGE_SUFFIXES)}") from None
    except Exception as error:  # Pillow's decoders raise errors of every kind for damaged files
        raise InputError(name, f"unreadable ({first_line(error)})", "a complete image file") from None


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Return an RGB image as an array. It is copied in chunks of rows, because Pillow copies what it hands out."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _CHUNK_PIXELS // image.width)
    for top in range(0, image.height, rows):
        pixels[top : top + rows] = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
    return pixels


def grey_levels(image: Image.Image, name: str, expected: str) -> Array:
    """Return the grey levels of an image: uint8, uint16 or float32."""
    if image.mode == "L":
        return np.asarray(image)
    if image.mode == "1":
        return one_bit(image) * np.uint8(255)
    if image.mode == "LA":
        return np.asarray(image.getchannel(0))
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16)
    if image.mode == "I":
        levels = np.asarray(image)
        if levels.min(initial=0) < 0 or levels.max(initial=0) > 65535:
            raise InputError(name, "32-bit integers", f"{expected} of 8 or 16 bits")
        return levels.astype(np.uint16)
    if image.mode == "F":
        return np.asarray(image)
    if is_coloured(image):
        raise InputError(name, "a colour image", expected)
    return np.asarray(image.convert("L"))


def is_coloured(image: Image.Image) -> bool:
    """Return whether an image has colour beyond what lossy compression adds to grey."""
    colour = np.asarray(image.convert("RGB")).astype(np.int16)
    return int((colour.max(axis=2) - colour.min(axis=2)).max(initial=0)) > _COLOUR_TOLERANCE


def one_bit(image: Image.Image) -> NDArray[np.bool_]:
    """Return a 1-bit image as proper booleans. Pillow returns bytes of 255, which numpy sums as 255."""
    return np.asarray(np.asarray(image).view(np.uint8) != 0)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]
