"""Sums of floats that do not depend on the order or the grouping of the additions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_HIGH = 2.0**20
_LOW_BITS = 40


class ExactSums:
    """Sums of named arrays, kept as integers: floats are rounded to multiples of 2^-60, and sums may reach 2^42.

    Float addition rounds, so its result depends on how the terms are grouped; that of integer addition does not.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Array, Array] | Array] = {}

    def add(self, values: Mapping[str, Array]) -> None:
        """Add arrays of ints or floats by name."""
        for name, value in values.items():
            self._add(name, _limbs(value) if np.issubdtype(value.dtype, np.floating) else value)

    def merge(self, other: ExactSums) -> None:
        """Add the sums of another instance."""
        for name, value in other._sums.items():
            self._add(name, value)

    def values(self) -> dict[str, Array]:
        """Return the sums in the type of their terms, ints or floats."""
        return {name: _float(*value) if isinstance(value, tuple) else value for name, value in self._sums.items()}

    def _add(self, name: str, value: tuple[Array, Array] | Array) -> None:
        old = self._sums.get(name)
        if isinstance(value, tuple) and isinstance(old, tuple):
            low = old[1] + value[1]
            self._sums[name] = (old[0] + value[0] + (low >> _LOW_BITS), low & ((1 << _LOW_BITS) - 1))
        elif not isinstance(value, tuple) and not isinstance(old, tuple):
            self._sums[name] = value if old is None else old + value
        elif old is None:
            self._sums[name] = value
        else:
            raise ValueError(f"{name}: found ints and floats; expected one type only")


def _limbs(value: Array) -> tuple[Array, Array]:
    scaled = value * _HIGH
    high = np.floor(scaled)
    low = np.rint((scaled - high) * 2.0**_LOW_BITS).astype(np.int64)
    return high.astype(np.int64) + (low >> _LOW_BITS), low & ((1 << _LOW_BITS) - 1)


def _float(high: Array, low: Array) -> Array:
    return np.asarray((high + low / 2.0**_LOW_BITS) / _HIGH)
