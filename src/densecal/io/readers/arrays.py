"""`.npy` and `.npz` files as lazy arrays. Such files do not specify the meaning of their axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.arrays import open_numbers
from densecal.io.readers.protocol import LazyArray, Window
from densecal.io.readers.stored import FileArray


class _Transposed:
    """An array whose first axis varies fastest in the file."""

    channels: None = None
    geometry: None = None

    def __init__(self, stored: FileArray) -> None:
        self._stored = stored
        self.shape = stored.shape[::-1]
        self.dtype = stored.dtype

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values from the file."""
        whole = (*window, *(slice(None) for _ in self.shape[len(window) :]))
        return self._stored.read(whole[::-1]).T

    def read_void(self, window: Window = ()) -> None:
        """Return ``None``: such files do not mark values as missing."""


@contextmanager
def open_array(path: Path, key: str | None, max_values: int) -> Iterator[LazyArray]:
    """Open a `.npy` file or an array of a `.npz` file."""
    with open_numbers(path, str(path), max_values, key) as (stream, header):
        shape = header.shape[::-1] if header.fortran else header.shape
        stored = FileArray(stream, str(path), header.size, np.dtype(header.dtype), shape)
        yield _Transposed(stored) if header.fortran else stored
