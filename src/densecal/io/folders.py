"""The contents of a folder, local or remote, without the hidden files of file managers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from densecal.errors import InputError
from densecal.io import urls
from densecal.io.suffixes import ARRAY_SUFFIXES, FOLDER_SUFFIXES, IMAGE_SUFFIXES, suffix_of

_LISTED: ContextVar[dict[Path, list[tuple[Path, bool]]] | None] = ContextVar("listed", default=None)
"""Listings that `listed_once` keeps. None outside its block, because folders change."""


def is_image_name(name: str) -> bool:
    """Return whether a name has the suffix of an image and no leading dot, which marks files of file managers."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def is_mask_name(name: str) -> bool:
    """Return whether a name has the suffix of a training mask, which may also be an array, and no leading dot."""
    return name.lower().endswith(IMAGE_SUFFIXES + ARRAY_SUFFIXES) and not name.startswith(".")


def image_files(folder: Path, is_wanted: Callable[[str], bool] = is_image_name) -> Iterator[Path]:
    """Yield the image files of a folder, or its files whose names another predicate accepts.

    Raises:
        InputError: The folder cannot be read.
    """
    try:
        if urls.is_remote(folder):
            yield from (path for path, is_dir in urls.entries(folder) if is_wanted(path.name) and not is_dir)
            return
        with os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if is_wanted(entry.name) and entry.is_file())
    except OSError as error:
        raise InputError(folder, error.strerror or "unreadable", "a readable folder") from None


def subfolders(path: Path) -> list[Path]:
    """List the readable folders in a folder, without those of file managers."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "a readable folder") from None
    readable = [path / name for name in names if os.access(path / name, os.R_OK | os.X_OK)]
    return [folder for folder in readable if not folder.name.startswith((".", "__MACOSX"))]


def subfolder_hint(folder: Path) -> str:
    """Return a hint for an error about a folder without files: its subfolders, which may hold them."""
    names = [path.name for path, is_dir in urls.entries(folder) if is_dir]
    shown = [name for name in names if not name.startswith((".", "__MACOSX"))]
    more = ", ..." if len(shown) > 3 else ""
    return f", but subfolders ({', '.join(shown[:3])}{more})" if shown else ""


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the files of a folder that have one of the suffixes, and folders that are read as one file."""
    files = _visible_entries(folder, folders=False)
    if set(FOLDER_SUFFIXES) & set(suffixes):
        files = sorted(files + [path for path in _visible_entries(folder, folders=True) if _is_file_like(path)])
    return [path for path in files if suffix_of(path) in suffixes]


def folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, except those that are read as one file."""
    return [path for path in _visible_entries(folder, folders=True) if not _is_file_like(path)]


def _is_file_like(folder: Path) -> bool:
    return suffix_of(folder) in FOLDER_SUFFIXES


@contextmanager
def listed_once() -> Iterator[None]:
    """List every folder only once within a block that lists the same folders repeatedly."""
    token = _LISTED.set(_LISTED.get() or {})
    try:
        yield
    finally:
        _LISTED.reset(token)


def _visible_entries(folder: Path, folders: bool) -> list[Path]:
    kept = _LISTED.get()
    entries = None if kept is None else kept.get(folder)
    if entries is None:
        try:
            entries = urls.entries(folder)
        except OSError as error:
            raise InputError(folder, error.strerror or "unreadable", "a readable folder") from None
        if kept is not None:
            kept[folder] = entries
    return [path for path, is_folder in entries if is_folder == folders and not path.name.startswith(".")]
