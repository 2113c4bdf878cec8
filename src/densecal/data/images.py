"""Reading single files: images, masks and maps, refused with one clear line when they are not what they should be."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from densecal.errors import InputError
from densecal.limits import MAX_PIXELS as MAX_PIXELS
from densecal.metrics.bands import row_bands
from densecal.remote import is_remote, opened

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
ARRAY_SUFFIXES = (".npy", ".npz")
MAP_SUFFIXES = IMAGE_SUFFIXES + ARRAY_SUFFIXES

_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What Pillow may take a file for, whatever it is called; for others it would start other programs."""

_MAX_NPY_HEADER = 1 << 14
"""numpy refuses headers of more than 10,000 characters, but only after it has read them."""

_BAND_PIXELS = 1 << 20

_COLOUR_TOLERANCE = 12
"""Lossy formats store grey as colour; their channels may differ by this much."""

_SLACK = 1e-6
"""How far beyond 0 and 1 float maps may lie: float32 interpolation leaves 1.0000001."""

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
    with _opened(source, name, max_pixels) as image:
        if image.mode == "F":
            raise InputError(name, "a float image", "an image of 8 or 16 bits")
        if image.mode.startswith("I"):  # Pillow would clip 16 bits to 8 instead of scaling them
            grey = (_grey(image, name, "an image") >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return _pixels(image if image.mode == "RGB" else image.convert("RGB"))


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
    with _opened(source, name, max_pixels) as image:
        if classes is not None and classes > 1:
            return _label_indices(image, name)
        levels = _mask_levels(image, name)
    return levels * np.uint8(255) if levels.max(initial=0) == 1 else levels


def read_foreground(
    path: Path, max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.bool_], bool, NDArray[np.uint8] | None]:
    """Read a foreground mask cut at > 127.

    Returns:
        The mask (H, W), whether it holds other values than 0 and 255, and its levels, ``None`` for 1-bit masks, which
        need no further look.
    """
    with _opened(path, str(path), max_pixels) as image:
        if image.mode == "1":
            return _one_bit(image), False, None
        levels = _mask_levels(image, str(path))
    if levels.max(initial=0) == 1:
        return levels == 1, False, levels
    # 0 and 255 become 1 and 0
    return levels > 127, bool((levels + np.uint8(1) > 1).any()), levels


