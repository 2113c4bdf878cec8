"""Containers of arrays, such as `.sketch` files: a zip file with a JSON header, plain arrays and a digest, no pickle.

The first member is named after the command that wrote it. The last, `sha256`, hashes all others. Every other member
holds the numbers of one array, little-endian. The reader knows the type and shape of every array from the header before
it reads one, so no memory is reserved for anything that does not belong there.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.archives import FREE_BYTES, Archive
from densecal.io.documents import parse_json

VERSION = 1
MAX_HEADER_BYTES = 1 << 26
EACH = "each/"
"""Prefix of the names of arrays with one entry per image or pixel, whose length only the file knows."""
MAX_RATIO_OF_EACH = 64
"""Largest compression ratio of such an array, so that the size of the file bounds its memory."""
_DIGEST = "sha256"
_DATE = (1980, 1, 1, 0, 0, 0)

Array = NDArray[Any]


def pack(command: str, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a container: the same for the same content.

    Args:
        command: The command that writes it.
        header: Plain values for JSON.
        arrays: Arrays of numbers by name; see ``EACH``.
    """
    first = json.dumps({"version": VERSION, **header}, sort_keys=True).encode()
    members = {f"densecal {command}": first}
    for name, array in sorted(arrays.items()):
        members[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    members[_DIGEST] = _digest(hashes).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, _method(name, content))
    return stream.getvalue()


def _method(name: str, content: bytes) -> int:
    """Return how to compress a member. Long, repetitive ones stay as they are: readers would take them for bombs."""
    repetitive = len(content) > FREE_BYTES and len(zlib.compress(content, 1)) * (MAX_RATIO_OF_EACH // 4) < len(content)
    return zipfile.ZIP_STORED if name.startswith(EACH) and repetitive else zipfile.ZIP_DEFLATED


def _digest(hashes: Mapping[str, str]) -> str:
    lines = "".join(f"{hashes[name]} {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


class Container:
    """A container that is open for reading.

    Args:
        source: The file, or its content.
        where: Its name in error messages.
        command: The command that must have written it.

    Attributes:
        header: The plain values.
        where: Its name in error messages.

    Raises:
        InputError: It is not such a container, or has another version.
    """

    def __init__(self, source: Path | bytes, where: str, command: str) -> None:
        self.where, self._expected = where, f"a complete file of densecal {command}"
        if isinstance(source, bytes):
            self._archive = Archive(Path(where), self._expected, io.BytesIO(source))
        else:
            self._archive = Archive(source, self._expected)
        self._members = {member.filename: member for member in self._archive.members}
        self._hashes: dict[str, str] = {}
        try:
            self.header = self._read_header(f"densecal {command}")
        except BaseException:
            self._archive.__exit__()
            raise

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.__exit__()

    def _read_header(self, name: str) -> dict[str, Any]:
        if name not in self._members:
            raise self.error("something else", self._expected)
        text = bytes(self._read(name, MAX_HEADER_BYTES)).decode(errors="replace")
        header = parse_json(text, self.where, self._expected)
        version = header.get("version") if isinstance(header, dict) else None
        if version != VERSION or not isinstance(header, dict):
            raise self.error(f"version {version!r}"[:60], f"version {VERSION}, which this densecal reads")
        return header

    def error(self, found: str, expected: str) -> InputError:
        """Return an error about this container."""
        return InputError(self.where, found, expected)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Read an array.

        Args:
            name: Its name.
            dtype: Type of its numbers.
            shape: Its shape. For an array of ``EACH``, -1 along the axis whose length the file determines.

        Raises:
            InputError: It is missing, is damaged, or has another size.
        """
        if name not in self._members:
            raise self.error(f"no {name}", self._expected)
        member, kind = self._members[name], np.dtype(dtype).newbyteorder("<")
        length, unit = member.file_size, kind.itemsize * abs(math.prod(shape))
        fits = length == unit if -1 not in shape else unit > 0 and length % unit == 0
        if not fits:
            raise self.error(
                f"{name} of {length:,} bytes", f"{unit:,}, or a multiple of it" if -1 in shape else f"{unit:,}"
            )
        if -1 in shape and length > max(FREE_BYTES, MAX_RATIO_OF_EACH * member.compress_size):
            actual = f"{name}: {length:,} bytes compressed to {member.compress_size:,}"
            raise self.error(actual, f"at most {MAX_RATIO_OF_EACH} bytes from each compressed byte")
        array = np.frombuffer(self._read(name, length), kind).reshape(shape)
        return array.astype(np.dtype(dtype), copy=False)

    def verify(self) -> None:
        """Compare the digest. Call this after everything has been read.

        Raises:
            InputError: The content is not what was written, or there are further members.
        """
        if unknown := self._members.keys() - self._hashes.keys() - {_DIGEST}:
            raise self.error(f"a member {min(unknown)!r}", "none of that name")
        if _DIGEST not in self._members or bytes(self._read(_DIGEST, 64)) != _digest(self._hashes).encode():
            raise self.error("damaged (its digest is wrong)", self._expected)

    def _read(self, name: str, limit: int) -> bytearray:
        try:
            content = self._archive.open(self._members[name], f"{self.where}: {name}", limit).read_all()
        except InputError:
            raise
        except Exception as error:  # zipfile and zlib raise errors of every kind for damaged members
            raise self.error(f"unreadable ({name}: {error})", self._expected) from None
        if name != _DIGEST:
            self._hashes[name] = hashlib.sha256(content).hexdigest()
        return content
