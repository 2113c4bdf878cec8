"""The result of a reader: an array whose shape is known before its values, which can be read in parts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densecal.io.geometry import Geometry

Window = tuple[slice, ...]
"""A part of an array: slices with step 1 along its first axes. Other axes are read in full."""


class LazyArray(Protocol):
    """An array in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, known without reading values."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        ...

    @property
    def channels(self) -> int | None:
        """The axis of classes or bands, where the format specifies it; ``None`` where it does not."""
        ...

    @property
    def geometry(self) -> Geometry | None:
        """Where the pixels lie, where the format specifies it."""
        ...

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read all values, or those of a part."""
        ...

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return which values the file marks as missing, such as GeoTIFF's nodata; ``None`` if there are none."""
        ...


class Reader(Protocol):
    """Opens the files of one format. Raises an `InputError`, or a ValueError for damaged files."""

    def __call__(self, path: Path, key: str | None, max_values: int) -> AbstractContextManager[LazyArray]:
        """Open a file.

        Args:
            path: The file.
            key: Name of the array, for formats that can hold several.
            max_values: Refuse larger arrays before reading them.
        """
        ...
