"""The compiled passes over arrays, `_native.c` and the other files in C, where the installation has them.

NumPy does the same without, with the same bits: whoever asks for a compiled function keeps its counterpart beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_CLASSES = 256
"""Labels are bytes in compiled functions."""
_API = 3
"""The functions that this version calls: those of a library built from another version are not."""


def _load() -> Any:
    try:
        from densecal.metrics import _native
    except ImportError:  # installed without a compiler
        return None
    return _native if _native.API == _API else None


native: Any = _load()
"""The compiled module, or ``None``."""


def takes(*arrays: NDArray[Any]) -> bool:
    """Return whether there are compiled functions and they take these arrays: bytes or booleans, contiguous."""
    return native is not None and all(a.dtype.itemsize == 1 and a.flags.c_contiguous and a.size for a in arrays)


def takes_pictures(*arrays: NDArray[Any]) -> bool:
    """Return whether there are compiled functions and they take these arrays: `takes`, and (H, W)."""
    return takes(*arrays) and all(a.ndim == 2 for a in arrays)


def takes_floats(array: NDArray[Any]) -> bool:
    """Return whether there are compiled functions and they take this array: float32 or float64, contiguous."""
    return (
        native is not None and array.dtype in (np.float32, np.float64) and array.flags.c_contiguous and array.size > 0
    )
