"""`.npy` and `.npz` files as lazy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.arrays import read_array


@dataclass(frozen=True)
class StoredArray:
    """An array that was read when it was opened; such files do not say which axis is which."""

    values: NDArray[Any]
    channels: None = None
    spacing: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.values.dtype

    def read(self) -> NDArray[Any]:
        """Return the values."""
        return self.values


@contextmanager
def open_array(path: Path, key: str | None, max_values: int) -> Iterator[StoredArray]:
    """Open a `.npy` file or an array of a `.npz` file."""
    yield StoredArray(read_array(path, str(path), max_values, key))
