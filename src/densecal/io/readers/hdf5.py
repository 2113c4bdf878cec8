"""Arrays of HDF5 files as lazy arrays. Such files do not specify the meaning of their axes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.readers.protocol import Window
from densecal.io.readers.stored import (
    check_numbers,
    check_size,
    choose_array,
    find_void,
    missing_extra,
    readable,
    refuse_scaled,
    void_marks,
)
from densecal.io.urls import open_bytes

_EXPECTED = "a complete HDF5 file"
_DEFLATE, _SHUFFLE, _CHECKSUM, _LZF = 1, 2, 3, 32000
"""HDF5 filters that are supported."""
_MORE = 1 << 16
"""Bytes by which a stored or decompressed chunk may exceed its declared length."""
_INFLATION = 1032
"""The highest compression ratio of deflate."""
_MAX_INFLATED = 1 << 26
"""Chunks that cannot inflate beyond this are decoded without a check."""


class _Dataset:
    """An array of an HDF5 file."""

    channels: None = None
    geometry: None = None

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype
        self._marks = void_marks(dataset.attrs, self.dtype, name)

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values from the file."""
        with readable(self._name, _EXPECTED):
            self._check_chunks(window)
            return np.asarray(self._dataset[window])

    def _check_chunks(self, window: Window) -> None:
        """Refuse chunks that would decompress beyond their declared length, which the HDF5 library does not limit."""
        lengths = self._dataset.chunks
        if lengths is None:
            return
        kinds = _filters(self._dataset)
        size = math.prod(lengths) * self.dtype.itemsize
        whole = tuple(slice(0, length) for length in self.shape)
        for parts in self._dataset.iter_chunks((*window, *whole[len(window) :])):
            start = tuple(part.start // length * length for part, length in zip(parts, lengths, strict=True))
            about = self._dataset.id.get_chunk_info_by_coord(start)
            if about.byte_offset is None:
                continue  # not stored: all values are the fill value
            if about.size > size + size // 8 + _MORE:
                raise InputError(self._name, f"a chunk of {about.size:,} bytes", _EXPECTED)
            deflated = _DEFLATE in kinds and not about.filter_mask >> kinds.index(_DEFLATE) & 1
            if deflated and about.size * _INFLATION > _MAX_INFLATED:
                stored = self._dataset.id.read_direct_chunk(start)[1]
                if len(zlib.decompressobj().decompress(stored, size + _MORE + 1)) > size + _MORE:
                    raise InputError(self._name, "a chunk that is longer than declared", _EXPECTED)

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return where the attributes say that there is no data."""
        return find_void(self.read(window), self._marks) if self._marks else None


@contextmanager
def open_hdf5(path: Path, key: str | None, max_values: int) -> Iterator[_Dataset]:
    """Open an array of an HDF5 file: its only one, or the one with the given name."""
    name = str(path)
    try:
        import h5py
    except ModuleNotFoundError:
        raise missing_extra(name, "h5py", "zarr") from None
    with ExitStack() as stack:
        with readable(name, _EXPECTED):
            file = stack.enter_context(h5py.File(stack.enter_context(open_bytes(path)), "r"))
            names: list[str] = []
            # links to other files are not followed
            file.visititems(lambda at, item: names.append(at) if isinstance(item, h5py.Dataset) else None)
            dataset = file[choose_array(names, name, key, "a file")]
            if dataset.shape is None or dataset.is_virtual or dataset.external:
                raise InputError(name, "values in other files, or none", "values in this file")
            check_numbers(dataset.dtype, name)
            refuse_scaled(dataset.attrs.get("scale_factor", 1), dataset.attrs.get("add_offset", 0), name)
            check_size(dataset.shape, name, max_values)
            check_size((math.prod(dataset.chunks or ()),), name, max(max_values, 1 << 22))
            kinds = _filters(dataset)
            other = [kind for kind in kinds if kind not in (_DEFLATE, _SHUFFLE, _CHECKSUM, _LZF)]
            if other or (kinds.count(_DEFLATE) + kinds.count(_LZF)) > 1:
                actual = f"the filter {other[0]}" if other else "values compressed twice"
                raise InputError(name, actual, "values compressed by gzip or lzf, or not at all")
            array = _Dataset(dataset, name)
        yield array


def _filters(dataset: Any) -> list[int]:
    """Return the ids of the filters that were applied to the values."""
    properties = dataset.id.get_create_plist()
    return [int(properties.get_filter(position)[0]) for position in range(properties.get_nfilters())]
