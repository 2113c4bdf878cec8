"""Probability maps on disk: read and checked, written in chunks of rows so that memory does not grow with classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.atomic import write_atomically
from densecal.io.axes import find_axes
from densecal.io.geometry import Geometry
from densecal.io.images import alpha_levels, grey_levels, open_image, write_png
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.map_values import check_values, to_probabilities
from densecal.io.outputs import NPY_HEADERS, software
from densecal.io.png import read_plain_png
from densecal.io.readers.protocol import LazyArray
from densecal.io.readers.registry import find_reader, other_suffixes
from densecal.io.readers.stack import open_stack
from densecal.io.suffixes import MASK_SUFFIXES

FORMATS = ("png16", "png8", "npy")

_CHUNK_VALUES = 1 << 20
"""So few float64 numbers that ten copies of them take little memory."""
_DTYPES: dict[str, np.dtype[Any]] = {"png16": np.dtype(np.uint16), "png8": np.dtype(np.uint8), "npy": np.dtype("<f4")}

Array = NDArray[Any]
Planes = Callable[[NDArray[np.float64]], Mapping[str, Array]]
"""From probabilities (classes, rows, W) to additional maps (rows, W), by the name of their folder."""


def map_suffixes() -> tuple[str, ...]:
    """Return the suffixes of maps, those of other packages' readers included."""
    return MASK_SUFFIXES + other_suffixes()


@dataclass(frozen=True)
class StoredMap:
    """A prediction map as stored.

    Attributes:
        values: Logits in float64, or levels and floats that are probabilities, (space) or (K, space).
        void: (space), where the file says that there is no data; ``None`` if it says so nowhere.
        geometry: Where the pixels lie, if the format specifies it.
    """

    values: Array
    void: NDArray[np.bool_] | None = None
    geometry: Geometry | None = None


def read_map(
    path: Path | tuple[Path, ...],
    classes: int | None = None,
    max_pixels: int = MAX_PIXELS,
    options: MapOptions = AS_STORED,
) -> Array:
    """Read a prediction map.

    Args:
        path: A file in any format with a reader, an image (8- or 16-bit grey, float TIFF), or a file for every class.
        classes: Expected number of classes; ``None`` or 1 for a foreground probability.
        max_pixels: Refuse larger maps.
        options: How the map is stored.

    Returns:
        (H, W) or (D, H, W) uint8 or uint16 levels, or floats in [0, 1]; (K, H, W) or (K, D, H, W) floats for K classes.
    """
    stored = read_stored_map(path, classes, max_pixels, options)
    if stored.void is not None:
        raise InputError(path if isinstance(path, Path) else path[0], "pixels without data", "a value in every pixel")
    several = classes not in (None, 1)
    return to_probabilities(stored.values, several) if options.logits else stored.values


def read_stored_map(
    source: Path | tuple[Path, ...],
    classes: int | None,
    max_pixels: int,
    options: MapOptions,
    space: int | None = None,
) -> StoredMap:
    """Read a prediction map as `read_map` does, but return logits as they are, in float64.

    Args:
        source: The file, or a file for every class.
        classes: Expected number of classes.
        max_pixels: Refuse larger maps.
        options: How the map is stored.
        space: Axes of space, 2 or 3, where the mask says it.
    """
    paths = (source,) if isinstance(source, Path) else source
    path, name = paths[0], str(paths[0])
    several = classes not in (None, 1)
    void, geometry = None, None
    channels = classes if options.channel is None else options.channel.of
    index = None if options.channel is None else options.channel.index
    if len(paths) > 1 or find_reader(path) is not None:
        with _open(paths, options.key, max_pixels * max(channels or 1, 1)) as stored:
            axes = find_axes(stored, name, channels, options, space)
            array, void = axes.read_with_void(stored, channel=index)
            geometry = axes.geometry(stored)
    elif channels not in (None, classes, 1):
        raise InputError(name, "a picture of one channel", f"{channels} channels, one per region")
    else:
        array = _read_picture(path, name, max_pixels)
    if array.size == 0:
        raise InputError(name, "no pixels", "at least one pixel")
    if void is not None:
        if not void.any():
            void = None
        elif void.all():
            raise InputError(name, "no pixel with data", "at least one")
        else:  # the values there mean nothing, and must not be refused as no probabilities
            array = fill_void(array, void)
    return StoredMap(check_values(array, name, options, several), void, geometry)


