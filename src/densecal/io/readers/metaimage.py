"""MetaImage volumes of ITK, `.mha` and `.mhd`, as lazy arrays (Z, Y, X, channels)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.readers.raw_values import RawVolume, open_raw
from densecal.io.readers.stored import FileArray, refuse_key

_EXPECTED = "a complete MetaImage file"
_TYPES = {
    "MET_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2", "MET_INT": "i4", "MET_UINT": "u4",
    "MET_LONG": "i4", "MET_ULONG": "u4", "MET_LONG_LONG": "i8", "MET_ULONG_LONG": "u8", "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}  # fmt: skip
_MAX_LINES = 200
_MAX_LINE = 1 << 12
_TO_RAS = np.array([-1.0, -1.0, 1.0])
"""The axes of ITK's world point to the left and to posterior."""

Header = dict[str, str]


@contextmanager
def open_metaimage(path: Path, key: str | None, max_values: int) -> Iterator[FileArray]:
    """Open a MetaImage file."""
    name = str(path)
    refuse_key(key, name, "a MetaImage file")
    with open_raw(path, _EXPECTED, max_values, lambda stream: _describe(_read_header(stream, name), name)) as array:
        yield array


def _describe(header: Header, name: str) -> RawVolume:
    dtype, shape = _kind(header, name)
    gzipped = header.get("CompressedData", "False").lower() == "true"
    is_local = header["ElementDataFile"] in ("LOCAL", "Local", "local")
    axes = len(shape) - 1
    return RawVolume(
        dtype,
        shape,
        channels=axes,
        geometry=_geometry(header, axes),
        detached=None if is_local else header["ElementDataFile"],
        gzipped=gzipped,
        at_end=not gzipped and int(header.get("HeaderSize", "0")) == -1,
    )


def _read_header(stream: BinaryIO, name: str) -> Header:
    """Read lines `KEY = VALUE` up to the one that locates the values."""
    header: Header = {}
    for _ in range(_MAX_LINES):
        line = stream.readline(_MAX_LINE)
        key, equals, value = line.decode("ascii", "replace").partition("=")
        if not equals:
            break
        header[key.strip()] = value.strip()
        if key.strip() == "ElementDataFile":
            return header
    raise InputError(name, "no line ElementDataFile", _EXPECTED)


def _kind(header: Header, name: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """Return the type of the values and the shape (Z, Y, X, channels)."""
    kind = _TYPES.get(header.get("ElementType", ""))
    if kind is None or header.get("BinaryData", "True").lower() != "true":
        raise InputError(name, f"values of type {header.get('ElementType', 'unknown')} or text", "plain numbers")
    big = header.get("BinaryDataByteOrderMSB", header.get("ElementByteOrderMSB", "False")).lower() == "true"
    lengths = tuple(int(word) for word in header["DimSize"].split())
    channels = int(header.get("ElementNumberOfChannels", "1"))
    if len(lengths) != int(header.get("NDims", len(lengths))) or len(lengths) not in (2, 3) or min(lengths) < 1:
        raise InputError(name, f"lengths {lengths}", "two or three spatial axes")
    if channels < 1:
        raise InputError(name, f"{channels} channels", "at least 1")
    return np.dtype(kind).newbyteorder(">" if big else "<"), (*lengths[::-1], channels)


def _geometry(header: Header, axes: int) -> Geometry:
    spacing = _numbers(header, ("ElementSpacing", "ElementSize"), np.ones(axes))
    directions = _numbers(header, ("TransformMatrix", "Rotation", "Orientation"), np.eye(axes).ravel())
    origin = _numbers(header, ("Offset", "Position", "Origin"), np.zeros(axes))
    to_ras = _TO_RAS[:axes]
    steps = directions.reshape(axes, axes) * spacing[:, None] * to_ras
    return Geometry(steps[::-1].copy(), origin * to_ras)


def _numbers(header: Header, keys: tuple[str, ...], default: NDArray[np.float64]) -> NDArray[np.float64]:
    text = next((header[key] for key in keys if key in header), None)
    return default if text is None else np.array([float(word) for word in text.split()])[: len(default)]
