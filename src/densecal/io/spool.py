"""Decompressed content that can be read in any order: in memory, or in a temporary file if it is long."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol, cast

_IN_MEMORY = 1 << 26
"""Longer content goes to a temporary file."""
_PIECE = 1 << 20


class Readable(Protocol):
    """A stream of decompressed content."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        ...


@contextmanager
def spooled(stream: Readable, size: int) -> Iterator[BinaryIO]:
    """Copy at most ``size`` bytes of a stream to memory, or to a temporary file if there are many."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
        left = size
        while left and (piece := stream.read(min(left, _PIECE))):
            copy.write(piece)
            left -= len(piece)
        copy.seek(0)
        yield cast(BinaryIO, copy)
