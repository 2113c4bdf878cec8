"""Arrays on disk, `.npy` and `.npz`. Nothing is unpickled, and no header is trusted."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.archives import Archive
from densecal.io.images import first_line
from densecal.io.spool import Readable, spooled
from densecal.io.urls import open_bytes

_MAX_NPY_HEADER = 1 << 14
"""Longest header. NumPy refuses more than 10,000 characters, but only after it has read them."""

_MAX_ITEM_BYTES = 16
"""Size of the longest float, with the padding of some machines."""

_NAMED = 5
"""Number of arrays of an archive that an error names."""

Array = NDArray[Any]


@dataclass(frozen=True)
class NpyHeader:
    """The content of the header of a .npy file.

    Attributes:
        size: Number of bytes of the header. The values follow it.
        dtype: Type of the values.
        shape: Shape of the array.
        fortran: Whether the first axis varies fastest.
    """

    size: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def end(self) -> int:
        """Number of bytes up to the last value."""
        return self.size + math.prod(self.shape) * self.dtype.itemsize


@contextmanager
def open_numbers(path: Path, name: str, max_values: int, key: str | None) -> Iterator[tuple[BinaryIO, NpyHeader]]:
    """Open a .npy file, or an array of a .npz file, without unpickling or trusting the size in its header.

    Args:
        path: The file.
        name: Name of the file in error messages.
        max_values: Refuse larger arrays.
        key: Name of the array in a .npz file; its only array unless given.

    Yields:
        A stream of the whole .npy content, and its header. A compressed array is decompressed into memory, or into a
        temporary file if it is long.
    """
    with ExitStack() as stack:
        try:
            if path.suffix.lower() == ".npy":
                stream = stack.enter_context(open_bytes(path))
                header = _read_header(_read_at_most(_MAX_NPY_HEADER, stream), name, max_values)
            else:
                archive = stack.enter_context(Archive(path, "a .npz array"))
                members = [info for info in archive.members if info.filename.endswith(".npy")]
                member = members[_choose([info.filename.removesuffix(".npy") for info in members], name, key)]
                limit = max_values * _MAX_ITEM_BYTES + _MAX_NPY_HEADER
                content = archive.open(member, name, limit)
                start = _read_at_most(_MAX_NPY_HEADER, content)
                header = _read_header(start, name, max_values)
                stream = stack.enter_context(spooled(_Joined(start, content), header.end))
            _check_length(stream, name, header)
        except FileNotFoundError:
            raise InputError(name, "no such file", "a readable array") from None
        except (InputError, NameError):
            raise
        except Exception as error:  # numpy's header parser and the decompressors raise errors of every kind
            raise InputError(name, f"unreadable ({first_line(error)})", "a .npy or .npz array") from None
        yield stream, header


class _Joined:
    """The bytes that were read from a stream already, followed by the rest of it."""

    def __init__(self, start: bytearray, rest: Readable) -> None:
        self._start, self._rest = start, rest

    def read(self, size: int, /) -> bytes:
        if not self._start:
            return self._rest.read(size)
        piece = bytes(self._start[:size])
        del self._start[:size]
        return piece


def _choose(names: list[str], name: str, key: str | None) -> int:
    """Return which array of an archive to read."""
    first_names = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    count = f"{len(names)} arrays" + (f" ({first_names})" if names else "")
    if key is None:
        if len(names) != 1:
            expected = "a .npz that holds one array" + ("; --key NAME reads one of several" if names else "")
            raise InputError(name, count, expected)
        return 0
    if key not in names:
        raise InputError(name, count, f"an array named {key} (--key)")
    return names.index(key)


def _read_header(content: bytearray, name: str, max_values: int) -> NpyHeader:
    """Return the header at the start of a .npy file."""
    start = io.BytesIO(content)
    version = np.lib.format.read_magic(start)  # type: ignore[no-untyped-call]
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise InputError(name, f".npy format {version[0]}.{version[1]}", ".npy format 1.0 or 2.0")
    try:
        shape, fortran, dtype = read_header(start)  # type: ignore[no-untyped-call]
    except (MemoryError, RecursionError):  # the small stack of Python's parser overflows
        raise InputError(name, "unreadable (a header nested too deeply)", "a .npy or .npz array") from None
    if dtype.hasobject:
        raise InputError(name, "pickled objects", "plain numbers")
    if dtype.kind not in "fiub":
        raise InputError(name, f"values of type {dtype}", "plain numbers")
    if min(shape, default=0) < 0:
        raise InputError(name, f"an array of shape {shape}", "lengths of at least 0")
    count = math.prod(shape)
    if count > max_values:
        raise InputError(name, f"{count:,} values", f"at most {max_values:,} (raise the limit with --max-pixels)")
    return NpyHeader(start.tell(), dtype, shape, fortran)


def _check_length(stream: BinaryIO, name: str, header: NpyHeader) -> None:
    """Refuse a file that is shorter than its header claims, before memory is reserved for it."""
    length = stream.seek(0, io.SEEK_END) - header.size
    if length < header.end - header.size:
        expected = f"{header.end - header.size:,} bytes of data"
        raise InputError(name, f"a file cut short at {length:,} bytes", expected)


def _read_at_most(size: int, stream: Readable) -> bytearray:
    """Read the start of a stream."""
    data = bytearray()
    while len(data) < size and (piece := stream.read(size - len(data))):
        data += piece
    return data
