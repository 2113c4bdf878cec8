"""Tables of evaluation records for the terminal, as CSV and as LaTeX, with the best of each data set marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from densecal.evaluation.record import Record, known_interval
from densecal.io.csv_rows import csv_rows
from densecal.names import printable
from densecal.report.cases import case_lines, distance_unit


@dataclass(frozen=True)
class Column:
    """A figure that has a column: where it is, its heading, whether high or low is good, and how many decimals."""

    section: str
    key: str
    heading: str
    latex: str
    percent: bool
    best: Callable[[list[float]], float]
    digits: int | None = None

    def value(self, record: Record) -> float:
        """Return the figure; NaN where the record does not have it."""
        return record.figure(self.section, self.key)

    def interval(self, record: Record) -> tuple[float, ...]:
        """Return the ends of the figure's 95 % interval; empty where it has none."""
        intervals = record.calibration.ci if self.section == "calibration" else record.segmentation_ci or {}
        return known_interval(intervals, self.key) or ()

    def text(self, value: float) -> str:
        """Return the figure as shown: in per cent with two decimals, or with three; ``digits`` overrides both."""
        digits = self.digits if self.digits is not None else 2 if self.percent else 3
        return fixed(100 * value if self.percent else value, digits)


def _calibration(key: str, heading: str, latex: str, best: Callable[[list[float]], float] = min) -> Column:
    return Column("calibration", key, heading, latex, True, best)


def _segmentation(key: str, heading: str, latex: str, best: Callable[[list[float]], float] = max) -> Column:
    return Column("segmentation", key, heading, latex, False, best)


COLUMNS = (
    _calibration("ece_ew", "ECE", r"ECE\textsubscript{EW}"),
    _calibration("oe_ew", "OE", r"OE"),
    _calibration("oe_ew_weighted", "OE weighted", r"OE\textsubscript{EW}"),
    _calibration("ece_em", "ECE em", r"ECE\textsubscript{EM}"),
    _calibration("ece_sweep", "ECE sweep", r"ECE\textsubscript{SWEEP}"),
    _calibration("ece_foreground", "ECE fg", r"ECE\textsubscript{fg}"),
    _calibration("smece", "smECE", "smECE"),
    _calibration("flip_rate", "Flips", "Flips"),
    _calibration("brier", "Brier", "Brier"),
    _calibration("accuracy", "Acc.", "Acc.", max),
    _segmentation("f_max", "F max", r"$F_{\max}$"),
    _segmentation("e_max", "E max", r"$E_{\max}$"),
    _segmentation("s_measure", "S", r"$S$"),
    _segmentation("mae", "MAE", "MAE", min),
    _segmentation("miou", "mIoU", "mIoU"),
    _segmentation("iou", "IoU", "IoU"),
    _segmentation("dice", "Dice", "Dice"),
    _segmentation("iou_image_mean", "IoU/image", "IoU/image"),
    _segmentation("dice_image_mean", "Dice/image", "Dice/image"),
)
BINNINGS = {
    "Bins of equal mass": (
        _calibration("ece_em", "ECE em", r"ECE\textsubscript{EM}"),
        _calibration("oe_em_weighted", "OE em weighted", r"OE\textsubscript{EM}"),
    ),
    "Bins of equal mass, as many as keep the accuracy monotone": (
        _calibration("ece_sweep", "ECE sweep", r"ECE\textsubscript{SWEEP}"),
        _calibration("oe_sweep_weighted", "OE sweep weighted", r"OE\textsubscript{SWEEP}"),
    ),
    "Debiased, squared": (
        Column("calibration", "ece_debias", "ECE debias", r"ECE\textsubscript{DEBIAS}", True, min, digits=3),
    ),
}
"""The columns of the paper's tables of other binnings, by what the bins are."""
DECOMPOSITION = (
    _calibration("smece_exact", "smECE exact", "smECE exact"),
    _calibration("tace", "TACE", "TACE"),
    _calibration("brier_calibration", "Brier calibration", "Brier calibration"),
    _calibration("brier_refinement", "Brier refinement", "Brier refinement"),
    Column("calibration", "nll_calibration", "NLL calibration", "NLL calibration", False, min, digits=4),
    Column("calibration", "nll_refinement", "NLL refinement", "NLL refinement", False, min, digits=4),
)
"""What recalibration could remove of a score, and what only a better model could."""
WEIGHTED = (
    "OE weighted: each bin's over-confidence times its confidence, the form of the paper's tables. "
    "OE: without that factor, the formula of the paper's text."
)

