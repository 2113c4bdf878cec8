"""Tables of evaluation records for the terminal, as CSV and as LaTeX, with the best of each data set marked."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from densecal.evaluation.record import Record


@dataclass(frozen=True)
class Column:
    """A figure that has a column: where it is, its heading, and whether high or low is good."""

    section: str
    key: str
    heading: str
    latex: str
    percent: bool
    best: Callable[[list[float]], float]

    def value(self, record: Record) -> float:
        """Return the figure; NaN where the record does not have it."""
        return record.figure(self.section, self.key)

    def text(self, value: float) -> str:
        """Return the figure as shown: in per cent, or with three decimals."""
        return percent(value) if self.percent else fixed(value, 3)


def _calibration(key: str, heading: str, latex: str, best: Callable[[list[float]], float] = min) -> Column:
    return Column("calibration", key, heading, latex, True, best)


def _segmentation(key: str, heading: str, latex: str, best: Callable[[list[float]], float] = max) -> Column:
    return Column("segmentation", key, heading, latex, False, best)


COLUMNS = (
    _calibration("ece_ew", "ECE", r"ECE\textsubscript{EW}"),
    _calibration("oe_ew", "OE", r"OE\textsubscript{EW}"),
    _calibration("ece_em", "ECE em", r"ECE\textsubscript{EM}"),
    _calibration("ece_sweep", "ECE sweep", r"ECE\textsubscript{SWEEP}"),
    _calibration("ece_foreground", "ECE fg", r"ECE\textsubscript{fg}"),
    _calibration("brier", "Brier", "Brier"),
    _calibration("accuracy", "Acc.", "Acc.", max),
    _segmentation("f_max", "F max", r"$F_{\max}$"),
    _segmentation("e_max", "E max", r"$E_{\max}$"),
    _segmentation("s_measure", "S", r"$S$"),
    _segmentation("mae", "MAE", "MAE", min),
    _segmentation("miou", "mIoU", "mIoU"),
)

_NOTES = {
    "ece_ew": "expected calibration error, equal-width bins",
    "oe_ew": "over-confidence part of it",
    "oe_ew_weighted": "the same weighted by confidence, most likely the paper's",
    "ue_ew": "under-confidence part of it",
    "ece_em": "equal-mass bins",
    "ece_sweep": "monotone equal-mass bins",
    "ece_debias": "debiased, squared",
    "mce": "worst bin",
    "ece_image_mean": "mean over images",
    "ece_boundary_5": "within 5 px of a boundary",
    "ece_boundary_15": "within 15 px of a boundary",
    "ece_foreground": "of the foreground probability",
    "sce": "class-wise, equal width",
    "ace": "class-wise, equal mass",
    "auroc_error": "low confidence finds errors",
    "aurc": "risk over coverage",
    "accuracy": "correct pixels",
    "mean_confidence": "of the winning class",
}


def comparison_table(records: list[Record]) -> Table:
    """Return one row per method and data set, with the best of each data set in bold."""
    columns = used_columns(records)
    table = Table(title="Calibration in per cent", title_justify="left")
    table.add_column("data set")
    table.add_column("method")
    for column in columns:
        table.add_column(column.heading, justify="right")
    for dataset, group in by_dataset(records).items():
        best = best_values(group, columns)
        for record in group:
            cells = [_bold(c, c.value(record), best[c.key], "[bold]{}[/bold]") for c in columns]
            table.add_row(escape(dataset), escape(record.name), *cells)
        table.add_section()
    return table


def figure_table(record: Record) -> Table:
    """Return every figure of one evaluation, with intervals where there are any."""
    table = Table(
        title=f"{escape(record.name)} on {escape(record.dataset)}: {record.images:,} images, {record.pixels:,} pixels",
        title_justify="left",
    )
    for heading, justify in (("figure", "left"), ("value", "right"), ("95 % interval", "left"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    calibration = record.calibration
    for key, value in calibration.items():
        plain = key in ("sweep_bins", "nll", "ece_debias", "auroc_error", "aurc")
        interval = ""
        if key in calibration.ci:
            interval = " to ".join(f"{end:.4g}" if plain else percent(end) for end in calibration.ci[key])
        shown = (f"{value:.4g}" if plain else f"{percent(value)} %") if not _is_missing(value) else "-"
        table.add_row(key, shown, interval, _NOTES.get(key, ""))
    table.add_section()
    for key, score in record.segmentation.items():
        value_text = " ".join(fixed(v, 3) for v in score) if isinstance(score, tuple) else fixed(score, 4)
        table.add_row(key, value_text, "", "")
    return table


def csv_text(records: list[Record]) -> str:
    """Return one line per record with every figure, as fractions."""
    rows = []
    for record in records:
        row: dict[str, Any] = {key: getattr(record, key) for key in ("name", "dataset", "images", "pixels")}
        row |= {key: "" if _is_missing(value) else f"{value:.10g}" for key, value in record.calibration.items()}
        for name, (low, high) in record.calibration.ci.items():
            row[f"{name}_low"], row[f"{name}_high"] = f"{low:.10g}", f"{high:.10g}"
        for key, value in record.segmentation.items():
            values = {f"{key}_{i}": v for i, v in enumerate(value)} if isinstance(value, tuple) else {key: value}
            row |= {key: "" if _is_missing(v) else f"{v:.10g}" for key, v in values.items()}
        rows.append(row)
    return csv_rows(rows)


def csv_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV with a column per key; a missing key is an empty cell."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def latex_text(records: list[Record]) -> str:
    """Return a booktabs table, with calibration in per cent and the best of each data set in bold."""
    columns = used_columns(records)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{ll" + "r" * len(columns) + "}",
        r"\toprule",
        " & ".join(["Data set", "Method", *(c.latex for c in columns)]) + r" \\",
    ]
    for dataset, group in by_dataset(records).items():
        lines.append(r"\midrule")
        best = best_values(group, columns)
        for record in group:
            cells = [_bold(c, c.value(record), best[c.key], r"\textbf{{{}}}") for c in columns]
            lines.append(" & ".join([escape_latex(dataset), escape_latex(record.name), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def by_dataset(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records grouped by data set, in order of appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.dataset, []).append(record)
    return groups


def used_columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns that some record has a figure for."""
    return [c for c in COLUMNS if any(not math.isnan(c.value(r)) for r in records)]


def best_values(group: Sequence[Record], columns: Sequence[Column]) -> dict[str, float]:
    """Return the best value of each column; NaN where there is nothing to compare."""
    best = {}
    for column in columns:
        values = [v for v in (column.value(record) for record in group) if not math.isnan(v)]
        best[column.key] = column.best(values) if len(values) > 1 else float("nan")
    return best


def _bold(column: Column, value: float, best: float, markup: str) -> str:
    text = column.text(value)
    return markup.format(text) if text != "-" and text == column.text(best) else text


def percent(value: float | None) -> str:
    """Return a fraction in per cent with two decimals, or a dash for a missing value."""
    return fixed(None if value is None else 100 * value, 2)


def fixed(value: float | None, digits: int) -> str:
    """Return a value with a fixed number of decimals, or a dash for a missing value."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _is_missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def escape_latex(text: str) -> str:
    """Return text in which no character has a meaning of its own in LaTeX."""
    special = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    }  # fmt: skip
    return "".join(special.get(character, character) for character in text)
