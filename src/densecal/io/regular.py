"""Only regular files are read: a named pipe would wait for ever, and `/dev/zero` never ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from densecal.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def kind_of(path: Path) -> str | None:
    """Return what a path is, links followed, if it is not a regular file; ``None`` for one, or for nothing."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_regular(path: Path, expected: str = "a regular file") -> None:
    """Refuse to read anything but a regular file.

    Args:
        path: The path to check. Links are followed.
        expected: What should be there, for error messages.

    Raises:
        InputError: It is something else.
        OSError: It cannot be looked at, for example because its links form a loop.
    """
    kind = kind_of(path)
    if kind is not None:
        raise InputError(path, kind, expected)
