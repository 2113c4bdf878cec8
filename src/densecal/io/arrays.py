"""Arrays on disk, `.npy` and `.npz`. Nothing is unpickled, and no header is trusted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.archives import Archive
from densecal.io.images import first_line
from densecal.io.urls import open_bytes

ARRAY_SUFFIXES = (".npy", ".npz")

_MAX_NPY_HEADER = 1 << 14
"""numpy refuses headers of more than 10,000 characters, but only after it has read them."""

_MAX_ITEM_BYTES = 16
"""Size of the longest float, with the padding of some machines."""

_NAMED = 5
"""How many arrays of an archive an error names."""

Array = NDArray[Any]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_array(path: Path, name: str, max_values: int, key: str | None = None) -> Array:
    """Read a .npy file, or an array of a .npz file, without unpickling or trusting the size in its header.

    Args:
        path: The file.
        name: What errors call the file.
        max_values: Refuse larger arrays.
        key: Name of the array in a .npz file; its only array unless given.
    """
    try:
        if path.suffix.lower() == ".npy":
            with open_bytes(path) as stream:
                return _read_npy(stream, name, max_values)
        with Archive(path, "a .npz array") as archive:
            members = [info for info in archive.members if info.filename.endswith(".npy")]
            member = _choose([info.filename.removesuffix(".npy") for info in members], name, key)
            limit = max_values * _MAX_ITEM_BYTES + _MAX_NPY_HEADER
            return _read_npy(archive.open(members[member], name, limit), name, max_values)
    except FileNotFoundError:
        raise InputError(name, "no such file", "a readable array") from None
    except InputError:
        raise
    except Exception as error:  # numpy's header parser and the decompressors raise errors of every kind
        raise InputError(name, f"unreadable ({first_line(error)})", "a .npy or .npz array") from None


def _choose(names: list[str], name: str, key: str | None) -> int:
    """Return which array of an archive to read."""
    listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    many = f"{len(names)} arrays" + (f" ({listed})" if names else "")
    if key is None:
        if len(names) != 1:
            expected = "a .npz that holds one array" + ("; --key NAME reads one of several" if names else "")
            raise InputError(name, many, expected)
        return 0
    if key not in names:
        raise InputError(name, many, f"an array named {key} (--key)")
    return names.index(key)


def _read_npy(stream: _Readable, name: str, max_values: int) -> Array:
    # numpy would allocate as many bytes as the header claims
    start = io.BytesIO(_read_at_most(_MAX_NPY_HEADER, stream))
    version = np.lib.format.read_magic(start)  # type: ignore[no-untyped-call]
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise InputError(name, f".npy format {version[0]}.{version[1]}", ".npy format 1.0 or 2.0")
    try:
        shape, fortran, dtype = read_header(start)  # type: ignore[no-untyped-call]
    except (MemoryError, RecursionError):  # Python's parser has a small stack of its own, and says so in this way
        raise InputError(name, "unreadable (a header nested too deeply)", "a .npy or .npz array") from None
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


def _read_at_most(size: int, *streams: _Readable) -> bytearray:
    """Read streams one after the other, in pieces, so that a file that only claims a gigabyte costs no memory."""
    data = bytearray()
    for stream in streams:
        while len(data) < size and (piece := stream.read(min(size - len(data), 1 << 24))):
            data += piece
    return data
