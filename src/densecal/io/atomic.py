"""Writing files so that a reader never sees half of one: a temporary name in the same folder, then a rename.

A path of `-` is standard output. Pipes and devices are written to, and links are followed.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

from densecal.errors import InputError
from densecal.io.regular import kind_of
from densecal.io.urls import is_remote, write_bytes
from densecal.names import storable

SIGNIFICANT_DIGITS = 13
STDOUT = Path("-")
_NAME_PART = 40
_TEMPORARY = re.compile(r"\.(.*)\.[a-z0-9_]{8}\.tmp")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace ``path`` with what ``write`` writes. Nothing is left behind on failure.

    Args:
        path: Target, local, the path of a URL, or `-`; missing parent folders are created.
        write: Called once with a binary file.
    """
    special = path == STDOUT or kind_of(path) not in (None, "a folder")
    if special or is_remote(path):
        content = io.BytesIO()  # some writers seek, which a pipe cannot
        write(content)
        if special:
            _write_special(path, content.getvalue())
        else:
            write_bytes(path, content.getvalue())
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:_NAME_PART]}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})", "a folder that can be written to") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})", "space and permission to write") from None
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def remove_unfinished(folder: Path, names: Collection[str]) -> None:
    """Remove the temporary files of these names that killed writers left behind. Remote folders have none."""
    if is_remote(folder) or not folder.is_dir():
        return
    begins = {name[:_NAME_PART] for name in names}
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and match[1] in begins:
            path.unlink(missing_ok=True)


def _write_special(path: Path, content: bytes) -> None:
    """Write to standard output, or to a pipe or device, which a rename would replace."""
    try:
        if path == STDOUT:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            with path.open("wb") as stream:
                stream.write(content)
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})", "a reader at its other end") from None


def write_text(path: Path, text: str) -> None:
    r"""Write text as UTF-8, atomically. Bytes of names that are not UTF-8 are written as `\xNN`."""
    content = storable(text).encode("utf-8")
    write_atomically(path, lambda stream: stream.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically: floats with thirteen significant digits, NaN and infinity as null."""
    write_text(path, json.dumps(round_floats(value), indent=1, ensure_ascii=False) + "\n")


def round_floats(value: Any, digits: int = SIGNIFICANT_DIGITS) -> Any:
    """Return a copy for JSON: floats with so many significant digits, NaN and infinity as ``None``, storable text."""
    if isinstance(value, dict):
        return {storable(str(key)): round_floats(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return storable(value) if isinstance(value, str) else value


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
