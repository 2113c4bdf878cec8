"""What a reader of a format gives: an array whose shape is known before its values, which are read in parts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densecal.io.geometry import Geometry

Window = tuple[slice, ...]
"""A part of an array: slices with step 1 of its first axes; the others are whole."""


class LazyArray(Protocol):
    """An array in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths, known without reading values."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        ...

    @property
    def channels(self) -> int | None:
        """The axis of classes or bands, where the format says it; ``None`` where it does not."""
        ...

    @property
    def geometry(self) -> Geometry | None:
        """Where the pixels lie, where the format says it."""
        ...

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values: all of them, or those of a part."""
        ...

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return which values are missing by what the file says, as GeoTIFF's nodata; ``None`` for none."""
        ...


class Reader(Protocol):
    """Opens the files of one format. Errors are `InputError`s, and ValueErrors of damaged files."""

    def __call__(self, path: Path, key: str | None, max_values: int) -> AbstractContextManager[LazyArray]:
        """Open a file.

        Args:
            path: The file.
            key: Name of the array, in formats that hold several.
            max_values: Refuse larger arrays before reading them.
        """
        ...
