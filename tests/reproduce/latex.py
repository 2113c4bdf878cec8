"""The tables of the paper's LaTeX, read for comparison with the data file of the package."""

from __future__ import annotations

import os
import re
from pathlib import Path

NUMBER = re.compile(r"-?\d[\d.,]*")
RANGE = re.compile(r"\d+ - \d+\\?%")


ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DENSECAL_PAPER", ROOT.parent / "shared" / "paper"))
"""Where the LaTeX is; it is not part of this repository."""


def paper_text() -> str | None:
    """Return the LaTeX, or None where it is not at hand."""
    files = sorted(FOLDER.glob("*.txt"))
    return files[0].read_text(encoding="utf-8") if files else None


def labels(text: str) -> set[str]:
    """Return the labels of all tables and figures."""
    floats = re.findall(r"\\begin\{(?:table|figure)\*?\}.*?\\end\{(?:table|figure)\*?\}", text, flags=re.DOTALL)
    return {label for content in floats for label in re.findall(r"\\label\{([^}]*(?:tab|fig):[^}]*)\}", content)}


def rows_of(text: str, label: str) -> list[tuple[str, list[str]]]:
    """Return the title and the numbers, as printed, of every row of a table."""
    end = text.index(rf"\label{{{label}}}")
    body = text[text.rindex(r"\begin{tabular}", 0, end) : end]
    body = body[body.index(r"\midrule") + len(r"\midrule") : body.index(r"\bottomrule")]
    body = re.sub(r"\\multirow\{\d+\}\{\*\}\{\\parbox\{[^}]*\}\{[^}]*\}\}", "", body)
    rows = []
    for line in re.split(r"\\\\", re.sub(r"\\hline", "", body)):
        cells = [_plain(cell) for cell in line.split("&")]
        if len(cells) < 2:
            continue
        values: list[str] = []
        for cell in reversed(cells):
            if not (NUMBER.fullmatch(cell) or RANGE.fullmatch(cell)):
                break
            values.insert(0, cell.replace("\\", ""))
        title = next(cell for cell in cells if cell)
        rows.append((title, values))
    return rows


def _plain(cell: str) -> str:
    cell = re.sub(r"\\cite\{[^}]*\}", "", cell)
    cell = re.sub(r"\\(?:color)\{\w+\}|\\textbf", "", cell)
    if "$" not in cell:
        cell = cell.replace("{", "").replace("}", "")
    return cell.strip()
