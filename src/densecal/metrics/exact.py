"""Sums that do not depend on the order or the grouping of the additions, and the number of pixels they can hold."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PIXEL_LIMIT = 10**18
"""Figures are exact up to this number of pixels. More are refused, because int64 ends at 9.2e18."""

_SPLIT = 30
_BITS = 30
_UNIT = 2.0**_BITS


def add_pixels(here: int, more: int) -> int:
    """Return the sum of two numbers of pixels; raise ValueError if it is past the limit."""
    if here + more > PIXEL_LIMIT:
        raise ValueError(f"{here + more:,} pixels in all; expected at most {PIXEL_LIMIT:,}, the limit of exact counts")
    return here + more


def total_count(counts: Any) -> int:
    """Return the sum of an int64 array or tensor as a Python integer, which cannot overflow."""
    return (int((counts >> 32).sum()) << 32) + int((counts & 0xFFFFFFFF).sum())


def sum_products(index: Array, count: Array, factor: Array, size: int) -> NDArray[np.float64]:
    """Return the sums of count * factor by index, in exact integers until the result is rounded.

    Args:
        index: Where each product belongs, 0 to size - 1; at most 65536 of them.
        count: Numbers of pixels, int64.
        factor: int64 below 2^16.
        size: Number of sums.
    """
    high, low = np.zeros((2, size), np.int64)
    np.add.at(high, index, (count >> _SPLIT) * factor)
    np.add.at(low, index, (count & ((1 << _SPLIT) - 1)) * factor)
    return np.asarray(high * 2.0**_SPLIT + low)


class ExactSums:
    """Sums of named arrays, kept as integers: floats are rounded to multiples of 2^-60, and sums may reach 2^62.

    Float addition rounds, so its result depends on how the terms are grouped; that of integer addition does not.
    """

    def __init__(self, values: Mapping[str, Array] | None = None) -> None:
        self._sums: dict[str, tuple[Array, ...] | Array] = {}
        self.add(values or {})

    def add(self, values: Mapping[str, Array], axis: int | None = None) -> None:
        """Add arrays of ints or floats by name, or their terms along an axis, each of which is rounded by itself."""
        for name, value in values.items():
            terms = _limbs(value) if np.issubdtype(value.dtype, np.floating) else value
            if axis is not None:
                terms = _carry(*(t.sum(axis=axis) for t in terms)) if isinstance(terms, tuple) else terms.sum(axis=axis)
            self._add(name, terms)

    def merge(self, other: ExactSums) -> None:
        """Add the sums of another instance."""
        for name, value in other._sums.items():
            self._add(name, value)

    def values(self) -> dict[str, Array]:
        """Return the sums in the type of their terms, ints or floats."""
        return {name: _float(*v) if isinstance(v, tuple) else v.copy() for name, v in self._sums.items()}

    def integers(self) -> dict[str, Array]:
        """Return the integers behind the sums; those of a float sum have one more axis, for the limbs."""
        return {name: np.stack(v) if isinstance(v, tuple) else v.copy() for name, v in self._sums.items()}

    @classmethod
    def from_integers(cls, integers: Mapping[str, Array], floats: Container[str]) -> ExactSums:
        """Make sums of what `integers` returned, where ``floats`` names the sums of floats."""
        new = cls()
        new._sums = {name: _carry(*v) if name in floats else v for name, v in integers.items()}
        return new

    def _add(self, name: str, value: tuple[Array, ...] | Array) -> None:
        old = self._sums.get(name)
        if isinstance(value, tuple) and isinstance(old, tuple):
            self._sums[name] = _carry(*(a + b for a, b in zip(old, value, strict=True)))
        elif not isinstance(value, tuple) and not isinstance(old, tuple):
            self._sums[name] = value if old is None else old + value
        elif old is None:
            self._sums[name] = value
        else:
            raise ValueError(f"{name}: found ints and floats; expected one type only")


def _limbs(value: Array) -> tuple[Array, ...]:
    """Return whole numbers, and two limbs of 30 bits for what is left."""
    whole = np.floor(value)
    middle = np.floor((value - whole) * _UNIT)
    low = np.rint(((value - whole) * _UNIT - middle) * _UNIT)
    return _carry(*(limb.astype(np.int64) for limb in (whole, middle, low)))


def _carry(whole: Array, middle: Array, low: Array) -> tuple[Array, ...]:
    middle = middle + (low >> _BITS)
    return whole + (middle >> _BITS), middle & ((1 << _BITS) - 1), low & ((1 << _BITS) - 1)


def _float(whole: Array, middle: Array, low: Array) -> Array:
    return np.asarray(whole + (middle + low / _UNIT) / _UNIT)
