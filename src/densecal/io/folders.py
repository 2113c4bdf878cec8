"""What a folder holds, local or remote, less what file managers put there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from densecal.errors import InputError
from densecal.io import urls
from densecal.io.images import IMAGE_SUFFIXES


def is_image_name(name: str) -> bool:
    """Whether a file is an image by its suffix; names with a leading dot are the file managers' own."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def image_files(folder: Path) -> Iterator[Path]:
    """The image files of a folder.

    Raises:
        InputError: If the folder cannot be read.
    """
    try:
        if urls.is_remote(folder):
            yield from (path for path, is_dir in urls.entries(folder) if is_image_name(path.name) and not is_dir)
            return
        with os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if is_image_name(entry.name) and entry.is_file())
    except OSError as error:
        raise InputError(folder, error.strerror or "unreadable", "a readable folder") from None


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder that can be read, less those that file managers put there."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "a readable folder") from None
    readable = [path / name for name in names if os.access(path / name, os.R_OK | os.X_OK)]
    return [folder for folder in readable if not folder.name.startswith((".", "__MACOSX"))]


def named_subfolders(folder: Path) -> str:
    """What to add to an error about a folder without files: that they may lie one level down."""
    names = [path.name for path, is_dir in urls.entries(folder) if is_dir]
    shown = [name for name in names if not name.startswith((".", "__MACOSX"))]
    more = ", ..." if len(shown) > 3 else ""
    return f", but subfolders ({', '.join(shown[:3])}{more})" if shown else ""


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder that have one of the suffixes."""
    return [path for path in _visible(folder, folders=False) if path.suffix.lower() in suffixes]


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder."""
    return _visible(folder, folders=True)


def _visible(folder: Path, folders: bool) -> list[Path]:
    try:
        entries = urls.entries(folder)
    except OSError as error:
        raise InputError(folder, error.strerror or "unreadable", "a readable folder") from None
    return [path for path, is_folder in entries if is_folder == folders and not path.name.startswith(".")]
