"""NRRD volumes, `.nrrd` and `.nhdr`, as lazy arrays (Z, Y, X), with the channel axis wherever it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.readers.raw_values import RawVolume, open_raw
from densecal.io.readers.stored import FileArray, refuse_key

_EXPECTED = "a complete NRRD file"
_TYPES = {
    "signed char": "i1", "int8": "i1", "int8_t": "i1", "uchar": "u1", "unsigned char": "u1", "uint8": "u1",
    "uint8_t": "u1", "short": "i2", "short int": "i2", "signed short": "i2", "int16": "i2", "int16_t": "i2",
    "ushort": "u2", "unsigned short": "u2", "unsigned short int": "u2", "uint16": "u2", "uint16_t": "u2", "int": "i4",
    "signed int": "i4", "int32": "i4", "int32_t": "i4", "uint": "u4", "unsigned int": "u4", "uint32": "u4",
    "uint32_t": "u4", "longlong": "i8", "long long": "i8", "int64": "i8", "int64_t": "i8", "ulonglong": "u8",
    "unsigned long long": "u8", "uint64": "u8", "uint64_t": "u8", "float": "f4", "double": "f8",
}  # fmt: skip
_TO_RAS = {
    "right-anterior-superior": (1, 1, 1), "ras": (1, 1, 1), "left-anterior-superior": (-1, 1, 1), "las": (-1, 1, 1),
    "left-posterior-superior": (-1, -1, 1), "lps": (-1, -1, 1),
}  # fmt: skip
_SPACE = ("space", "domain", "none", "")
"""Kinds of axes that may be spatial."""
_MAX_LINES = 500
_MAX_LINE = 1 << 14

Header = dict[str, str]


@contextmanager
def open_nrrd(path: Path, key: str | None, max_values: int) -> Iterator[FileArray]:
    """Open a NRRD file."""
    name = str(path)
    refuse_key(key, name, "a NRRD file")
    with open_raw(path, _EXPECTED, max_values, lambda stream: _describe(_read_header(stream, name), name)) as array:
        yield array


def _describe(header: Header, name: str) -> RawVolume:
    dtype, shape = _kind(header, name)
    encoding = header["encoding"].lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise InputError(name, f"values in the encoding {encoding!r}", "raw or gzip")
    channels = _channels(header, len(shape), name)
    return RawVolume(
        dtype,
        shape,
        channels=channels,
        geometry=_geometry(header, len(shape), channels),
        detached=header.get("data file", header.get("datafile")),
        gzipped=encoding != "raw",
    )


def _read_header(stream: BinaryIO, name: str) -> Header:
    """Read lines `KEY: VALUE` up to the empty one that ends them."""
    if not stream.readline(_MAX_LINE).startswith(b"NRRD000"):
        raise InputError(name, "not a NRRD file, whatever its name", _EXPECTED)
    header: Header = {}
    for _ in range(_MAX_LINES):
        line = stream.readline(_MAX_LINE).decode("ascii", "replace").rstrip("\r\n")
        if not line:
            break
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#") and not value.startswith("="):
            header[key.strip().lower()] = value.strip()
    missing = next((key for key in ("type", "dimension", "sizes", "encoding") if key not in header), None)
    if missing is not None:
        raise InputError(name, f"no field {missing}", _EXPECTED)
    for skip in ("line skip", "lineskip", "byte skip", "byteskip"):
        if header.get(skip, "0") != "0":
            raise InputError(name, f"the field {skip}", "values from the first byte on")
    return header


def _kind(header: Header, name: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """Return the type of the values and the lengths of the axes, the fastest-varying axis last."""
    kind = _TYPES.get(header["type"].lower())
    if kind is None:
        raise InputError(name, f"values of type {header['type']}", "plain numbers")
    sizes = tuple(int(word) for word in header["sizes"].split())
    if len(sizes) != int(header["dimension"]) or not 2 <= len(sizes) <= 4 or min(sizes) < 1:
        raise InputError(name, f"sizes {sizes}", "two or three spatial axes, and one channel axis")
    big = header.get("endian", "little").lower() == "big"
    return np.dtype(kind).newbyteorder(">" if big else "<"), sizes[::-1]


def _directions(header: Header) -> list[list[float] | None] | None:
    """Return the vector of every axis, ``None`` for an axis that is not spatial."""
    if "space directions" not in header:
        return None
    words = re.findall(r"none|\([^)]*\)", header["space directions"])
    return [None if word == "none" else [float(x) for x in word.strip("()").split(",")] for word in words]


def _channels(header: Header, axes: int, name: str) -> int | None:
    """Return the channel axis in the order of the array, if the header specifies one."""
    kinds = re.findall(r"[^\s\"]+", header.get("kinds", "")) or ["none"] * axes
    directions = _directions(header) or [[]] * axes
    if len(kinds) != axes or len(directions) != axes:
        raise InputError(name, f"{len(kinds)} kinds and {len(directions)} directions", f"{axes}, one per axis")
    others = [
        axis
        for axis in range(axes)
        if directions[axis] is None or (kinds[axis].lower() not in _SPACE and not kinds[axis].startswith("?"))
    ]
    if len(others) > 1:
        raise InputError(name, f"{len(others)} axes that are not of space", "at most one channel axis")
    return axes - 1 - others[0] if others else None


def _geometry(header: Header, axes: int, channels: int | None) -> Geometry | None:
    directions = _directions(header)
    if directions is None:
        return None
    to_ras = np.array(_TO_RAS.get(header.get("space", "").lower(), (1, 1, 1)), np.float64)
    steps = np.array([vector for vector in directions if vector is not None])
    to_ras = to_ras[: steps.shape[1]]
    text = header.get("space origin", "")
    origin = np.array([float(x) for x in text.strip("()").split(",")]) if text else np.zeros(steps.shape[1])
    return Geometry((steps * to_ras)[::-1].copy(), origin * to_ras)
