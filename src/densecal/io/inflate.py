"""Decompression in pieces, for streams that may expand to any size."""

from __future__ import annotations

from typing import IO, Protocol

_PIECE = 1 << 16


class Decompressor(Protocol):
    """`zlib.decompressobj` and similar objects."""

    @property
    def eof(self) -> bool:
        """Whether the compressed data has ended."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most ``max_length`` bytes."""
        ...


class Inflated:
    """A compressed stream that never holds more than was requested."""

    def __init__(self, stream: IO[bytes], decompressor: Decompressor) -> None:
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
