"""The files that a command may overwrite: never those that it reads, and without force only those that it wrote.

A file that a command wrote is recognised by its beginning, which names the command: `"densecal": "evaluate"` is the
first key of its JSON, `Software: densecal predict` the first text of a PNG. CSV files are recognised by their columns.
A `.npy` file has room only for padding, so the length of its header identifies the command. Nothing is stored beside
the files, so a copied or moved file is still recognised.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from densecal.errors import InputError
from densecal.io import urls
from densecal.io.atomic import STDOUT
from densecal.io.suffixes import suffix_of

NPY_HEADERS = {"predict": 704, "calibrate apply": 768}
"""Length of the header of a .npy file by command. NumPy itself writes 128 bytes, or as many as the shape needs."""

_CSV_COLUMNS = {
    "evaluate": b"name,dataset,images,pixels,",
    "benchmark": b"(name,label,calibrator|line,dataset,bins),",
    "reproduce": b"table,row,data set,",
}
_HEADS = {
    "json": rb'\{\s*"densecal": "COMMAND"',
    "tex": rb"% densecal COMMAND;",
    "yaml": rb"# densecal COMMAND\n",
    "md": rb"<!-- densecal COMMAND -->",
    "html": rb"<!doctype html>\s*<!-- densecal COMMAND -->",
    "png": rb"\x89PNG\r\n\x1a\n.{25}.{4}tEXtSoftware\0densecal COMMAND",
    "onnx": rb"\x08.\x12\x08densecal",
    "sketch": rb"PK\x03\x04.{26}densecal COMMAND",
    "nii": rb"(.{148}|.{240})densecal COMMAND\0",
    "mha": rb"Comment = densecal COMMAND\n",
    "nrrd": rb"NRRD0004\n# densecal COMMAND\n",
    "zarr": rb'\{\s*"attributes": \{\s*"densecal": "COMMAND"',
    "safetensors": rb'.{8}\{"__metadata__":\{"densecal":"COMMAND"',
}
_HEAD_BYTES = 1024
_HEADER_BYTES = 1 << 16
_VALUES_BESIDE = re.compile(rb"^(?:ElementDataFile *=|data ?file *:) *([^\r\n]*[^\r\n ])", re.IGNORECASE | re.MULTILINE)
"""The line of a volume's header that names the file of its values, which lies beside it."""
_MOST_NAME_BYTES = 255
"""Longest name that common file systems allow."""

_MARKS = dict.fromkeys(("calibrate fit", "calibrate select", "calibrate prior"), "calibrator")
"""The names by which files identify their command, where these differ from the command's own name."""

Identity = tuple[int, int] | str | None
"""Device and inode of a file, links followed; the URL of a remote one; None for a file that does not exist."""


def software(command: str) -> str:
    """Return the text under `Software` in a PNG file that a command wrote."""
    return f"densecal {command}"


def check_outputs(
    command: str,
    targets: Iterable[tuple[Path | None, str]],
    reads: Iterable[Path],
    force: bool = False,
) -> None:
    """Check, before the work, that a command overwrites only files that it may.

    Args:
        command: Name of the command, as its files store it.
        targets: The files to write, each with its format: a key of ``_HEADS``, ``csv`` or ``npy``; None for a file that
            was not requested.
        reads: The files that the command reads. They are examined only if a target exists.
        force: Allow to replace files that the command did not write.

    Raises:
        InputError: A target is a file that the command reads, under this or another name; is named twice; or exists
            and was not written by the command.
    """
    names = [(path, kind) for path, kind in targets if path is not None and path != STDOUT]
    existing = [(path, kind) for path, kind in names if _exists(path, kind)]
    refuse_same_target([path for path, _ in names])
    if not existing:
        return
    inputs = {_identity(part) for path in reads for part in _with_parts(path)}
    for path, kind in existing:
        if _identity(path) in inputs:
            raise InputError(path, "a file that this command reads", "another name for the output")
        if not force and (kind == "zarr" or _is_replaceable(path)) and not _is_own(path, kind, command):
            expected = "another name for the output, or --force to replace it"
            raise InputError(path, f"a file that densecal {command} did not write", expected)


