"""Untrusted zip files: every member is read through one bounded reader, and nothing is unpacked to disk."""

from __future__ import annotations

import bz2
import copy
import lzma
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from densecal.errors import InputError
from densecal.io.inflate import Decompressor, Inflated
from densecal.io.urls import open_bytes

MAX_DIRECTORY_BYTES = 1 << 25
"""Largest list of members: 32 MB name 400,000 files and take 20 times as much memory."""
MAX_RATIO = 1100
"""Largest ratio of decompressed to compressed bytes. Deflate, which nearly every zip uses, cannot exceed 1,032."""
FREE_BYTES = 1 << 20
"""Members that declare no more bytes than this may have any ratio."""

_LZMA_HEADER_BYTES = 9


class Archive:
    """An open zip file.

    Args:
        path: The file, local or remote.
        expected: What should be there, for error messages.
        file: Its content, if that is in memory already.

    Attributes:
        members: Entries of its directory.

    Raises:
        InputError: It is not a zip file, or its list of members is too long.
    """

    def __init__(self, path: Path, expected: str = "a complete zip file", file: BinaryIO | None = None) -> None:
        try:
            self._file = file or open_bytes(path)
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or "unreadable"
            raise InputError(path, reason, expected) from None
        try:
            self._zip = zipfile.ZipFile(cast("BinaryIO", _ShortReads(self._file, path)))
        except InputError:
            self._file.close()
            raise
        except Exception as error:  # zipfile raises errors of every kind for damaged directories
            self._file.close()
            raise InputError(path, f"unreadable ({error})", expected) from None
        self.members = self._zip.infolist()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def open(self, member: str | zipfile.ZipInfo, name: str, limit: int) -> Member:
        """Open a member.

        Args:
            member: Its name or its entry.
            name: Its name in error messages.
            limit: Refuse members that declare more bytes.
        """
        return Member(self._zip, self._zip.getinfo(member) if isinstance(member, str) else member, name, limit)


class Member:
    """A member of a zip file, decompressed in pieces and never beyond the size that its directory declares.

    Args:
        archive: An open zip file.
        info: The member's entry in the directory.
        name: Its name in error messages.
        limit: Refuse members that declare more bytes.

    Raises:
        InputError: It declares more bytes than ``limit``, or more than its compressed bytes can become.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, limit: int) -> None:
        declared, compressed = info.file_size, info.compress_size
        if declared > limit:
            raise InputError(name, f"{declared:,} bytes", f"at most {limit:,}")
        if declared > max(FREE_BYTES, MAX_RATIO * compressed):
            actual = f"{declared:,} bytes compressed to {compressed:,}"
            raise InputError(name, actual, f"at most {MAX_RATIO:,} bytes from each compressed byte")
        self._name, self._declared, self._left = name, declared, declared
        self._crc, self._expected_crc = 0, info.CRC
        self._raw = archive.open(_as_stored(info))
        self._content = Inflated(self._raw, self._find_decompressor(info))
        if not declared:
            self._check_end()

    def read(self, size: int) -> bytes:
        """Return between 1 and ``size`` bytes; none at the end.

        Raises:
            InputError: The member is longer or shorter than declared, or damaged.
        """
        if not self._left:
            return b""
        data = self._content.read(min(size, self._left))
        if not data:
            actual = f"unreadable (cut short at {self._declared - self._left:,} bytes)"
            raise InputError(self._name, actual, f"{self._declared:,} bytes, as its zip file declares")
        self._crc = zlib.crc32(data, self._crc)
        self._left -= len(data)
        if not self._left:
            self._check_end()
        return data

    def read_all(self) -> bytearray:
        """Return the whole content."""
        content = bytearray()
        while piece := self.read(1 << 20):
            content += piece
        return content

    def _check_end(self) -> None:
        if self._content.read(1):
            expected = f"{self._declared:,} bytes, as its zip file declares"
            raise InputError(self._name, f"more than {self._declared:,} bytes", expected)
        if self._crc != self._expected_crc:
            raise InputError(self._name, "unreadable (a wrong checksum)", "a complete zip member")

    def _find_decompressor(self, info: zipfile.ZipInfo) -> Decompressor:
        if info.compress_type == zipfile.ZIP_STORED:
            return _Stored()
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return zlib.decompressobj(-zlib.MAX_WBITS)
        if info.compress_type == zipfile.ZIP_BZIP2:
            return bz2.BZ2Decompressor()
        if info.compress_type == zipfile.ZIP_LZMA:
            return _lzma_decompressor(self._raw.read(_LZMA_HEADER_BYTES), info.file_size)
        raise InputError(self._name, f"compression method {info.compress_type}", "stored or deflated members")


class _Stored:
    """Content that is not compressed, with the interface of the decompressors."""

    eof = False
    unconsumed_tail = b""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        self.unconsumed_tail = data[max_length:]
        return data[:max_length]


class _ShortReads:
    """A file that refuses long reads: zipfile reads the list of members at once, however long it claims to be."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise InputError(self._path, f"a list of members of {size:,} bytes", f"at most {MAX_DIRECTORY_BYTES:,}")
        return self._file.read(size)


def _as_stored(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return an entry that yields the compressed bytes, because zipfile decompresses bzip2 and LZMA without a limit."""
    raw = copy.copy(info)
    raw.compress_type, raw.file_size = zipfile.ZIP_STORED, info.compress_size
    del raw.CRC
    return raw


def _lzma_decompressor(header: bytes, declared: int) -> lzma.LZMADecompressor:
    """Return the decompressor that the nine bytes before a member's LZMA data describe."""
    properties, dictionary = header[4], int.from_bytes(header[5:9], "little")
    filters = {
        "id": lzma.FILTER_LZMA1,
        # a dictionary larger than the content is useless, and a header may ask for 4 GB
        "dict_size": max(4096, min(dictionary, declared)),
        "lc": properties % 9,
        "lp": properties // 9 % 5,
        "pb": properties // 45,
    }
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[filters])
