"""The meaning of the labels in masks for an evaluation: classes in another order, a region of several labels, void."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from densecal.errors import InputError

REFUSED = -1


@dataclass(frozen=True)
class Relabel:
    """A table of labels.

    Attributes:
        table: The new label of each of the labels 0 to 255; -1 for labels that must not occur.
        source: The origin of the labels, for error messages.
    """

    table: tuple[int, ...]
    source: str

    def check(self, present: Iterable[int], name: str) -> None:
        """Refuse labels that must not occur.

        Args:
            present: Labels in a mask.
            name: Name of the mask in error messages.
        """
        unknown = [label for label in present if self.table[label] == REFUSED]
        if unknown:
            known = [label for label, new in enumerate(self.table) if new != REFUSED]
            expected = f"{_ranges(known)}, the labels of {self.source}; --format plain reads labels as they are"
            raise InputError(name, f"label {unknown[0]}", expected)


def relabel(new: Mapping[int, int], source: str) -> Relabel:
    """Return the table that gives labels new values and refuses all others."""
    return Relabel(tuple(new.get(label, REFUSED) for label in range(256)), source)


def _ranges(labels: Iterable[int]) -> str:
    """Return labels as text, such as `0 to 18, 255`."""
    runs: list[list[int]] = []
    for label in labels:
        if runs and label == runs[-1][1] + 1:
            runs[-1][1] = label
        else:
            runs.append([label, label])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
