"""The lazy arrays that most formats need: values in memory, and uncompressed values in a file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.images import first_line
from densecal.io.readers.protocol import Window

Array = NDArray[Any]


@dataclass(frozen=True)
class StoredArray:
    """An array that was read when it was opened."""

    values: Array
    channels: int | None = None
    geometry: Geometry | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.values.dtype

    def read(self, window: Window = ()) -> Array:
        """Return the values."""
        return self.values[window]

    def read_void(self, window: Window = ()) -> None:
        """Return ``None``: such files do not mark values as missing."""


@dataclass(frozen=True)
class FileArray:
    """Uncompressed values in a file, the last axis varying fastest.

    Attributes:
        stream: The file.
        name: Its name in error messages.
        offset: Bytes before the first number.
        stored: Type of the numbers in the file.
        shape: Shape of the array.
        channels: The axis of classes or bands, if it is known.
        geometry: Where the pixels lie, if it is known.
        convert: Turns numbers of the file into values.
    """

    stream: BinaryIO
    name: str
    offset: int
    stored: np.dtype[Any]
    shape: tuple[int, ...]
    channels: int | None = None
    geometry: Geometry | None = None
    convert: Callable[[Array], Array] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        empty = np.empty(0, self.stored)
        return empty.dtype if self.convert is None else self.convert(empty).dtype

    def read(self, window: Window = ()) -> Array:
        """Read values from the file."""
        lengths = self.shape
        ranges = [range(length)[part] for length, part in zip(lengths, window, strict=False)]
        ranges += [range(length) for length in lengths[len(window) :]]
        partial = [axis for axis, part in enumerate(ranges) if len(part) != lengths[axis]]
        run = max(
            partial, default=0
        )  # the axis along which the numbers to read are adjacent; later axes are read in full
        values = np.empty([len(part) for part in ranges], self.stored)
        strides = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
        if values.size:
            for position, index in enumerate(itertools.product(*ranges[:run])):
                first = sum(i * stride for i, stride in zip(index, strides, strict=False))
                first += ranges[run].start * strides[run] if ranges else 0
                target = values.reshape(-1, *values.shape[run:])[position]
                with readable(self.name, "a file that can be read"):
                    self._read_into(target, self.offset + first * self.stored.itemsize)
        return values if self.convert is None else self.convert(values)

    def _read_into(self, target: Array, offset: int) -> None:
        self.stream.seek(offset)
        left = target.reshape(-1).view(np.uint8).data
        while left:
            count = self.stream.readinto(left)  # type: ignore[attr-defined]
            if not count:
                raise InputError(self.name, "a file cut short", "all of its values")
            left = left[count:]

    def read_void(self, window: Window = ()) -> None:
        """Return ``None``: such files do not mark values as missing."""


@contextmanager
def readable(name: str, expected: str) -> Iterator[None]:
    """Turn errors of every kind, which reading a damaged file may raise, into an InputError.

    Only the reading belongs inside. A reader yields its array outside, so that errors of the code that uses the values
    are not blamed on the file.
    """
    try:
        yield
    except (InputError, NameError, ImportError):  # errors of names and modules are not the file's fault
        raise
    except FileNotFoundError:
        raise InputError(name, "no such file", expected) from None
    except Exception as error:
        raise InputError(name, f"unreadable ({first_line(error)})", expected) from None


def check_size(shape: Iterable[int], name: str, max_values: int) -> None:
    """Refuse an array that is too large before its values are read."""
    count = math.prod(shape)
    if count > max_values:
        raise InputError(name, f"{count:,} values", f"at most {max_values:,} (raise the limit with --max-pixels)")


def check_numbers(dtype: np.dtype[Any], name: str) -> None:
    """Refuse values that are not plain numbers."""
    if dtype.kind not in "fiub":
        raise InputError(name, f"values of type {dtype}", "plain numbers")


def refuse_scaled(factor: Any, offset: Any, name: str, how: str = "") -> None:
    """Refuse values that the file wants multiplied by a factor and increased by an offset."""
    if not (np.all(np.asarray(factor) == 1) and np.all(np.asarray(offset) == 0)):
        found = f"numbers to be multiplied by {factor} and increased by {offset}"[:120]
        raise InputError(name, found, f"the results as floats{how}")


def void_marks(attributes: Mapping[str, Any], dtype: np.dtype[Any], name: str) -> list[Any]:
    """Return the values that mark elements without data, by the conventions of netCDF: those of two attributes.

    Raises:
        InputError: An attribute is not a single number that the type of the array can hold.
    """
    marks = []
    for key in ("_FillValue", "missing_value"):
        given = attributes.get(key)
        if given is None:
            continue
        items = np.array(given, dtype=object).reshape(-1)
        value = np.asarray(items[0] if items.size == 1 else None)
        fits = value.ndim == 0 and value.dtype.kind in ("b" if dtype.kind == "b" else "iuf")
        if fits:
            with np.errstate(all="ignore"):
                mark = value.astype(dtype)[()]
            # floats are rounded to the type of the array
            fits = np.isinf(mark) == np.isinf(value) if dtype.kind == "f" else mark.item() == value.item()
        if not fits:
            raise InputError(name, f"the attribute {key} = {given}"[:120], f"a single number of type {dtype}")
        marks.append(mark)
    return marks


def find_void(values: Array, marks: list[Any]) -> NDArray[np.bool_]:
    """Return which values equal a mark. NaN equals NaN."""
    void = np.zeros(values.shape, bool)
    for mark in marks:
        void |= np.isnan(values) if np.isnan(mark) else values == mark
    return void


def refuse_key(key: str | None, name: str, actual: str) -> None:
    """Refuse the name of an array for a file that holds only one."""
    if key is not None:
        raise InputError(name, actual, "an archive of arrays for --key")


def missing_extra(name: str, package: str, extra: str) -> InputError:
    """Return the error of a format whose library is not installed."""
    return InputError(name, f"a format that {package} reads", f"pip install 'densecal[{extra}]'")


def choose_array(names: list[str], name: str, key: str | None, kind: str) -> str:
    """Return which of several arrays to read.

    Args:
        names: Names of all arrays in the file.
        name: Name of the file in error messages.
        key: The name that was requested, if any.
        kind: Name of such a file in error messages.
    """
    first_names = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    count = f"{len(names)} arrays" + (f" ({first_names})" if names else "")
    if key is None and len(names) == 1:
        return names[0]
    if key is None:
        hint = "; --key NAME reads one of several" if names else ""
        raise InputError(name, count, f"{kind} that holds one array{hint}")
    if key not in names:
        raise InputError(name, count, f"an array named {key} (--key)")
    return key
