"""Exchanging two names on one file system in one step, so that neither is absent at any moment."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CURRENT_FOLDER = -100
_EXCHANGE = 2
"""Constants of Linux: `AT_FDCWD` and `RENAME_EXCHANGE`."""


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders.

    Returns:
        Whether it was done. Only Linux can, and not on every file system.
    """
    rename = _renameat2()
    if rename is None:
        return False
    return bool(rename(_CURRENT_FOLDER, os.fsencode(first), _CURRENT_FOLDER, os.fsencode(second), _EXCHANGE) == 0)


@functools.cache
def _renameat2() -> Callable[..., Any] | None:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
