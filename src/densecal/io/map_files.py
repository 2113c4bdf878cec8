"""Probability maps on disk: read and checked, written in chunks of rows so that memory does not grow with classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.arrays import ARRAY_SUFFIXES, read_array
from densecal.io.atomic import write_atomically
from densecal.io.images import IMAGE_SUFFIXES, grey_levels, open_image, write_png
from densecal.io.row_chunks import row_chunks

MAP_SUFFIXES = IMAGE_SUFFIXES + ARRAY_SUFFIXES
FORMATS = ("png16", "png8", "npy")

_SLACK = 1e-6
"""How far float maps may lie outside [0, 1]: float32 interpolation leaves 1.0000001."""
_CHUNK_VALUES = 1 << 20
"""So few float64 numbers that ten copies of them take little memory."""
_DTYPES: dict[str, np.dtype[Any]] = {"png16": np.dtype(np.uint16), "png8": np.dtype(np.uint8), "npy": np.dtype("<f4")}

Array = NDArray[Any]
Planes = Callable[[NDArray[np.float64]], Mapping[str, Array]]
"""From probabilities (classes, rows, W) to additional maps (rows, W), by the name of their folder."""


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
        array = read_array(path, name, max_pixels * max(classes or 1, 1))
    else:
        with open_image(path, name, max_pixels) as image:
            array = grey_levels(image, name, "a grey map")
    return _check_map(array, name, classes)


def _check_map(array: Array, name: str, classes: int | None) -> Array:
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    binary = classes in (None, 1)
    if array.ndim != (2 if binary else 3) or (array.ndim == 3 and array.shape[0] != classes):
        wanted = "shape (H, W)" if binary else f"shape ({classes}, H, W), one probability per class"
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
        sums = (array[:, rows].sum(axis=0, dtype=np.float64) for rows in row_chunks(array.shape[1:]))
        worst = max(float(np.abs(chunk - 1.0).max()) for chunk in sums)
        if worst > 0.02:
            raise InputError(name, f"class probabilities that miss a sum of 1 by {worst:.3g}", "softmax probabilities")
    return array.astype(native if native.itemsize <= 8 else np.float64, copy=False)


def write_map(
    stem: Path, chunks: Iterable[Array], size: tuple[int, int], format: str, planes: Planes | None = None
) -> None:
    """Write a map as PNG or .npy, and the maps computed from it into folders beside it.

    Args:
        stem: The file without its suffix; may contain dots.
        chunks: Probabilities (classes, rows, W) from top to bottom.
        size: Height and width of the whole map.
        format: One of ``FORMATS``; PNG is for one class.
        planes: Computes the additional maps.
    """
    extra: dict[str, Array] = {}

    def encode_chunks() -> Iterator[Array]:
        top = 0
        for p in _split_rows(chunks):
            rows = slice(top, top + p.shape[1])
            top = rows.stop
            for name, values in (planes(p) if planes else {}).items():
                extra.setdefault(name, np.empty(size, _DTYPES[format]))[rows] = _encode(values, format)
            yield _encode(p, format)

    if format == "npy":
        write_atomically(_with_suffix(stem, ".npy"), lambda stream: _save_chunks(stream, encode_chunks(), size))
    else:
        write_plane(stem, np.concatenate([chunk[0] for chunk in encode_chunks()]))
    for name, plane in extra.items():
        write_plane(stem.parent / name / stem.name, plane)


def write_plane(stem: Path, values: Array) -> None:
    """Write a whole map: 8- or 16-bit levels as PNG, floats as .npy. The stem may contain dots."""
    if np.issubdtype(values.dtype, np.floating):
        write_atomically(_with_suffix(stem, ".npy"), lambda stream: np.save(stream, values))
    else:
        write_png(_with_suffix(stem, ".png"), values)


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


def _split_rows(chunks: Iterable[Array]) -> Iterator[NDArray[np.float64]]:
    """Yield smaller chunks, in float64."""
    for chunk in chunks:
        rows = max(1, _CHUNK_VALUES // (chunk.shape[0] * chunk.shape[2]))
        for first in range(0, chunk.shape[1], rows):
            yield chunk[:, first : first + rows].astype(np.float64)


def _encode(p: Array, format: str) -> Array:
    """Return probabilities as the numbers that a file stores."""
    kind = _DTYPES[format]
    return np.asarray(p.astype(kind) if format == "npy" else np.rint(p * np.iinfo(kind).max).astype(kind))


def _save_chunks(stream: BinaryIO, chunks: Iterable[Array], size: tuple[int, int]) -> None:
    """Write a .npy file, (H, W) for one class and (classes, H, W) for several, chunk by chunk."""
    height, width = size
    start = top = 0
    for chunk in chunks:
        if not start:
            shape = size if len(chunk) == 1 else (len(chunk), *size)
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
            start = stream.tell()
        for channel, rows in enumerate(chunk):
            stream.seek(start + 4 * width * (channel * height + top))
            stream.write(rows.tobytes())
        top += chunk.shape[1]
