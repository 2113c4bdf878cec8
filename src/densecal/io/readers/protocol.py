"""What a reader of a format gives: an array whose shape is known before its values are read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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
    def spacing(self) -> tuple[float, ...] | None:
        """Distance of pixels along every axis of space, where the format says it."""
        ...

    def read(self) -> NDArray[Any]:
        """Read all values."""
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
