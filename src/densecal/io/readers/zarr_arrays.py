"""Zarr arrays and OME-Zarr images, which are folders, as lazy arrays.

Chunks are read here and not by the package zarr, which decompresses content of any length and waits for pipes. Its
companions numcodecs and google-crc32c decompress them.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.readers.protocol import Window
from densecal.io.readers.stored import (
    check_numbers,
    check_size,
    choose_array,
    find_void,
    missing_extra,
    readable,
    refuse_scaled,
    void_marks,
)
from densecal.io.readers.zarr_chunks import Chain
from densecal.io.readers.zarr_metadata import EXPECTED, Layout, array_names, is_group, layout, parts, read_metadata
from densecal.io.regular import kind_of
from densecal.io.urls import open_bytes

_MILLIMETRES = {
    "nanometer": 1e-6, "micrometer": 1e-3, "millimeter": 1.0, "centimeter": 10.0, "meter": 1000.0,
}  # fmt: skip


class _ZarrArray:
    """An array of a Zarr folder, without its time axis, which must have length 1."""

    def __init__(
        self, stored: Layout, name: str, axes: list[dict[str, Any]], geometry: Geometry | None, marks: list[Any]
    ) -> None:
        self._stored, self._name, self._marks = stored, name, marks
        self.geometry = geometry
        self.dtype: np.dtype[Any] = stored.chain.dtype.newbyteorder("=")
        kinds = [axis.get("type", "space") for axis in axes] or ["space"] * len(stored.shape)
        self._times = tuple(position for position, kind in enumerate(kinds) if kind == "time")
        kept = [(kind, length) for kind, length in zip(kinds, stored.shape, strict=True) if kind != "time"]
        self.shape = tuple(length for _, length in kept)
        self.channels = next((position for position, (kind, _) in enumerate(kept) if kind == "channel"), None)

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values from the files."""
        slices = [*window, *(slice(None) for _ in self.shape[len(window) :])]
        for time in self._times:
            slices.insert(time, slice(None))
        ranges = [range(length)[part] for length, part in zip(self._stored.shape, slices, strict=True)]
        values = np.full([len(part) for part in ranges], self._stored.fill, self.dtype)
        with readable(self._name, EXPECTED):
            for position in parts(self._stored.chain.shape, ranges):
                chunk = self._chunk(position)
                if chunk is not None:
                    inside, outside = _overlap(position, self._stored.chain.shape, ranges)
                    values[outside] = chunk[inside]
        return values.squeeze(self._times)

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return where the attributes say that there is no data."""
        return find_void(self.read(window), self._marks) if self._marks else None

    def _chunk(self, position: tuple[int, ...]) -> NDArray[Any] | None:
        """Return the values of a chunk; ``None`` where it is not stored, because all are the fill value."""
        stored = self._stored
        if stored.index is None:
            content = _content(stored.file(position), 0, None, stored.chain.most_bytes)
            return None if content is None else stored.chain.decode(content)
        counts = stored.index.shape[:-1]
        file = stored.file(tuple(one // count for one, count in zip(position, counts, strict=True)))
        index = _shard_index(file, stored.index, stored.index_first)
        if index is None:
            return None
        start, length = index[tuple(one % count for one, count in zip(position, counts, strict=True))].tolist()
        if start == length == 2**64 - 1:
            return None
        content = _content(file, start, length, stored.chain.most_bytes)
        return None if content is None else stored.chain.decode(content)


@contextmanager
def open_zarr(path: Path, key: str | None, max_values: int) -> Iterator[_ZarrArray]:
    """Open a Zarr array: the folder itself, the full resolution of an OME-Zarr image, or an array in a group."""
    name = str(path)
    try:
        import google_crc32c  # noqa: F401
        import numcodecs  # noqa: F401
    except ModuleNotFoundError:
        raise missing_extra(name, "numcodecs", "zarr") from None
    _shard_index.cache_clear()
    with readable(name, EXPECTED):
        if kind_of(path) not in (None, "a folder"):
            raise InputError(name, kind_of(path) or "", EXPECTED)
        folder = path
        about, attributes = read_metadata(folder)
        axes: list[dict[str, Any]] = []
        geometry = None
        if is_group(about):
            scales = attributes.get("ome", attributes).get("multiscales")
            if scales and key is None:
                image = scales[0]["datasets"][0]
                axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in scales[0].get("axes", [])]
                geometry = _geometry(axes, image.get("coordinateTransformations", []))
                folder = _inside(path, str(image["path"]))
            else:
                folder = _inside(path, choose_array(array_names(path), name, key, "a group"))
            about, attributes = read_metadata(folder)
        stored = layout(folder, about)
        check_numbers(stored.chain.dtype, name)
        refuse_scaled(attributes.get("scale_factor", 1), attributes.get("add_offset", 0), name)
        check_size(stored.shape, name, max_values)
        check_size(stored.chain.shape, name, max(max_values, 1 << 22))
        if stored.index is not None:
            check_size(stored.index.shape, name, max(max_values, 1 << 22))
        dtype = stored.chain.dtype.newbyteorder("=")
        if about.get("zarr_format") == 2 and "_ARRAY_DIMENSIONS" in attributes:  # xarray puts _FillValue there
            attributes = {"_FillValue": about.get("fill_value"), **attributes}
        given = {key: _as_float(value) for key, value in attributes.items()} if dtype.kind == "f" else attributes
        array = _ZarrArray(stored, name, axes, geometry, void_marks(given, dtype, name))
        if math.prod(stored.shape) != math.prod(array.shape):
            raise InputError(name, "several points in time", "a single point in time")
    yield array


def _as_float(value: Any) -> Any:
    """Return a float that is stored as text: NaN, infinity, or its bytes in base64, as xarray writes them."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    try:
        return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
    except (TypeError, ValueError, struct.error):
        return value


