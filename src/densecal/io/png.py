"""Plain grey PNG files, as maps and masks mostly are, decoded faster than Pillow does. All others are left to Pillow.

A file is plain if it has one grey channel of 1, 8 or 16 bits, rows from top to bottom, no chunk that could change what
its pixels mean, and nothing wrong with it. Pillow reads the same pixels from it, so nobody can tell the difference.
"""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.urls import is_remote

_API = 2
"""The functions that this version calls: those of a library built from another version are not."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 1 << 25
"""Larger files are not read as a whole."""
_DICTIONARY = 32
"""The flag of a stream that needs a dictionary."""
_ORDER = re.compile(rb"IHDR( tEXt| pHYs)*( IDAT)+( tEXt| pHYs)* IEND")
_TEXTS = (b"Software\0", b"Title\0", b"Author\0", b"Comment\0", b"Description\0")
"""Texts that are certainly no metadata with an orientation."""


def _load() -> Any:
    try:
        from densecal.io import _png
    except ImportError:  # installed without a compiler
        return None
    return _png if _png.API == _API else None


native: Any = _load()
"""The compiled module, or ``None``: then no file is plain."""


def read_plain_png(path: Path, max_pixels: int) -> NDArray[Any] | None:
    """Return the pixels of a plain grey PNG file (H, W): booleans, uint8 or uint16.

    Args:
        path: The file.
        max_pixels: Larger pictures are not plain.

    Returns:
        The pixels, or ``None`` for every other file, also one that is damaged, not a PNG, or not there.
    """
    if native is None or path.suffix.lower() != ".png" or is_remote(path):
        return None
    try:
        status = path.stat()
        if status.st_size > _MOST_BYTES or not stat.S_ISREG(status.st_mode):
            return None
        return _decode(path.read_bytes(), max_pixels)
    except (OSError, zlib.error, _NotPlainError):
        return None


class _NotPlainError(Exception):
    """The file is left to Pillow."""


def _decode(content: bytes, max_pixels: int) -> NDArray[Any]:
    if content[:8] != _SIGNATURE:
        raise _NotPlainError
    chunks = _chunks(content)
    header, packed = chunks[0][1], b"".join(data for kind, data in chunks if kind == b"IDAT")
    if len(header) != 13:
        raise _NotPlainError
    width, height = (int.from_bytes(header[i : i + 4], "big") for i in (0, 4))
    bits, *unusual = header[8:]
    if any(unusual) or bits not in (1, 8, 16) or not 0 < width * height <= max_pixels:
        raise _NotPlainError  # colour, interlaced, or too large, of which Pillow says so
    length, step = (width * bits + 7) // 8, max(bits // 8, 1)
    rows = _inflate(packed, height * (length + 1))
    pixels = np.empty((height, length), np.uint8)
    if not native.undo_filters(rows, pixels, height, length, step):
        raise _NotPlainError
    if bits == 1:
        return np.unpackbits(pixels, axis=1, count=width).view(np.bool_)
    return pixels if bits == 8 else pixels.view(">u2").astype(np.uint16)


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return kind and data of all chunks, of which none can change the pixels, and nothing follows the last."""
    chunks: list[tuple[bytes, bytes]] = []
    at = 8
    while at < len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        data, end = content[at + 8 : at + 8 + length], at + 8 + length
        if kind == b"tEXt" and not data.startswith(_TEXTS):
            raise _NotPlainError
        if zlib.crc32(data, zlib.crc32(kind)) != int.from_bytes(content[end : end + 4], "big"):
            raise _NotPlainError
        chunks.append((kind, data))
        at = end + 4
    if at != len(content) or not _ORDER.fullmatch(b" ".join(kind for kind, _ in chunks)):
        raise _NotPlainError
    return chunks


def _inflate(packed: bytes, size: int) -> bytes:
    """Return what was packed, if it has this size.

    The sum at the end is checked here, because zlib takes five times as long for it.
    """
    header = int.from_bytes(packed[:2], "big")
    method, window = header >> 8 & 15, header >> 12
    if method != zlib.DEFLATED or window > 7 or header % 31 or header & _DICTIONARY:
        raise _NotPlainError
    stream = zlib.decompressobj(-zlib.MAX_WBITS)  # negative: without header and sum
    rows = stream.decompress(memoryview(packed)[2:], size + 1)
    if len(rows) != size or not stream.eof or stream.unused_data != native.adler32(rows).to_bytes(4, "big"):
        raise _NotPlainError
    return rows
