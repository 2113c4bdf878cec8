"""What compressed volumes share: decompression in pieces, and files of values beside a header."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from densecal.errors import InputError

_PIECE = 1 << 16


class Decompressor(Protocol):
    """`zlib.decompressobj` and its like."""

    @property
    def eof(self) -> bool:
        """Whether the compressed data has ended."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most ``max_length`` bytes."""
        ...


class Inflated:
    """A compressed stream, read without ever holding more than was asked for."""

    def __init__(self, stream: BinaryIO, decompressor: Decompressor) -> None:
        self._stream, self._decompressor, self._pending = stream, decompressor, b""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        while not self._decompressor.eof:
            data = self._decompressor.decompress(self._pending, size)
            self._pending = getattr(self._decompressor, "unconsumed_tail", b"")
            if data:
                return data
            if not self._pending:
                self._pending = self._stream.read(_PIECE)
                if not self._pending:
                    break
        return b""


def beside(header: Path, name: str) -> Path:
    """Return the file of values that a header names, which lies in the same folder.

    Raises:
        InputError: The name leads elsewhere, or names several files.
    """
    if "/" in name or "\\" in name or name in ("", ".", "..", "LIST") or "%" in name or name.startswith("LIST "):
        raise InputError(header, f"values in {name!r}", "one file of values in the folder of the header")
    return header.with_name(name)