_PLAIN = ("sweep_bins", "nll", "nll_calibration", "nll_refinement", "ece_debias", "auroc_error", "aurc")
"""Figures that are not shown in per cent."""
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
    "ece_boundary_5": "within 5 {unit} of a boundary",
    "ece_boundary_15": "within 15 {unit} of a boundary",
    "ece_foreground": "of the foreground probability",
    "sce": "class-wise, equal width",
    "ace": "class-wise, equal mass",
    "smece": "smooth, without bins, as relplot computes it",
    "smece_exact": "by its formula: pixels at 0 and 1 in full",
    "smece_foreground": "smece of the foreground probability",
    "smece_foreground_exact": "smece_exact of it",
    "flip_rate": "decisions that the calibrator changed",
    "tace": "ace of probabilities above 1 %",
    "brier_calibration": "what recalibration could remove",
    "brier_refinement": "what only a better model could",
    "nll_calibration": "what recalibration could remove",
    "nll_refinement": "what only a better model could",
    "auroc_error": "low confidence finds errors",
    "aurc": "risk over coverage",
    "accuracy": "correct pixels",
    "mean_confidence": "of the winning class",
    "iou": "all pixels pooled",
    "dice": "all pixels pooled",
    "iou_image_mean": "mean over images",
    "dice_image_mean": "mean over images",
}


def comparison_table(records: list[Record]) -> Table:
    """Return one row per method and data set, with the best of each data set in bold."""
    return _comparison(records, used_columns(records), f"Calibration in per cent. {WEIGHTED}")


def binning_table(records: list[Record]) -> Table:
    """Return the errors of other binnings, laid out like `comparison_table`."""
    return _comparison(records, _binnings(records), "Calibration in per cent, other binnings")


def decomposition_table(records: list[Record]) -> Table:
    """Return what recalibration could remove of the scores, laid out like `comparison_table`."""
    title = "Calibration and refinement: what recalibration could remove of a score, and the rest (NLL in nats)"
    return _comparison(records, _with_figures(DECOMPOSITION, records), title)


def interval_table(records: list[Record]) -> Table | None:
    """Return the figures that have 95 % intervals, each with its own; None where no figure has one."""
    columns = _with_intervals(records)
    if not columns:
        return None
    table = _empty_table(columns, "95 % intervals, calibration in per cent")
    for dataset, group in by_dataset(records).items():
        for record in group:
            cells = [_with_ends(c, record, "{}\n{}", " to ") for c in columns]
            table.add_row(terminal_text(dataset), terminal_text(record.name), *cells)
        table.add_section()
    return table


