"""Several files of one channel each, read as one array (K, space), in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry, check_geometry
from densecal.io.readers.protocol import LazyArray, Window
from densecal.io.readers.registry import find_reader


class Stack:
    """Open files of one channel each."""

    channels = 0

    def __init__(self, files: Sequence[LazyArray]) -> None:
        self._files = files
        first = files[0]
        self._channel = first.channels
        space = tuple(length for axis, length in enumerate(first.shape) if axis != first.channels)
        self.shape: tuple[int, ...] = (len(files), *space)
        self.dtype: np.dtype[Any] = first.dtype

    @property
    def geometry(self) -> Geometry | None:
        """Where the pixels lie."""
        return self._files[0].geometry

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values of a window."""
        chosen = self._files[window[0]] if window else self._files
        parts = [file.read(self._window(window)) for file in chosen]
        return np.stack([part if self._channel is None else np.squeeze(part, self._channel) for part in parts])

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return which values the files mark as having no data."""
        chosen = self._files[window[0]] if window else self._files
        given = [file.read_void(self._window(window)) for file in chosen]
        some = next((part for part in given if part is not None), None)
        if some is None:
            return None
        parts = (np.zeros_like(some) if part is None else part for part in given)
        return np.stack([part if self._channel is None else np.squeeze(part, self._channel) for part in parts])

    def _window(self, window: Window) -> Window:
        inner = window[1:]
        return inner if self._channel is None else (*inner[: self._channel], slice(None), *inner[self._channel :])


@contextmanager
def open_stack(paths: Sequence[Path], key: str | None, max_values: int) -> Iterator[Stack]:
    """Open files of one channel each, which must have the same shape, type and position."""
    with ExitStack() as stack:
        files = []
        for path in paths:
            reader = find_reader(path)
            if reader is None:
                raise InputError(path, "a picture", "an array, a TIFF file or a volume for every class")
            files.append(stack.enter_context(reader(path, key, max_values // len(paths))))
        for path, file in zip(paths, files, strict=True):
            _check_alike(path, file, paths[0], files[0])
        yield Stack(files)


def _check_alike(path: Path, file: LazyArray, first_path: Path, first: LazyArray) -> None:
    if file.channels is not None and file.shape[file.channels] != 1:
        raise InputError(path, f"{file.shape[file.channels]} bands or pages", "one, in a file of one class")
    if (file.shape, file.channels, file.dtype) != (first.shape, first.channels, first.dtype):
        raise InputError(path, f"{file.shape} {file.dtype}", f"{first.shape} {first.dtype}, as {first_path.name} has")
    shape = tuple(length for axis, length in enumerate(file.shape) if axis != file.channels)
    check_geometry(str(path), file.geometry, first.geometry, shape)
