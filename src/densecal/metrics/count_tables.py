"""The tables of a sketch by name: counts and exact sums, in memory and on an accelerator, that never overflow.

A table (..., 4) holds the number of pixels with outcome 0 and with outcome 1, and two limbs of a sum (`fine_bins.py`).
"""

from __future__ import annotations

import copy

import numpy as np

from densecal.metrics.arrays import Array, on_host, to_host
from densecal.metrics.fine_bins import Ints, carry

_SUM_TABLES = ("top", "bands", "classes", "fine", "fine_top", "top_k")
_CARRY_EVERY = 1 << 26
"""Pixels after which whole numbers are carried out of the limbs. These hold 2**36 pixels, so that the tables of a
thousand processes can be added before."""


class CountTables:
    """Integer tables that add up.

    What is counted on an accelerator stays there in tables of its own, until the counts are read.

    Attributes:
        host: The tables in memory.
        device: Those on an accelerator.
    """

    def __init__(self, tables: dict[str, Ints]) -> None:
        self.host = tables
        self.device: dict[str, Array] = {}
        self._uncarried = 0
        """Pixels since whole numbers were last carried."""

    def __contains__(self, name: str) -> bool:
        return name in self.host or name in self.device

    def fetch(self) -> dict[str, Ints]:
        """Return all tables; those on an accelerator are fetched."""
        waiting, self.device = self.device, {}
        for name, table in waiting.items():
            self.add(name, to_host(table))
        return self.host

    def add(self, name: str, table: Array) -> None:
        """Add to a table in memory, or to its part on an accelerator."""
        tables: dict[str, Array] = self.host if on_host(table) else self.device
        old = tables.get(name)
        if old is not None:
            table = np.asarray(old + table) if on_host(table) else old.to(table.device) + table
        tables[name] = table

    def merge(self, other: CountTables) -> None:
        """Add all tables of another sketch."""
        for name, table in [*other.host.items(), *other.device.items()]:
            self.add(name, table)
        self.carry_if_large(other._uncarried)

    def copy(self) -> CountTables:
        """Return tables that change apart from these, unless one is changed in place."""
        new = copy.copy(self)
        new.host, new.device = dict(self.host), dict(self.device)
        return new

    def carry(self) -> None:
        """Take the whole numbers out of the limbs of every sum, which then stay far from the end of int64."""
        for tables in (self.host, self.device):
            for name in set(_SUM_TABLES) & tables.keys():
                tables[name], whole = carry(tables[name])
                self.add(f"{name}_whole", whole)
        self._uncarried = 0

    def carry_if_large(self, pixels: int) -> None:
        """Note that so many pixels were counted, and carry if that is due."""
        self._uncarried += pixels
        if self._uncarried > _CARRY_EVERY:
            self.carry()

    def carried(self, name: str) -> tuple[Ints, Ints]:
        """Return a table and its whole numbers, the same however often and when they were carried before."""
        tables = self.fetch()
        table, whole = carry(tables[name])
        more = tables.get(f"{name}_whole")
        return table, whole if more is None else whole + more
