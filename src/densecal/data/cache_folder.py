"""The folder of a packed cache: its files, what may not lie beside them, and the folders in which caches are built."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from densecal.errors import InputError
from densecal.io.documents import read_text
from densecal.runtime.lock import lock_file

FORMAT = "densecal-packed"
MANIFEST, IMAGES, MASKS = "manifest.json", "images.u8", "masks.u8"

_LOCK = ".lock"


def refuse_other_files(folder: Path) -> None:
    """Refuse a folder that holds anything besides a cache, because a cache is replaced as a whole."""
    if folder.exists() and not folder.is_dir():
        raise InputError(folder, "a file", "a new or empty folder, or a cache")
    if folder.is_dir():
        foreign = sorted(set(os.listdir(folder)) - {MANIFEST, IMAGES, MASKS})
        if not foreign and os.listdir(folder) == [MANIFEST] and not _is_own_manifest(folder / MANIFEST):
            foreign = [MANIFEST]
        if foreign:
            raise InputError(folder, f"other files ({', '.join(foreign[:5])})", "a new or empty folder, or a cache")


def _is_own_manifest(path: Path) -> bool:
    """Return whether a manifest without data belongs to a cache; other programs use the same name."""
    try:
        return FORMAT in read_text(path, "a manifest")
    except InputError:
        return False


def fresh_neighbour(folder: Path) -> Path:
    """Return a path beside a cache that `remove_abandoned` recognises."""
    return folder.parent / f"{_prefix(folder)}{uuid.uuid4().hex}"


def _prefix(folder: Path) -> str:
    return f".{folder.name}.building-"


@contextlib.contextmanager
def build_folder(folder: Path) -> Iterator[Path]:
    """Create a folder for this process beside the cache, and remove it afterwards unless it was renamed."""
    build = fresh_neighbour(folder)
    with lock_file(_lock_path(build), wait=True):
        build.mkdir()
        try:
            yield build
        finally:
            shutil.rmtree(build, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove build folders that killed processes left behind. A running process holds the lock of its own."""
    names = {name.removesuffix(_LOCK) for name in os.listdir(folder.parent) if name.startswith(_prefix(folder))}
    for build in (folder.parent / name for name in sorted(names)):
        with lock_file(_lock_path(build), wait=False) as held:
            if held:
                shutil.rmtree(build, ignore_errors=True)


def _lock_path(build: Path) -> Path:
    return build.with_name(build.name + _LOCK)
