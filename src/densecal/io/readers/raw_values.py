"""Location of the plain numbers of a volume: after the header or in a file beside it, compressed or not."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from densecal.errors import InputError
from densecal.io.inflate import Inflated
from densecal.io.spool import spooled
from densecal.io.urls import open_bytes


def open_values(
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