def read_map(path: Path, classes: int | None = None, max_pixels: int = MAX_PIXELS) -> Array:
    """Read a prediction map.

    Args:
        path: An image (8- or 16-bit grey, float TIFF) or a ``.npy``/``.npz`` array.
        classes: Expected number of classes; ``None`` or 1 for a foreground probability.
        max_pixels: Refuse larger maps.

    Returns:
        (H, W) uint8 or uint16 levels, or floats in [0, 1]; (K, H, W) floats for K classes.
    """
    name = str(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        array = _read_array(path, name, max_pixels * max(classes or 1, 1))
    else:
        with _opened(path, name, max_pixels) as image:
            array = _grey(image, name, "a grey map")
    return _checked_map(array, name, classes)


def _checked_map(array: Array, name: str, classes: int | None) -> Array:
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    binary = classes in (None, 1)
    if array.ndim != (2 if binary else 3) or (array.ndim == 3 and array.shape[0] != classes):
        wanted = "shape (H, W)" if binary else f"shape ({classes}, H, W), one probability a class"
        if binary and array.ndim == 3 and array.shape[0] == min(array.shape):
            wanted += f", or --classes {array.shape[0]}"
        raise InputError(name, f"an array of shape {array.shape}", wanted)
    if array.size == 0:
        raise InputError(name, "no pixels", "at least one pixel")
    native = array.dtype.newbyteorder("=")
    if native in (np.uint8, np.uint16) and array.ndim == 2:
        return array.astype(native, copy=False)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(name, f"values of type {array.dtype}", "floats in [0, 1], or uint8 or uint16 levels")
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError(name, "NaN or infinite values", "probabilities in [0, 1]")
    if low < -_SLACK or high > 1.0 + _SLACK:
        wanted = "probabilities in [0, 1] (logits need their sigmoid or softmax first)"
        raise InputError(name, f"values from {low:.9g} to {high:.9g}", wanted)
    if low < 0.0 or high > 1.0:
        array = array.clip(0.0, 1.0)
    if array.ndim == 3:
        sums = (array[:, rows].sum(axis=0, dtype=np.float64) for rows in row_bands(array.shape[1:]))
        worst = max(float(np.abs(band - 1.0).max()) for band in sums)
        if worst > 0.02:
            raise InputError(name, f"class probabilities that miss a sum of 1 by {worst:.3g}", "softmax probabilities")
    return array.astype(native if native.itemsize <= 8 else np.float64, copy=False)


def _read_array(path: Path, name: str, max_values: int) -> Array:
    """Read a .npy, or the one array of a .npz, without unpickling and without trusting the header's size."""
    try:
        if path.suffix.lower() == ".npy":
            with opened(path) as stream:
                return _read_npy(stream, name, max_values)
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            members = [m for m in archive.namelist() if m.endswith(".npy")]
            if len(members) != 1:
                raise InputError(name, f"{len(members)} arrays", "a .npz that holds one array")
            with archive.open(members[0]) as stream:
                return _read_npy(stream, name, max_values)
    except FileNotFoundError:
        raise InputError(name, "no such file", "a readable array") from None
    except InputError:
        raise
    except Exception as error:  # numpy's header parser and zipfile's decompressors raise errors of every kind
        raise InputError(name, f"unreadable ({_first_line(error)})", "a .npy or .npz array") from None


def _read_npy(stream: IO[bytes], name: str, max_values: int) -> Array:
    # numpy would reserve as many bytes as the header says it has
    start = io.BytesIO(stream.read(_MAX_NPY_HEADER))
    version = np.lib.format.read_magic(start)  # type: ignore[no-untyped-call]
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise InputError(name, f".npy format {version[0]}.{version[1]}", ".npy format 1.0 or 2.0")
    shape, fortran, dtype = read_header(start)  # type: ignore[no-untyped-call]
    if dtype.hasobject:
        raise InputError(name, "pickled objects", "plain numbers")
    if dtype.kind not in "fiub":
        raise InputError(name, f"values of type {dtype}", "plain numbers")
    if min(shape, default=0) < 0:
        raise InputError(name, f"an array of shape {shape}", "lengths of at least 0")
    count = 1
    for length in shape:
        count *= length
    if count > max_values:
        raise InputError(name, f"{count:,} values", f"at most {max_values:,} (raise the limit with --max-pixels)")
    data = _read_at_most(count * dtype.itemsize, start, stream)
    if len(data) != count * dtype.itemsize:
        raise InputError(name, f"a file cut short at {len(data):,} bytes", f"{count * dtype.itemsize:,} bytes of data")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _read_at_most(size: int, *streams: IO[bytes]) -> bytearray:
    """Bytes of streams one after the other, in pieces: a file that claims a gigabyte and has none costs nothing."""
    data = bytearray()
    for stream in streams:
        while len(data) < size and (piece := stream.read(min(size - len(data), 1 << 24))):
            data += piece
    return data


@contextlib.contextmanager
def _opened(source: Path | BinaryIO, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Open and decode an image; every way in which that can fail becomes one InputError."""
    # Pillow has a limit of its own, for the whole process; it is only ever raised, because threads share it
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        if isinstance(source, Path) and is_remote(source):
            with opened(source) as file:
                source = io.BytesIO(file.read())
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
        found = _first_line(error).split(",")[0]  # Pillow counts the pixels before it names the attack
        raise InputError(name, found, f"at most {max_pixels:,} pixels (raise the limit with --max-pixels)") from None
    except UnidentifiedImageError:
        raise InputError(name, "not an image, whatever its name", f"the format of {' '.join(IMAGE_SUFFIXES)}") from None
    except Exception as error:  # Pillow's decoders raise errors of every kind for damaged files
        raise InputError(name, f"unreadable ({_first_line(error)})", "a complete image file") from None


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    """An RGB image as an array; in bands, because Pillow hands out an image twice over."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        pixels[top : top + rows] = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
    return pixels


def _grey(image: Image.Image, name: str, expected: str) -> Array:
    """The grey levels of an image: uint8, uint16 or float32."""
    if image.mode == "L":
        return np.asarray(image)
    if image.mode == "1":
        return _one_bit(image) * np.uint8(255)
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
    if _is_coloured(image):
        raise InputError(name, "a colour image", expected)
    return np.asarray(image.convert("L"))


def _is_coloured(image: Image.Image) -> bool:
    colour = np.asarray(image.convert("RGB")).astype(np.int16)
    return int((colour.max(axis=2) - colour.min(axis=2)).max(initial=0)) > _COLOUR_TOLERANCE


def _mask_levels(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """The levels of a foreground mask as stored; 16-bit masks that use their high byte are cut to it.

    The colours of a palette that is not grey mean nothing, but its indices may be those of two classes.
    """
    expected = (
        "a grey mask, 0 for background and 255 (or 1) for foreground; for labels of K classes --classes K, or "
        "data.classes=K in training"
    )
    if image.mode == "P" and _is_coloured(image):
        indices = np.asarray(image)
        used = set(np.unique(indices).tolist())
        if not (used <= {0, 1} or used <= {0, 255}):
            raise InputError(name, f"a colour palette with indices up to {max(used)}", expected)
        return indices
    levels = _grey(image, name, expected)
    if levels.dtype == np.uint16:
        return (levels >> 8 if levels.max(initial=0) > 255 else levels).astype(np.uint8)
    if levels.dtype != np.uint8:
        raise InputError(name, f"a mask of type {levels.dtype}", "an 8- or 16-bit mask")
    return levels


def _one_bit(image: Image.Image) -> NDArray[np.bool_]:
    """A 1-bit image as proper booleans: Pillow hands out bytes of 255, which numpy takes for True but adds as 255."""
    return np.asarray(np.asarray(image).view(np.uint8) != 0)


def _label_indices(image: Image.Image, name: str) -> NDArray[np.uint8]:
    if image.mode in ("L", "P"):
        return np.asarray(image)
    if image.mode == "1":
        return _one_bit(image).view(np.uint8)
    labels = _grey(image, name, "a label mask: grey or palette, one index a pixel")
    if labels.max(initial=0) > 255:
        raise InputError(name, f"label {int(labels.max())}", "labels from 0 to 255")
    return labels.astype(np.uint8)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
