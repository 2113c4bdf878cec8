"""Checksums of the blocks of a large file, a few of which are compared whenever the file is opened."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

BLOCK_BYTES = 1 << 18
CHECKED_BLOCKS = 48
"""Blocks that are compared when a file is opened, 12 MB in all. Except for the first and the last, others each time."""

_DIGITS = 8


class BlockChecksums:
    """The CRC-32 of every block of a file, computed while it is written."""

    def __init__(self) -> None:
        self._complete: list[str] = []
        self._crc = self._inside = 0

    def update(self, content: bytes) -> None:
        """Add the next bytes of the file."""
        view = memoryview(content)
        while view:
            piece = view[: BLOCK_BYTES - self._inside]
            self._crc = zlib.crc32(piece, self._crc)
            self._inside += len(piece)
            view = view[len(piece) :]
            if self._inside == BLOCK_BYTES:
                self._complete.append(f"{self._crc:08x}")
                self._crc = self._inside = 0

    def text(self) -> str:
        """Return all checksums, eight hexadecimal digits each."""
        return "".join(self._complete) + (f"{self._crc:08x}" if self._inside else "")


def blocks_agree(path: Path, checksums: str) -> bool:
    """Return whether the first block, the last and some in between have the checksums that the file was written with.

    Args:
        path: The file.
        checksums: The text of its ``BlockChecksums``.
    """
    count = -(-path.stat().st_size // BLOCK_BYTES)
    if len(checksums) != count * _DIGITS:
        return False
    chosen = {0, count - 1, *random.SystemRandom().sample(range(count), min(count, CHECKED_BLOCKS - 2))}
    with path.open("rb") as stream:
        for block in sorted(chosen) if count else ():
            stream.seek(block * BLOCK_BYTES)
            crc = zlib.crc32(stream.read(BLOCK_BYTES))
            if f"{crc:08x}" != checksums[block * _DIGITS : (block + 1) * _DIGITS]:
                return False
    return True
