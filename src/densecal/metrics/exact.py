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
    """Named arrays added up as integers: a float counts as the nearest multiple of 2^-60, sums may reach 2^42.

    Float addition rounds, so a sum of parts depends on how the whole was parted; integer addition does not.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Array, Array] | Array] = {}

    def add(self, values: Mapping[str, Array]) -> None:
        """Add arrays of ints or floats by name."""
        for name, value in values.items():
            self._add(name, _limbs(value) if np.issubdtype(value.dtype, np.floating) else value)

    def merge(self, other: ExactSums) -> None:
        """Add what another one has summed."""
        for name, value in other._sums.items():
            self._add(name, value)

    def values(self) -> dict[str, Array]:
        """The sums, as they were given: ints or floats."""
        return {name: _value(*one) if isinstance(one, tuple) else one for name, one in self._sums.items()}

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
            raise ValueError(f"{name}: found ints and floats; expected one of them")


def _limbs(value: Array) -> tuple[Array, Array]:
    scaled = value * _HIGH
    high = np.floor(scaled)
    low = np.rint((scaled - high) * 2.0**_LOW_BITS).astype(np.int64)
    return high.astype(np.int64) + (low >> _LOW_BITS), low & ((1 << _LOW_BITS) - 1)


def _value(high: Array, low: Array) -> Array:
    return np.asarray((high + low / 2.0**_LOW_BITS) / _HIGH)