def _inside(folder: Path, name: str) -> Path:
    """Return a folder by its path inside another."""
    words = name.split("/")
    if any(word in ("", ".", "..") or "\\" in word for word in words):
        raise InputError(folder, f"an array at {name!r}", "one inside this folder")
    return folder.joinpath(*words)


def _content(file: Path, start: int, length: int | None, limit: int) -> bytes | None:
    """Return some bytes of a file, or all if no length is given; ``None`` if there is no file.

    Raises:
        ValueError: There are too many or too few.
    """
    try:
        stream = open_bytes(file)
    except FileNotFoundError:
        return None
    with stream:
        if (limit if length is None else length) > limit:
            raise ValueError(f"a chunk of {length:,} bytes")
        stream.seek(start)
        content = stream.read(limit + 1 if length is None else length)
    if len(content) > limit or (length is not None and len(content) < length):
        raise ValueError(f"a chunk of {len(content):,} bytes")
    return content


@lru_cache(maxsize=4)
def _shard_index(file: Path, chain: Chain, first: bool) -> NDArray[np.uint64] | None:
    """Return the offset and the length of every chunk in a file of many chunks; ``None`` if there is no file."""
    try:
        stream = open_bytes(file)
    except FileNotFoundError:
        return None
    length = chain.size + 4 * len(chain.compressors)
    with stream:
        stream.seek(0 if first else max(0, stream.seek(0, 2) - length))
        return chain.decode(stream.read(length))


def _overlap(
    position: tuple[int, ...], shape: tuple[int, ...], ranges: list[range]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the part of a chunk that lies in a window, and its position in the window."""
    inside, outside = [], []
    for number, length, wanted in zip(position, shape, ranges, strict=True):
        first, last = max(number * length, wanted.start), min((number + 1) * length, wanted.stop)
        inside.append(slice(first - number * length, last - number * length))
        outside.append(slice(first - wanted.start, last - wanted.start))
    return tuple(inside), tuple(outside)


def _geometry(axes: list[dict[str, Any]], transformations: list[dict[str, Any]]) -> Geometry | None:
    space = [position for position, axis in enumerate(axes) if axis.get("type") == "space"]
    scale = next((entry["scale"] for entry in transformations if entry.get("type") == "scale"), None)
    if not space or scale is None:
        return None
    shift = next((entry["translation"] for entry in transformations if entry.get("type") == "translation"), None)
    units = [_MILLIMETRES.get(axes[position].get("unit", ""), 1.0) for position in space]
    steps = np.diag([float(scale[position]) * unit for position, unit in zip(space, units, strict=True)])
    origin = [0.0 if shift is None else float(shift[p]) * unit for p, unit in zip(space, units, strict=True)]
    return Geometry(steps, np.array(origin), "OME-Zarr")
