"""The columns of numbers that an evaluation keeps of every image, besides its name and its row of sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class PerImage:
    """Columns with an entry for every image, in the order of the images. Which columns exist depends on the settings.

    ``overlaps``: Dice and IoU. ``cases``: `metrics.cases.COLUMNS` of every class. ``confidences``: the size of a voxel
    in cubic millimetres, NaN where no file specifies it, and `metrics.cases.AGGREGATIONS`. With full metrics ``sizes``:
    mean size of the objects, and ``zones``: the row of every boundary zone. With prices ``errors``: misses and false
    alarms of every class.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Array]] = {}

    def __getstate__(self) -> dict[str, Array]:
        """Return every column as one array: processes exchange many images at a time, and few large arrays faster."""
        return {name: np.stack(column) for name, column in self._columns.items()}

    def __setstate__(self, state: dict[str, Array]) -> None:
        self._columns = {name: list(column) for name, column in state.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        """Return a column, (images, ...)."""
        return np.stack(self._columns[name])

    def __setitem__(self, name: str, column: Iterable[Array]) -> None:
        self._columns[name] = list(column)

    def entries(self, name: str) -> list[Array]:
        """Return a column as a list, which is empty if there is no such column."""
        return self._columns.get(name, [])

    def add(self, **entries: Array | float) -> None:
        """Add an image's entries in some columns."""
        for name, entry in entries.items():
            self._columns.setdefault(name, []).append(np.asarray(entry))

    def extend(self, other: PerImage) -> None:
        """Append the images of another."""
        for name, column in other._columns.items():
            self._columns.setdefault(name, []).extend(column)

    def clear(self) -> None:
        """Forget all images."""
        self._columns = {}

    def select(self, order: Sequence[int]) -> None:
        """Keep some images, in the given order."""
        for name, column in self._columns.items():
            self._columns[name] = [column[i] for i in order]
