"""The paper's numbers, as printed, from the one file that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from densecal.reproduce.items import read_data


@dataclass(frozen=True)
class PrintedNumber:
    """A number of the paper.

    Attributes:
        text: As printed.
        misprint: Why it must be a misprint, else empty.
    """

    text: str
    misprint: str = ""

    @property
    def value(self) -> float | None:
        """The number; ``None`` for a misprint, and for a range."""
        if self.misprint or " - " in self.text:
            return None
        return float(self.text)

    @property
    def decimals(self) -> int:
        """Decimals as printed."""
        return len(self.text.partition(".")[2])


@cache
def paper_numbers(item: str) -> dict[str, list[PrintedNumber]]:
    """Return the numbers of an item by row, in the order of its columns; empty for a figure."""
    content = read_data("paper.yaml")
    wrong = {(entry["row"], entry["column"]): entry["why"] for entry in content["misprints"] if entry["table"] == item}
    rows = content["tables"].get(item, {})
    return {
        row: [PrintedNumber(text, wrong.get((row, i), "")) for i, text in enumerate(_split(str(values)))]
        for row, values in rows.items()
    }


def _split(values: str) -> list[str]:
    return values.split(", ") if " - " in values else values.split()
