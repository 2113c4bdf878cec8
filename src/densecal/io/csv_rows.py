"""Tables as CSV: names that no spreadsheet runs as a formula, numbers that stay numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from densecal.names import csv_cell


def csv_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a column per key; a missing key is an empty cell."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, names))
    writer.writerows([_cell(row.get(name, "")) for name in names] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return csv_cell(value) if isinstance(value, str) else value
