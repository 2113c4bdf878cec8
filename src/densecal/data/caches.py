"""The user's cache folder, in which training keeps packed images: what is there, and how to clear it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from densecal.data.cache_folder import FORMAT, IMAGES, MANIFEST, MASKS
from densecal.errors import InputError
from densecal.io.documents import read_json


@dataclass(frozen=True)
class Cache:
    """A cache of packed images.

    Attributes:
        folder: Its folder.
        samples: Number of images.
        side: Their side in pixels.
        bytes: Its size.
        last_used: When its images were last read or written, as far as the file system records it.
    """

    folder: Path
    samples: int
    side: int
    bytes: int
    last_used: datetime


def cache_root() -> Path:
    """Return the folder in which training keeps its caches by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "densecal" / "packed"


def list_caches() -> list[Cache]:
    """Return the caches in the user's cache folder, the largest first. Links are skipped."""
    root = cache_root()
    folders = [folder for folder in sorted(root.iterdir()) if not folder.is_symlink()] if root.is_dir() else []
    caches = [read_cache(folder) for folder in folders]
    return sorted((cache for cache in caches if cache is not None), key=lambda cache: -cache.bytes)


def read_cache(folder: Path) -> Cache | None:
    """Return the properties of a cache, or ``None`` if the folder is not one."""
    try:
        manifest = read_json(folder / MANIFEST, "a manifest")
        if manifest["format"] != FORMAT:
            return None
        files = [(folder / name).stat() for name in (MANIFEST, IMAGES, MASKS)]
        used = max(max(file.st_atime, file.st_mtime) for file in files)
        return Cache(
            folder,
            len(manifest["names"]),
            int(manifest["size"]),
            sum(file.st_size for file in files),
            datetime.fromtimestamp(used),
        )
    except (InputError, OSError, LookupError, TypeError, ValueError, OverflowError):
        return None


def clear_caches() -> list[Cache]:
    """Remove the caches in the user's cache folder, and nothing else in it.

    Returns:
        The caches that were removed.

    Raises:
        InputError: A cache cannot be removed.
    """
    caches = list_caches()
    for cache in caches:
        try:
            for name in (MANIFEST, IMAGES, MASKS):
                (cache.folder / name).unlink()
            if not any(cache.folder.iterdir()):
                cache.folder.rmdir()
        except OSError as error:
            raise InputError(cache.folder, f"cannot be removed ({error.strerror})", "a folder of your own") from None
    return caches
