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
from PIL.PngImagePlugin import PngInfo

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.atomic import write_atomically
from densecal.io.image_structure import check_orientation, check_pixels, check_structure
from densecal.io.regular import check_regular
from densecal.io.suffixes import IMAGE_SUFFIXES
from densecal.io.urls import is_remote, open_bytes

_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that Pillow may detect, whatever the suffix. For some others it would start external programs."""
_MAX_FILE_BYTES = 1 << 30
"""Largest file that is read, because some formats are read as a whole. The largest TIFF allowed takes half of it."""
_CHUNK_PIXELS = 1 << 20
_BITS = "densecal bits"
_TRANSPARENT = 127
"""Highest alpha at which a pixel counts as transparent."""
_COLOUR_TOLERANCE = 12
"""Lossy formats store grey as colour; their channels may differ by this much."""

Array = NDArray[Any]


def read_image(source: Path | BinaryIO, name: str, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Read a photograph as RGB.

    Args:
        source: Path or open file.
        name: Name of the file in error messages.
        max_pixels: Refuse larger images.

    Returns:
        uint8 array (H, W, 3).
    """
    with open_image(source, name, max_pixels, "one grey or RGB picture") as image:
        if alpha_levels(image) is not None:
            raise InputError(name, "transparent pixels", "an opaque image: colours under transparency are arbitrary")
        if image.mode == "F":
            raise InputError(name, "a float image", "an image of 8 or 16 bits")
        if image.mode.startswith("I"):  # Pillow would clip 16 bits to 8 instead of scaling them
            grey = (grey_levels(image, name, "an image") >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return _pixels(image if image.mode == "RGB" else image.convert("RGB"))


def write_png(path: Path, pixels: Array, software: str) -> None:
    """Write 8- or 16-bit levels (H, W) or RGB bytes (H, W, 3) as PNG, atomically, with the name of the software."""
    write_atomically(path, lambda stream: save_png(stream, pixels, software))


def save_png(target: Path | BinaryIO, pixels: Array, software: str) -> None:
    """Write 8- or 16-bit levels (H, W) or RGB bytes (H, W, 3) as PNG, with the name of the software."""
    text = PngInfo()
    text.add_text("Software", software)
    Image.fromarray(pixels).save(target, "png", compress_level=1, pnginfo=text)


@contextlib.contextmanager
def open_image(source: Path | BinaryIO, name: str, max_pixels: int, bands: str = "one band") -> Iterator[Image.Image]:
    """Open and decode an image. Every failure becomes an InputError, and so does content that would be left unread.

    Args:
        source: Path or open file.
        name: Name of the file in error messages.
        max_pixels: Refuse larger images.
        bands: The expected bands and pages, for error messages about a file with more.
    """
    # threads share Pillow's own limit, so it is never lowered
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(source, Path):
                source = bounded_source(source, name, max(_MAX_FILE_BYTES, 16 * max_pixels))
            image = stack.enter_context(Image.open(source, formats=_FORMATS))
            check_pixels(image, name, max_pixels)
            check_structure(image, name, bands)
            bits = _bits(image)
            image.load()
            check_orientation(image, name)
            image.info[_BITS] = bits  # afterwards, because a text chunk of the same name may follow the pixels
        except (InputError, NameError):
            raise
        except FileNotFoundError:
            raise InputError(name, "no such file", "a readable image") from None
        except Image.DecompressionBombError as error:
            pixels = first_line(error).split(",")[0]  # the message continues with a warning of decompression bombs
            raise InputError(
                name, pixels, f"at most {max_pixels:,} pixels (raise the limit with --max-pixels)"
            ) from None
        except UnidentifiedImageError:
            if _is_tiff(source):
                raise InputError(name, "a TIFF file of several bands or unusual numbers", bands) from None
            expected = f"the format of {' '.join(IMAGE_SUFFIXES)}"
            raise InputError(name, "not an image, whatever its name", expected) from None
        except Exception as error:  # Pillow's decoders raise errors of every kind for damaged files
            raise InputError(name, f"unreadable ({first_line(error)})", "a complete image file") from None
        yield image


def _is_tiff(source: Path | BinaryIO) -> bool:
    with source.open("rb") if isinstance(source, Path) else contextlib.nullcontext(source) as file:
        file.seek(0)
        return file.read(4) in (b"II*\0", b"MM\0*")


def bounded_source(path: Path, name: str, limit: int) -> Path | BinaryIO:
    """Return what Pillow can open: the path of a regular file, or the content of a remote one."""
    source: Path | BinaryIO = path
    if is_remote(path):
        with open_bytes(path) as file:
            content = file.read(limit + 1)
        source, size = io.BytesIO(content), len(content)
    else:
        check_regular(path)
        size = path.stat().st_size
    if size > limit:
        raise InputError(name, f"more than {limit:,} bytes", "the size of an image file")
    return source


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Return an RGB image as an array. It is copied in chunks of rows, because Pillow copies what it returns."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _CHUNK_PIXELS // image.width)
    for top in range(0, image.height, rows):
        pixels[top : top + rows] = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
    return pixels


def _bits(image: Image.Image) -> int:
    """Return the bits per pixel of a grey image that is not loaded yet; 8 for all others."""
    tiles = getattr(image, "tile", ())
    arguments = tiles[0].args if tiles else ""
    raw_mode = str(arguments if isinstance(arguments, str) else next(iter(arguments or ()), ""))
    return {"L;2": 2, "L;4": 4}.get(raw_mode[:3], 8)


def stored_levels(image: Image.Image) -> NDArray[np.uint8]:
    """Return the levels of an 8-bit grey image as stored. Pillow stretches 2 and 4 bits to the range of 8."""
    bits: int = image.info[_BITS]
    levels = np.asarray(image)
    return levels if bits == 8 else levels // np.uint8(255 // (2**bits - 1))


def alpha_levels(image: Image.Image) -> NDArray[np.uint8] | None:
    """Return the alpha channel, or ``None`` for an image that has none or is entirely opaque."""
    if image.mode not in ("LA", "La", "PA", "RGBA", "RGBa", "P"):
        return None
    if image.mode == "P" and "transparency" not in image.info:
        return None
    alpha = np.asarray(image.convert("RGBA").getchannel("A"))
    return None if alpha.min(initial=255) > _TRANSPARENT else alpha


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
