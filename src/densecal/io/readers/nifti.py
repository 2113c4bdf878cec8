"""NIfTI volumes, `.nii` and `.nii.gz`, as lazy arrays (channels, Z, Y, X). The header is read by nibabel."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry, medical_geometry
from densecal.io.readers.stored import (
    FileArray,
    check_numbers,
    check_size,
    missing_extra,
    readable,
    refuse_key,
)
from densecal.io.spool import spooled
from densecal.io.urls import open_bytes

_EXPECTED = "a complete NIfTI file"
_SIZES = {348: "Nifti1Header", 540: "Nifti2Header"}
_MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
_MAX_EXTENSIONS = 1 << 24
"""Number of bytes between header and values."""


@contextmanager
def open_nifti(path: Path, key: str | None, max_values: int) -> Iterator[FileArray]:
    """Open a NIfTI file; (X, Y, Z, T, C) becomes (C, Z, Y, X), where one of T and C is 1."""
    name = str(path)
    refuse_key(key, name, "a NIfTI file")
    with ExitStack() as stack:
        with readable(name, _EXPECTED):
            stream = stack.enter_context(open_bytes(path))
            if stream.read(2) == b"\x1f\x8b":
                stream.seek(0)
                plain = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=stream)))
                header = read_header(plain, name)
                size = _check(header, name, max_values)
                plain.seek(0)
                stream = stack.enter_context(spooled(plain, size))
            else:
                stream.seek(0)
                header = read_header(stream, name)
                size = _check(header, name, max_values)
            if stream.seek(0, 2) < size:
                raise InputError(name, "a file cut short", _EXPECTED)
            x, y, z, channels = _lengths(header, name)
            array = FileArray(
                stream, name, int(header.get_data_offset()), header.get_data_dtype(), (channels, z, y, x), 0,
                _geometry(header), _scaling(header),
            )  # fmt: skip
        yield array


def read_header(stream: BinaryIO, name: str) -> Any:
    """Return the header at the beginning of a NIfTI file as nibabel's object, without extensions."""
    try:
        import nibabel
    except ModuleNotFoundError:
        raise missing_extra(name, "nibabel", "medical") from None
    start = stream.read(4)
    kind = _SIZES.get(int.from_bytes(start, "little"), _SIZES.get(int.from_bytes(start, "big")))
    if kind is None:
        raise InputError(name, "not a NIfTI file, whatever its name", _EXPECTED)
    # no extensions follow, whatever the file claims: they may have any length
    size = int(kind == "Nifti2Header") * 192 + 348
    header = getattr(nibabel, kind).from_fileobj(io.BytesIO(start + stream.read(size - 4) + bytes(4)))
    if not bytes(header["magic"]).startswith((b"n+1", b"n+2")):
        raise InputError(name, "a header without its values", "one file of header and values")
    return header


def _check(header: Any, name: str, max_values: int) -> int:
    """Refuse unsupported files, and return the number of bytes up to the last value."""
    dtype, offset = header.get_data_dtype(), int(header.get_data_offset())
    check_numbers(dtype, name)
    check_size(header.get_data_shape(), name, max_values)
    if not 0 <= offset <= _MAX_EXTENSIONS:
        raise InputError(name, f"values from byte {offset:,} on", _EXPECTED)
    return offset + math.prod(_lengths(header, name)) * int(dtype.itemsize)


def _lengths(header: Any, name: str) -> tuple[int, int, int, int]:
    """Return the shape (X, Y, Z) and the number of channels."""
    shape = tuple(int(length) for length in header.get_data_shape())
    x, y, z, *others = (*shape, *(1,) * (3 - len(shape)))
    if min((x, y, z, *others)) < 1 or sum(length > 1 for length in others) > 1:
        raise InputError(name, f"an array of shape {shape}", "(X, Y, Z), or (X, Y, Z, channels)")
    return x, y, z, math.prod(others)


def _geometry(header: Any) -> Geometry:
    scale = _MILLIMETRES.get(header.get_xyzt_units()[0], 1.0)
    geometry = medical_geometry(np.asarray(header.get_best_affine(), np.float64))
    return Geometry(geometry.steps * scale, geometry.origin * scale)


def _scaling(header: Any) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
    slope, intercept = header.get_slope_inter()
    if slope is None or (slope, intercept) == (1.0, 0.0):
        return None
    return lambda values: values * np.float64(slope) + np.float64(intercept)
