"""Arrays of HDF5 files as lazy arrays; such files do not say which axis is which."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.readers.protocol import Window
from densecal.io.readers.stored import check_numbers, check_size, choose_array, missing_extra, readable
from densecal.io.urls import open_bytes

_EXPECTED = "a complete HDF5 file"


class _Dataset:
    """An array of an HDF5 file."""

    channels: None = None
    geometry: None = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values from the file."""
        return np.asarray(self._dataset[window])

    def read_void(self, window: Window = ()) -> None:
        """Return nothing: such files do not mark values as missing."""


@contextmanager
def open_hdf5(path: Path, key: str | None, max_values: int) -> Iterator[_Dataset]:
    """Open an array of an HDF5 file: its only one, or that of a name."""
    name = str(path)
    try:
        import h5py
    except ModuleNotFoundError:
        raise missing_extra(name, "h5py", "zarr") from None
    with readable(name, _EXPECTED), open_bytes(path) as stream, h5py.File(stream, "r") as file:
        names: list[str] = []
        # links to other files are not followed
        file.visititems(lambda at, item: names.append(at) if isinstance(item, h5py.Dataset) else None)
        dataset = file[choose_array(names, name, key, "a file")]
        if dataset.shape is None or dataset.is_virtual or dataset.external:
            raise InputError(name, "values in other files, or none", "values in this file")
        check_numbers(dataset.dtype, name)
        check_size(dataset.shape, name, max_values)
        check_size((math.prod(dataset.chunks or ()),), name, max(max_values, 1 << 22))
        yield _Dataset(dataset)