def check_output_folder(folder: Path, reads: Iterable[Path | None], option: str = "--out") -> None:
    """Refuse an output folder that is itself one of the folders that a command reads.

    Raises:
        InputError: It is one of them, under this or another name.
    """
    identity = _identity(folder)
    for path in reads:
        if identity is not None and path is not None and identity == _identity(path):
            raise InputError(f"{option} {folder}", "a folder that this command reads", "another folder")


def refuse_same_target(paths: list[Path]) -> None:
    """Refuse outputs that would replace one another.

    Raises:
        InputError: Two names lead to one file.
    """
    real = lru_cache(os.path.realpath)  # a folder of maps is resolved once
    used = set()
    for path in paths:
        local = _local(path)
        target = real(local) if local.is_symlink() else os.path.join(real(local.parent), local.name)
        if target in used and _is_replaceable(path):
            raise InputError(path, "the name of two outputs", "a name for each")
        used.add(target)


def _local(path: Path) -> Path:
    """Return the path of a `file://` URL, and any other path as it is."""
    return Path(urls.url(path).removeprefix("file://")) if path.parts[:1] == ("file:",) else path


def _exists(path: Path, kind: str) -> bool:
    """Return whether a file exists, or raise an InputError for a path that no file can have."""
    local = _local(path)
    try:
        if urls.is_remote(local):
            return urls.exists(local) if kind == "zarr" else urls.is_file(local)
        if len(os.fsencode(local.name)) > _MOST_NAME_BYTES:  # for a missing folder, the system reports that instead
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        os.stat(local)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})", "another name for the output") from None
    return True


def _identity(path: Path) -> Identity:
    local = _local(path)
    if urls.is_remote(local):
        return urls.url(local)
    try:
        status = os.stat(local)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _with_parts(path: Path) -> Iterator[Path]:
    """Yield a file and those that belong to it: chunks, values beside a header, weights of a network."""
    yield path
    local, suffix = _local(path), suffix_of(path)
    with suppress(OSError, ValueError):
        if suffix == ".zarr":
            yield from (Path(folder, name) for folder, _, names in os.walk(local) for name in names)
        elif suffix == ".onnx":
            yield from local.parent.glob(f"{glob.escape(local.name)}?*")
        elif suffix in (".mhd", ".nhdr"):
            with local.open("rb") as stream:
                names = _VALUES_BESIDE.findall(stream.read(_HEADER_BYTES))
            yield from (local.with_name(os.fsdecode(name)) for name in names)


def _is_replaceable(path: Path) -> bool:
    """Return whether writing would replace the path, and not write to a pipe or device."""
    local = _local(path)
    return urls.is_remote(local) or not os.path.exists(local) or stat.S_ISREG(os.stat(local).st_mode)


def _is_own(path: Path, kind: str, command: str) -> bool:
    """Return whether a file begins as the command writes it, or is empty, so that nothing can be lost."""
    mark = _MARKS.get(command, command).encode()
    try:
        if kind == "zarr" and not urls.exists(path := path / "zarr.json"):
            return False
        with urls.open_bytes(_local(path)) as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "an output that can be read") from None
    if kind == "nii.gz":
        kind, head = "nii", _unpack(head)
    if kind == "tif":
        is_own = _tiff_software(_local(path)) == software(command)
    elif kind == "npy":
        is_own = head[:6] == b"\x93NUMPY" and int.from_bytes(head[8:10], "little") + 10 == NPY_HEADERS[command]
    else:
        pattern = _CSV_COLUMNS[command] if kind == "csv" else _HEADS[kind].replace(b"COMMAND", mark)
        is_own = re.match(pattern, head, re.DOTALL) is not None
    return is_own or not head


def _unpack(head: bytes) -> bytes:
    """Return the beginning of the content of a gzip file, decompressed; return any other content as it is."""
    try:
        return zlib.decompressobj(47).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return head


def _tiff_software(path: Path) -> str | None:
    """Return the software that wrote a TIFF file; ``None`` if the file does not name it or is damaged."""
    from tifffile import TiffFile

    try:
        with urls.open_bytes(path) as stream, TiffFile(stream) as file:
            name = file.pages.first.tags.valueof(305)
    except Exception:  # tifffile raises errors of every kind for damaged files
        return None
    return name if isinstance(name, str) else None
