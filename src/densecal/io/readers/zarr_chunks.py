"""Chunks of Zarr arrays: their bytes become numbers, never more than a chunk may hold."""

from __future__ import annotations

import bz2
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOSC_HEADER = 16
_CHECKSUM = 4


@dataclass(frozen=True)
class Compressor:
    """A compression method, by its name in the metadata."""

    kind: str

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Decompress bytes.

        Args:
            data: The compressed bytes.
            limit: Largest number of bytes that they may become.

        Raises:
            ValueError: They are damaged, or become more.
        """
        if self.kind == "crc32c":
            return _without_checksum(data)
        if self.kind in ("gzip", "zlib", "bz2"):
            stream = bz2.BZ2Decompressor() if self.kind == "bz2" else zlib.decompressobj(47)
            result = stream.decompress(data, limit + 1)
            if len(result) > limit or not stream.eof:
                raise ValueError(f"a chunk that does not end after {limit:,} bytes")
            return result
        return _by_numcodecs(self.kind, data, limit)


@dataclass(frozen=True)
class Chain:
    """The encoding of a chunk.

    Attributes:
        shape: Shape of the chunk.
        dtype: Type of its numbers, with their byte order.
        order: Axes in the order in which they are stored.
        compressors: Compressors, in the order of decompression.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]
    compressors: tuple[Compressor, ...]

    @property
    def size(self) -> int:
        """Number of bytes after decompression."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def most_bytes(self) -> int:
        """Most bytes that a chunk may take in its file: compression makes noise a little longer."""
        return self.size + self.size // 8 + (1 << 16)

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the numbers of a chunk.

        Raises:
            ValueError: The bytes are damaged, or hold more or fewer numbers.
        """
        for number, compressor in enumerate(self.compressors, start=1):
            data = compressor.decompress(data, self.size if number == len(self.compressors) else self.most_bytes)
        if len(data) != self.size:
            raise ValueError(f"a chunk of {len(data):,} bytes in place of {self.size:,}")
        stored = np.frombuffer(data, self.dtype).reshape([self.shape[axis] for axis in self.order])
        return stored.transpose(np.argsort(self.order))


def _without_checksum(data: bytes) -> bytes:
    import google_crc32c

    content, stored = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if len(stored) < _CHECKSUM or google_crc32c.value(content).to_bytes(4, "little") != stored:
        raise ValueError("a chunk with a wrong checksum")
    return content


def _by_numcodecs(kind: str, data: bytes, limit: int) -> bytes:
    """Decompress data whose first bytes specify the decompressed length."""
    import numcodecs

    if kind == "lz4":
        codec, size = numcodecs.LZ4(), int.from_bytes(data[:4], "little")
    elif kind == "blosc":
        codec, size = numcodecs.Blosc(), int.from_bytes(data[4:8], "little")
        if len(data) < _BLOSC_HEADER or int.from_bytes(data[12:16], "little") != len(data):
            raise ValueError("a chunk cut short")
    else:
        codec, size = numcodecs.Zstd(), zstd_size(data)
    if size > limit:
        raise ValueError(f"a chunk of {size:,} bytes in place of at most {limit:,}")
    result = np.empty(size, np.uint8)
    codec.decode(data, result)
    return result.tobytes()


def zstd_size(data: bytes) -> int:
    """Return the decompressed length that a zstd frame declares (RFC 8878, section 3.1.1).

    Raises:
        ValueError: It declares none.
    """
    if data[:4] != b"\x28\xb5\x2f\xfd" or len(data) < 6:
        raise ValueError("a chunk that is not compressed by zstd")
    descriptor = data[4]
    single, flag = descriptor >> 5 & 1, descriptor >> 6
    length = (single, 2, 4, 8)[flag]
    if length == 0:
        raise ValueError("a zstd chunk that does not declare its decompressed length")
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(data[start : start + length], "little") + (256 if flag == 1 else 0)
