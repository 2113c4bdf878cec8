"""Arrays on disk, `.npy` and `.npz`. Nothing is unpickled, and no header is trusted."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.images import first_line
from densecal.io.urls import open_bytes

ARRAY_SUFFIXES = (".npy", ".npz")

_MAX_NPY_HEADER = 1 << 14
"""numpy refuses headers of more than 10,000 characters, but only after it has read them."""

Array = NDArray[Any]


def read_array(path: Path, name: str, max_values: int) -> Array:
    """Read a .npy file, or the only array of a .npz file, without unpickling or trusting the size in its header."""
    try:
        if path.suffix.lower() == ".npy":
            with open_bytes(path) as stream:
                return _read_npy(stream, name, max_values)
        with open_bytes(path) as file, zipfile.ZipFile(file) as archive:
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
        raise InputError(name, f"unreadable ({first_line(error)})", "a .npy or .npz array") from None


def _read_npy(stream: IO[bytes], name: str, max_values: int) -> Array:
    # numpy would allocate as many bytes as the header claims
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
    """Read streams one after the other, in pieces, so that a file that only claims a gigabyte costs no memory."""
    data = bytearray()
    for stream in streams:
        while len(data) < size and (piece := stream.read(min(size - len(data), 1 << 24))):
            data += piece
    return data
