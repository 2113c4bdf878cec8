"""Paths that are URLs: `s3://bucket/maps` and the like, read and written through fsspec.

`Path("s3://bucket/maps")` holds `s3:/bucket/maps`. Joining, names, stems and suffixes work on such a path as they are,
and `url` restores the URL. Whatever touches files goes through the functions here, for local paths too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO, cast

from densecal.errors import InputError
from densecal.io.regular import check_regular

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def is_remote(path: Path) -> bool:
    """Return whether a path was given as a URL; `file://` is one too."""
    return not path.is_absolute() and len(path.parts) > 1 and _SCHEME.fullmatch(path.parts[0]) is not None


def url(path: Path) -> str:
    """Return the URL that a path was given as."""
    scheme, *rest = path.parts
    return f"{scheme}//{'/' if scheme == 'file:' else ''}{'/'.join(rest)}"


def is_folder(path: Path) -> bool:
    """Do what ``Path.is_dir`` does."""
    return _call("isdir", path) if is_remote(path) else path.is_dir()


def is_file(path: Path) -> bool:
    """Do what ``Path.is_file`` does."""
    return _call("isfile", path) if is_remote(path) else path.is_file()


def exists(path: Path) -> bool:
    """Do what ``Path.exists`` does."""
    return _call("exists", path) if is_remote(path) else path.exists()


def entries(folder: Path) -> list[tuple[Path, bool]]:
    """List the entries of a folder, sorted, each with whether it is itself a folder."""
    if not is_remote(folder):
        with os.scandir(folder) as scan:
            # entry.is_dir() would raise on a loop of links
            return sorted((folder / entry.name, os.path.isdir(entry)) for entry in scan)
    listed = _call("ls", folder, detail=True)
    names = ((entry["name"].rstrip("/").rsplit("/", 1)[-1], entry["type"] == "directory") for entry in listed)
    return sorted((folder / name, is_dir) for name, is_dir in names)


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes, seekable.

    Raises:
        InputError: It is not a regular file.
        OSError: It cannot be opened.
    """
    if is_remote(path):
        return cast(BinaryIO, _call("open", path, mode="rb"))
    check_regular(path)
    return path.open("rb")


def write_bytes(path: Path, data: bytes) -> None:
    """Create or replace a remote file in one operation."""
    _call("pipe_file", path, value=data)


def version(path: Path) -> str:
    """Return text that changes when a file does: size and time, or what its store keeps instead, such as an ETag."""
    if not is_remote(path):
        status = path.stat()
        return f"{path.absolute()}|{status.st_size}|{status.st_mtime_ns}"
    about = _call("info", path)
    stamps = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created")
    return "|".join([url(path), str(about["size"]), *(str(about[stamp]) for stamp in stamps if stamp in about)])


def _call(name: str, path: Path, **options: Any) -> Any:
    """Call a method of the file system that a URL names. Every failure is an ``OSError`` or an ``InputError``."""
    try:
        import fsspec  # type: ignore[import-untyped]

        system, remote_path = fsspec.core.url_to_fs(url(path))
        return getattr(system, name)(remote_path, **options)
    except ImportError as error:  # fsspec says which package brings the protocol
        raise InputError(url(path), str(error), "pip install 'densecal[remote]' for s3:// and gs://") from None
    except ValueError as error:
        raise InputError(url(path), str(error), "a URL that fsspec knows") from None
    except OSError:
        raise
    except Exception as error:  # store clients raise errors of their own classes
        raise InputError(url(path), f"{type(error).__name__}: {error}", "a reachable store") from None
