"""The paper's numbers beside ours: one table, written for the terminal and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rich.table import Table

from densecal.io.csv_rows import csv_rows
from densecal.report.tables import BINNINGS, COLUMNS, Column, escape_latex, terminal_text
from densecal.reproduce.paper import PrintedNumber

OURS, PAPER, DIFFERENCE = "ours", "paper", "difference"
MISPRINT = "*"

_OTHERS = (
    Column("calibration", "mean_confidence", "Confidence", "Confidence", True, max),
    Column("segmentation", "miou", "IoU", "IoU", True, max, digits=1),
    Column("time", "hours", "Hours", "Hours", False, min, digits=2),
    Column("time", "images_per_second", "Images/s", "Images/s", False, max, digits=1),
)
FIGURES = {column.key: column for column in (*COLUMNS, *(c for group in BINNINGS.values() for c in group), *_OTHERS)}
"""The figures of the columns. IoU is in per cent, as in the paper."""


@dataclass(frozen=True)
class Heading:
    """A column of the table: data set, figure, and the number of bins where it is not that of the tables."""

    dataset: str
    figure: Column
    bins: int | None = None

    @property
    def text(self) -> str:
        """The figure as headings have it."""
        return self.figure.heading + (f", {self.bins} bins" if self.bins else "")

    @property
    def latex(self) -> str:
        """The figure as LaTeX has it."""
        return self.figure.latex + (f", {self.bins} bins" if self.bins else "")


@dataclass(frozen=True)
class Value:
    """A number of the paper and ours.

    Attributes:
        ours: Our number as a fraction or as it is, or text; NaN if there is none.
        paper: The paper's, or ``None`` if it has none.
    """

    ours: float | str = math.nan
    paper: PrintedNumber | None = None

    @property
    def is_ours(self) -> bool:
        """Whether there is a number of ours."""
        return isinstance(self.ours, str) or not math.isnan(self.ours)


@dataclass(frozen=True)
class Comparison:
    """A table of the paper.

    Attributes:
        title: What it shows.
        head: What was run, one statement per line.
        columns: Columns in the paper's order; those it does not have come last.
        rows: Values by title, in the paper's order.
        notes: What a reader must know to compare; what is missing.
    """

    title: str
    head: list[str]
    columns: list[Heading]
    rows: dict[str, list[Value]]
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[tuple[str, str, list[str]]]:
        """Return title, kind of line (paper, ours, difference) and texts of every line of the table."""
        lines = []
        for title, values in self.rows.items():
            kinds = [PAPER] if any(value.paper for value in values) else []
            if any(value.is_ours for value in values) or not kinds:
                kinds.append(OURS)
            if any(self._difference(i, value) is not None for i, value in enumerate(values)):
                kinds.append(DIFFERENCE)
            lines += [(title, kind, [self._text(kind, i, value) for i, value in enumerate(values)]) for kind in kinds]
        return lines

    def _text(self, kind: str, column: int, value: Value) -> str:
        if kind == PAPER:
            return "" if value.paper is None else value.paper.text + (MISPRINT if value.paper.misprint else "")
        shown = self._our_number(column, value)
        if kind == OURS:
            return shown if isinstance(shown, str) else f"{shown:.{self._decimals(column)}f}"
        difference = self._difference(column, value)
        return "" if difference is None else f"{difference:+.{self._decimals(column)}f}"

    def _our_number(self, column: int, value: Value) -> float | str:
        """Return our number in the paper's unit, or text."""
        if isinstance(value.ours, str) or math.isnan(value.ours):
            return value.ours if isinstance(value.ours, str) else "-"
        return 100 * value.ours if self.columns[column].figure.percent else value.ours

    def _difference(self, column: int, value: Value) -> float | None:
        shown = self._our_number(column, value)
        paper = None if value.paper is None else value.paper.value
        return None if paper is None or isinstance(shown, str) else shown - paper

    def _decimals(self, column: int) -> int:
        """Return the decimals of a column: the paper's, or those of our own tables."""
        printed = [values[column].paper for values in self.rows.values()]
        figure = self.columns[column].figure
        own = figure.digits if figure.digits is not None else 2 if figure.percent else 3
        return max((number.decimals for number in printed if number and not number.misprint), default=own)

    def misprints(self) -> list[str]:
        """Return a note for every misprint."""
        return [
            f"{MISPRINT} {title}, {self.columns[i].dataset} {self.columns[i].text}: printed "
            f"{value.paper.text}, a misprint ({value.paper.misprint})"
            for title, values in self.rows.items()
            for i, value in enumerate(values)
            if value.paper and value.paper.misprint
        ]