def _read_picture(path: Path, name: str, max_pixels: int) -> Array:
    """Read the grey levels of an image."""
    plain = read_plain_png(path, max_pixels)
    if plain is not None:
        return plain * np.uint8(255) if plain.dtype == bool else plain
    with open_image(path, name, max_pixels, "one grey picture, one probability per pixel") as image:
        if alpha_levels(image) is not None:
            raise InputError(name, "transparent pixels", "a grey map without transparency")
        return grey_levels(image, name, "a grey map")


def _open(paths: tuple[Path, ...], key: str | None, max_values: int) -> AbstractContextManager[LazyArray]:
    if len(paths) > 1:
        return open_stack(paths, key, max_values)
    reader = find_reader(paths[0])
    assert reader is not None
    return reader(paths[0], key, max_values)


def fill_void(values: Array, void: NDArray[np.bool_]) -> Array:
    """Return a map with values of its own where it has no data; without any data, all classes are equally likely."""
    filled = np.array(values)
    kept = filled[..., ~void][..., :1]
    equal = 0.5 if filled.shape == void.shape else 1 / len(filled)
    filled[..., void] = kept if kept.size else equal if filled.dtype.kind == "f" else 0
    return filled


def write_map(
    stem: Path, chunks: Iterable[Array], size: tuple[int, int], format: str, command: str, planes: Planes | None = None
) -> None:
    """Write a map as PNG or .npy, and the maps computed from it into folders beside it.

    Args:
        stem: The file without its suffix; may contain dots.
        chunks: Probabilities (classes, rows, W) from top to bottom.
        size: Height and width of the whole map.
        format: One of ``FORMATS``; PNG is for one class.
        command: The command that writes it, by which it recognises its files.
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
        write_atomically(
            _with_suffix(stem, ".npy"), lambda stream: _save_chunks(stream, encode_chunks(), size, command)
        )
    else:
        write_plane(stem, np.concatenate([chunk[0] for chunk in encode_chunks()]), command)
    for name, plane in extra.items():
        write_plane(stem.parent / name / stem.name, plane, command)


def write_plane(stem: Path, values: Array, command: str) -> None:
    """Write a whole map for a command: 8- or 16-bit levels as PNG, floats as .npy. The stem may contain dots."""
    if np.issubdtype(values.dtype, np.floating):

        def write(stream: BinaryIO) -> None:
            _write_npy_header(stream, values.dtype.str, values.shape, command)
            stream.write(values.tobytes())

        write_atomically(_with_suffix(stem, ".npy"), write)
    else:
        write_png(_with_suffix(stem, ".png"), values, software(command))


def map_targets(folder: Path, stems: Iterable[str], kinds: Iterable[str]) -> list[tuple[Path, str]]:
    """Return the files that maps of these stems may get, each with its kind, ``png`` or ``npy``."""
    kinds = list(kinds)
    return [(_with_suffix(folder / stem, f".{kind}"), kind) for stem in stems for kind in kinds]


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


def _write_npy_header(stream: BinaryIO, dtype: str, shape: tuple[int, ...], command: str) -> None:
    """Write the header of a .npy file of format 1.0, padded to the length that names the command."""
    start = b"\x93NUMPY\x01\x00" + (NPY_HEADERS[command] - 10).to_bytes(2, "little")
    about = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode("ascii")
    stream.write((start + about).ljust(NPY_HEADERS[command] - 1) + b"\n")


def _save_chunks(stream: BinaryIO, chunks: Iterable[Array], size: tuple[int, int], command: str) -> None:
    """Write a .npy file, (H, W) for one class and (classes, H, W) for several, chunk by chunk."""
    height, width = size
    start = top = 0
    for chunk in chunks:
        if not start:
            shape = size if len(chunk) == 1 else (len(chunk), *size)
            _write_npy_header(stream, "<f4", shape, command)
            start = stream.tell()
        for channel, rows in enumerate(chunk):
            stream.seek(start + 4 * width * (channel * height + top))
            stream.write(rows.tobytes())
        top += chunk.shape[1]