def _empty_table(columns: Sequence[Column], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("data set")
    table.add_column("method")
    for column in columns:
        table.add_column(column.heading, justify="right")
    return table


def _comparison(records: list[Record], columns: Sequence[Column], title: str) -> Table:
    table = _empty_table(columns, title)
    for dataset, group in by_dataset(records).items():
        best = best_values(group, columns)
        for record in group:
            cells = [_bold(c, c.value(record), best[c.key], "[bold]{}[/bold]") for c in columns]
            table.add_row(terminal_text(dataset), terminal_text(record.name), *cells)
        table.add_section()
    return table


def figure_table(record: Record) -> Table:
    """Return every figure of one evaluation, with intervals where there are any."""
    grouped = "" if record.groups is None else f" in {record.groups:,} groups"
    title = f"{record.name} on {record.dataset}: {record.images:,} images{grouped}, {record.pixels:,} pixels"
    table = Table(title=terminal_text(title), title_justify="left")
    for heading, justify in (("figure", "left"), ("value", "right"), ("95 % interval", "left"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    calibration = record.calibration
    for key, value in calibration.items():
        plain = key in _PLAIN
        interval = ""
        if ends := known_interval(calibration.ci, key):
            interval = " to ".join(f"{end:.4g}" if plain else percent(end) for end in ends)
        shown = (f"{value:.4g}" if plain else f"{percent(value)} %") if not _is_missing(value) else "-"
        note = _NOTES.get(key, "").format(unit=distance_unit(record))
        table.add_row(terminal_text(key), shown, interval, note)
    table.add_section()
    for key, score in record.segmentation.items():
        value_text = " ".join(fixed(v, 3) for v in score) if isinstance(score, tuple) else fixed(score, 4)
        interval = " to ".join(fixed(end, 4) for end in known_interval(record.segmentation_ci or {}, key) or ())
        table.add_row(terminal_text(key), value_text, interval, _NOTES.get(key, ""))
    lines = case_lines(record)
    if record.cases is not None and record.cases.unit == "pixels":
        lines = [line for line in lines if line.name.startswith("aurc")]  # classes of pictures are in JSON and CSV
    if lines:
        table.add_section()
    for line in lines:
        shown_ends = " to ".join(f"{end:.4g}" for end in line.interval or ())
        table.add_row(line.name, f"{line.value:.4g}", shown_ends, terminal_text(line.note))
    return table


def terminal_text(text: str) -> str:
    """Return text as a cell or title of a table on the terminal: no markup, no control characters."""
    return escape(printable(text))


def csv_text(records: list[Record]) -> str:
    """Return one line per record with every figure, as fractions."""
    rows = []
    for record in records:
        row: dict[str, Any] = {key: getattr(record, key) for key in ("name", "dataset", "images", "pixels")}
        row |= {key: "" if _is_missing(value) else f"{value:.10g}" for key, value in record.calibration.items()}
        for intervals in (record.calibration.ci, record.segmentation_ci or {}):
            for name in intervals:
                ends = known_interval(intervals, name)
                row[f"{name}_low"], row[f"{name}_high"] = [f"{end:.10g}" for end in ends] if ends else ("", "")
        for region in record.regions:
            interval = known_interval(region.ci, "ece_ew")
            shown = (region.figures["ece_ew"], *(interval or (math.nan, math.nan)))
            for end, number in zip(("", "_low", "_high"), shown, strict=True):
                row[f"{region.name}_ece_ew{end}"] = "" if _is_missing(number) else f"{number:.10g}"
        for curve in record.reliability.top_k:
            row |= {f"top_{curve.k}_{key}": f"{getattr(curve, key):.10g}" for key in ("hit_rate", "probability", "ece")}
        for key, value in record.segmentation.items():
            values = {f"{key}_{i}": v for i, v in enumerate(value)} if isinstance(value, tuple) else {key: value}
            row |= {key: "" if _is_missing(v) else f"{v:.10g}" for key, v in values.items()}
        for line in case_lines(record):
            row[line.name] = f"{line.value:.10g}"
            if line.interval is not None:
                row[f"{line.name}_low"], row[f"{line.name}_high"] = (f"{end:.10g}" for end in line.interval)
        rows.append(row)
    return csv_rows(rows)


def latex_text(records: list[Record]) -> str:
    """Return booktabs tables, with calibration in per cent and the best of each data set in bold.

    The second table has the errors of other binnings, the third what recalibration could remove of the scores, and
    the last the figures that have 95 % intervals.
    """
    weighted = r"OE with a subscript: weighted by confidence, as in the paper's tables; OE: the formula of its text"
    head = [r"% densecal evaluate; needs \usepackage{booktabs}", f"% {weighted}", ""]
    shown = (used_columns(records), _binnings(records), _with_figures(DECOMPOSITION, records))
    tables = [_latex_table(records, columns, _latex_best) for columns in shown if columns]
    if columns := _with_intervals(records):
        tables += ["% 95 % intervals", _latex_table(records, columns, _latex_ends)]
    return "\n".join([*head, *tables])


def _latex_best(group: Sequence[Record], columns: Sequence[Column]) -> list[list[str]]:
    best = best_values(group, columns)
    return [[_bold(c, c.value(record), best[c.key], r"\textbf{{{}}}") for c in columns] for record in group]


def _latex_ends(group: Sequence[Record], columns: Sequence[Column]) -> list[list[str]]:
    return [[_with_ends(c, record, r"{} {{\scriptsize({})}}", "--") for c in columns] for record in group]


def _latex_table(
    records: list[Record],
    columns: Sequence[Column],
    cells_of: Callable[[Sequence[Record], Sequence[Column]], list[list[str]]],
) -> str:
    lines = [
        r"\begin{tabular}{ll" + "r" * len(columns) + "}",
        r"\toprule",
        " & ".join(["Data set", "Method", *(c.latex for c in columns)]) + r" \\",
    ]
    for dataset, group in by_dataset(records).items():
        lines.append(r"\midrule")
        for record, cells in zip(group, cells_of(group, columns), strict=True):
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
    return _with_figures(COLUMNS, records)


def _binnings(records: Sequence[Record]) -> list[Column]:
    return _with_figures([column for columns in BINNINGS.values() for column in columns], records)


def _with_figures(columns: Sequence[Column], records: Sequence[Record]) -> list[Column]:
    return [c for c in columns if any(not math.isnan(c.value(r)) for r in records)]


def _with_intervals(records: Sequence[Record]) -> list[Column]:
    """Return the columns of the first table that have an interval in some record."""
    return [c for c in COLUMNS if any(c.interval(record) for record in records)]


def _with_ends(column: Column, record: Record, markup: str, between: str) -> str:
    """Return a figure with the ends of its interval, or alone if it has none."""
    text, ends = column.text(column.value(record)), between.join(map(column.text, column.interval(record)))
    return markup.format(text, ends) if ends else text


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
    """Return text in which no character has a meaning of its own in LaTeX, and control characters are escaped."""
    special = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    }  # fmt: skip
    return "".join(special.get(character, character) for character in printable(text))
