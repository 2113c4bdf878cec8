"""Volumes of a text header and plain numbers: after the header or in a file beside it, compressed or not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.inflate import Inflated
from densecal.io.readers.stored import FileArray, check_size, readable
from densecal.io.spool import spooled
from densecal.io.urls import open_bytes


@dataclass(frozen=True)
class RawVolume:
    """What a header says of its values.

    Attributes:
        dtype: Their type, with its byte order.
        shape: Lengths of the axes, the fastest-varying axis last.
        channels: The channel axis, if there is one.
        geometry: Where voxels lie, if the header says so.
        detached: The name of another file that holds the values, if there is one.
        gzipped: Whether the values are compressed.
        at_end: Whether the values are the last bytes of their file, wherever the header ends.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    channels: int | None
    geometry: Geometry | None
    detached: str | None
    gzipped: bool
    at_end: bool = False


@contextmanager
def open_raw(
    path: Path, expected: str, max_values: int, read_header: Callable[[BinaryIO], RawVolume]
) -> Iterator[FileArray]:
    """Open the values of a volume whose header `read_header` reads from the beginning of the file."""
    name = str(path)
    with ExitStack() as stack:
        with readable(name, expected):
            stream = stack.enter_context(open_bytes(path))
            volume = read_header(stream)
            check_size(volume.shape, name, max_values)
            size = math.prod(volume.shape) * volume.dtype.itemsize
            stream, offset = _open_values(stack, path, stream, volume.detached, volume.gzipped, size)
            end = stream.seek(0, 2)
            if volume.at_end:
                offset = end - size
            if offset < 0 or end < offset + size:
                raise InputError(name, "a file cut short", expected)
            array = FileArray(stream, name, offset, volume.dtype, volume.shape, volume.channels, volume.geometry)
        yield array


def _open_values(
    stack: ExitStack, header: Path, stream: BinaryIO, detached: str | None, gzipped: bool, size: int
) -> tuple[BinaryIO, int]:
    """Open the values that a header describes.

    Args:
        stack: Closes the files that are opened.
        header: The file that holds the header.
        stream: Its content, read up to the end of the header.
        detached: The name of another file that holds the values, if there is one.
        gzipped: Whether the values are compressed.
        size: Number of bytes of the values.

    Returns:
        A file with the uncompressed values, and the offset of the first.

    Raises:
        InputError: The name of the other file leads to another folder, or names several files.
    """
    offset = stream.tell()
    if detached is not None:
        stream, offset = stack.enter_context(open_bytes(_neighbour(header, detached))), 0
    if gzipped:
        stream.seek(offset)
        stream, offset = stack.enter_context(spooled(Inflated(stream, zlib.decompressobj(47)), size)), 0
    return stream, offset


def _neighbour(header: Path, name: str) -> Path:
    """Return the file that a header names, which must lie in the same folder."""
    if "/" in name or "\\" in name or name in ("", ".", "..", "LIST") or "%" in name or name.startswith("LIST "):
        raise InputError(header, f"values in {name!r}", "one file of values in the folder of the header")
    return header.with_name(name)
