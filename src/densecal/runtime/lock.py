"""One process at a time: locks that the system releases when their process ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from densecal.errors import InputError


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[bool]:
    """Try to hold the lock of a folder.

    Args:
        folder: Created if it is missing.

    Yields:
        Whether the lock is held; ``False`` while another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _acquire(folder / ".lock", wait=False)
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})", "a folder that can be written to") from None
    with _release_later(lock):
        yield lock is not None


@contextlib.contextmanager
def lock_file(path: Path, wait: bool) -> Iterator[bool]:
    """Try to hold the lock of a file, which exists only while the lock is held.

    Args:
        path: The lock file.
        wait: Wait while another process holds it.

    Yields:
        Whether the lock is held; also ``False`` if the file cannot be created.
    """
    try:
        lock = _acquire(path, wait)
    except OSError:
        lock = None
    with _release_later(lock):
        yield lock is not None


def _acquire(path: Path, wait: bool) -> FileLock | None:
    lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


@contextlib.contextmanager
def _release_later(lock: FileLock | None) -> Iterator[None]:
    try:
        yield
    finally:
        if lock is not None:
            # Removed while still held: a process waiting for this file notices, and locks a new one.
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()
            lock.release()
