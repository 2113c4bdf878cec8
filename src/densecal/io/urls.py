"""Paths that are URLs, such as `s3://bucket/maps`, read and written through fsspec.

`Path("s3://bucket/maps")` holds `s3:/bucket/maps`. Joining, names, stems and suffixes work on such a path as they are,
and `url` restores the URL. All access to files goes through the functions here, for local paths too.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from densecal.errors import InputError
from densecal.io.regular import check_regular

T = TypeVar("T")

SMALL_BYTES = 1 << 22
"""Remote files below this size are read in one request, and many of them at once."""
_AT_ONCE = 32
"""Number of items whose files are fetched at once: at most 256 MB for pairs of the largest small files."""
_CONNECTIONS = 64
"""Simultaneous connections to S3; its client would open ten."""
_ATTEMPTS = 4
"""Number of times a request that the store refuses or drops is made, besides the retries of the store's client."""
_PAUSE_SECONDS = 0.1
_fetched: dict[str, bytes] = {}

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def is_remote(path: Path) -> bool:
    """Return whether a path was given as a URL; `file://` is one too."""
    return not path.is_absolute() and len(path.parts) > 1 and _SCHEME.fullmatch(path.parts[0]) is not None


def url(path: Path) -> str:
    """Return the URL that a path was given as."""
    scheme, *rest = path.parts
    return f"{scheme}//{'/' if scheme == 'file:' else ''}{'/'.join(rest)}"


def is_folder(path: Path) -> bool:
    """Return whether a path, local or remote, is a folder."""
    return _call("isdir", path) if is_remote(path) else path.is_dir()


def is_file(path: Path) -> bool:
    """Return whether a path, local or remote, is a file."""
    return _call("isfile", path) if is_remote(path) else path.is_file()


def exists(path: Path) -> bool:
    """Return whether a path, local or remote, exists."""
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
        return _open_remote(path)
    check_regular(path)
    return path.open("rb")


@contextmanager
def fetched(paths: Iterable[Path]) -> Iterator[None]:
    """Read remote files in one go, so that opening them inside the block needs no round trip for each.

    Files of more than ``SMALL_BYTES``, and those that cannot be read, are left to the caller that opens them.

    Args:
        paths: Files that will be opened; local ones are left alone.
    """
    remote = [path for path in dict.fromkeys(paths) if is_remote(path)]
    names = [url(path) for path in remote]
    try:
        for scheme in {path.parts[0] for path in remote}:
            group = [path for path in remote if path.parts[0] == scheme]
            with suppress(Exception):  # opening the file will report the error
                system = _system(group[0])[0]
                ends = [SMALL_BYTES] * len(group)
                inside = [system._strip_protocol(url(path)) for path in group]
                contents = system.cat_ranges(inside, [0] * len(group), ends, on_error="return")
                for path, content in zip(group, contents, strict=True):
                    if isinstance(content, bytes) and len(content) < SMALL_BYTES:
                        _fetched[url(path)] = content
        yield
    finally:
        for name in names:
            _fetched.pop(name, None)


def fetch_ahead(items: Sequence[T], files: Callable[[T], Iterable[Path]], at_once: int = _AT_ONCE) -> Iterator[T]:
    """Yield items after their remote files have been fetched, many items at a time.

    Args:
        items: The items to yield.
        files: Returns the files of an item.
        at_once: Number of items whose files are fetched at once.
    """
    for first in range(0, len(items), at_once):
        group = items[first : first + at_once]
        with fetched(file for item in group for file in files(item)):
            yield from group


def _open_remote(path: Path) -> BinaryIO:
    """Open a remote file: a small one in one request, a large one to be read by ranges."""
    content = _fetched.get(url(path))
    if content is None:
        try:
            content = _call("cat_file", path, start=0, end=SMALL_BYTES)
        except (InputError, OSError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            content = None  # an empty file has no range
    if content is not None and len(content) < SMALL_BYTES:
        return io.BytesIO(content)
    return cast(BinaryIO, _call("open", path, mode="rb"))


def write_bytes(path: Path, data: bytes) -> None:
    """Create or replace a remote file in one operation."""
    _call("pipe_file", path, data)  # the name of the second argument differs from store to store


def version(path: Path) -> str:
    """Return text that changes when a file does: size and time, or what its store offers instead, such as an ETag."""
    if not is_remote(path):
        status = path.stat()
        return f"{path.absolute()}|{status.st_size}|{status.st_mtime_ns}"
    about = _call("info", path)
    stamps = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created")
    return "|".join([url(path), str(about["size"]), *(str(about[stamp]) for stamp in stamps if stamp in about)])


def _call(name: str, path: Path, *values: Any, **options: Any) -> Any:
    """Call a method of the file system that a URL names. Every failure is an ``OSError`` or an ``InputError``."""
    for attempt in range(_ATTEMPTS):
        try:
            system, remote_path = _system(path)
            return getattr(system, name)(remote_path, *values, **options)
        except ImportError as error:  # fsspec names the package for the protocol
            raise InputError(url(path), str(error), "pip install 'densecal[remote]' for s3:// and gs://") from None
        except ValueError as error:
            raise InputError(url(path), str(error), "a URL that fsspec knows") from None
        except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError):
            raise
        except Exception as error:  # the clients of stores raise errors of their own classes
            if "Credentials" in type(error).__name__:
                expected = "credentials, where the client of the store looks for them (environment variables, files)"
                raise InputError(url(path), f"{type(error).__name__}: {error}", expected) from None
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_SECONDS * 2**attempt)
            elif isinstance(error, OSError):
                raise
            else:
                raise InputError(url(path), f"{type(error).__name__}: {error}", "a reachable store") from None
    raise AssertionError


def _system(path: Path) -> tuple[Any, str]:
    """Return the file system of a URL, and the path inside it."""
    import fsspec  # type: ignore[import-untyped]

    options = {"config_kwargs": {"max_pool_connections": _CONNECTIONS}} if path.parts[0] in ("s3:", "s3a:") else {}
    system, inside = fsspec.core.url_to_fs(url(path), **(options if not fsspec.config.conf.get("s3") else {}))
    return system, inside