def terminal_table(comparison: Comparison) -> Table:
    """Return the table for the terminal."""
    title = "\n".join(terminal_text(line) for line in [comparison.title, *comparison.head])
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("")
    for column in comparison.columns:
        table.add_column(f"{terminal_text(column.dataset)}\n{column.text}", justify="right")
    lines = comparison.lines()
    for i, (row, kind, texts) in enumerate(lines):
        is_first = i == 0 or lines[i - 1][0] != row
        is_last = i + 1 == len(lines) or lines[i + 1][0] != row
        table.add_row(terminal_text(row) if is_first else "", kind, *texts, end_section=is_last)
    return table


def markdown_text(comparisons: list[Comparison]) -> str:
    """Return tables as Markdown, with everything that is said about them."""
    parts = []
    for comparison in comparisons:
        heads = ["", "", *(f"{column.dataset} {column.text}" for column in comparison.columns)]
        rows = [[row, kind, *(text.replace("*", r"\*") for text in texts)] for row, kind, texts in comparison.lines()]
        rule = ["---", "---", *["---:"] * len(comparison.columns)]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))
        parts += [f"# {comparison.title}", "\n".join(f"* {line}" for line in comparison.head), table]
        notes = [*comparison.notes, *comparison.misprints()]
        parts += ["\n".join("* " + note.replace("*", r"\*") for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def latex_text(comparisons: list[Comparison]) -> str:
    """Return tables in booktabs style."""
    return "\n".join(_latex_table(comparison) for comparison in comparisons)


def _latex_table(comparison: Comparison) -> str:
    said = [comparison.title, *comparison.head, *comparison.notes, *comparison.misprints()]
    datasets = list(dict.fromkeys(column.dataset for column in comparison.columns))
    groups = [(dataset, sum(column.dataset == dataset for column in comparison.columns)) for dataset in datasets]
    lines = [
        r"% densecal reproduce; needs \usepackage{booktabs}",
        *(f"% {line}" for line in said),
        r"\begin{tabular}{ll" + "r" * len(comparison.columns) + "}",
        r"\toprule",
        " & ".join(["", "", *(rf"\multicolumn{{{wide}}}{{c}}{{{escape_latex(name)}}}" for name, wide in groups)])
        + r" \\",
        " & ".join(["", "", *(column.latex for column in comparison.columns)]) + r" \\",
    ]
    before = ""
    for row, kind, texts in comparison.lines():
        if row != before:
            lines.append(r"\midrule")
        cells = [escape_latex(row) if row != before else "", kind, *(text.replace("%", r"\%") for text in texts)]
        lines.append(" & ".join(cells) + r" \\")
        before = row
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def csv_text(comparisons: list[Comparison]) -> str:
    """Return one line per number: the paper's, ours and the difference, in the paper's units."""
    return csv_rows(
        [
            {
                "table": comparison.title,
                "row": title,
                "data set": column.dataset,
                "figure": column.text,
                PAPER: value.paper.text if value.paper else "",
                OURS: _csv_number(comparison._our_number(i, value)),
                DIFFERENCE: _csv_number(comparison._difference(i, value)),
                "misprint": value.paper.misprint if value.paper else "",
            }
            for comparison in comparisons
            for title, values in comparison.rows.items()
            for i, (column, value) in enumerate(zip(comparison.columns, values, strict=True))
        ]
    )


def _csv_number(value: float | str | None) -> str:
    if value is None or value == "-":
        return ""
    return value if isinstance(value, str) else f"{value:.10g}"
