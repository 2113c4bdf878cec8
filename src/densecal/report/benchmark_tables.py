"""Tables of a benchmark: mean and spread over seeds, best and second marked, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from densecal.benchmark.studies import EffectiveRange, effective_ranges, sweeps
from densecal.benchmark.summary import WITH_INTERVALS, Row, Summary, mean_interval, results, spread
from densecal.benchmark.tuning import MAX_DROP
from densecal.evaluation.measures import Interval
from densecal.io.atomic import write_json, write_text
from densecal.io.csv_rows import csv_rows
from densecal.names import printable
from densecal.report.tables import BINNINGS, COLUMNS, WEIGHTED, Column, escape_latex, terminal_text

_BY_KEY = {column.key: column for column in COLUMNS}
_NLL = Column("calibration", "nll", "NLL", "NLL", False, min)
_OOD = (
    Column("entropy", "mean", "Entropy", "Entropy", True, max),
    Column("ood", "auroc", "AUROC", "AUROC", False, max),
    Column("ood", "fpr95", "FPR95", "FPR95", False, min),
)
"""Figures of images without foreground."""
MAIN = (_BY_KEY["ece_ew"], _BY_KEY["oe_ew_weighted"])
"""The figures of the paper's Table 1."""
PAPER = {"Bins of equal width": MAIN, **BINNINGS}
"""The figures of the paper's tables of calibration, by what the bins are."""
MASKS = {
    "Masks at 0.5: all pixels pooled, and means over images": tuple(
        _BY_KEY[key] for key in ("dice", "iou", "miou", "dice_image_mean", "iou_image_mean")
    )
}
"""How good the masks are: a table of its own on the terminal and in LaTeX, and among the details in Markdown."""
INTERVALS = "95 % intervals over images, for one run: figures and ends are means over seeds"
"""Title of the table of figures with intervals."""
SWEPT = (*MAIN, _BY_KEY["f_max"], _BY_KEY["miou"])
_WITH_INTERVALS = [key for _, key in WITH_INTERVALS]
_ARROWS: dict[Callable[[list[float]], float], str] = {min: r"$\downarrow$", max: r"$\uparrow$"}
_AFTER_BRIER = COLUMNS.index(_BY_KEY["brier"]) + 1
DETAILS = (*COLUMNS[:_AFTER_BRIER], _NLL, *COLUMNS[_AFTER_BRIER:], *_OOD)


@dataclass(frozen=True)
class Line:
    """A line of a table: the rows of one method, by data set."""

    name: str
    rows: dict[str, Row]
    group: str
    """The block of the table that the line belongs to."""

    @property
    def competes(self) -> bool:
        """Whether it may be marked as the best; references may not, because they cost several models or passes."""
        return not any(row.reference for row in self.rows.values())


Cell = tuple[str, Column]
"""A column of a table: the data set and the figure."""
Body = list[tuple[Line, list[str], bool]]
"""The lines of a table, their texts, and whether each is the last of its group."""
Style = Callable[[str, str, str], str]
"""From mean, spread or interval (may be empty) and mark to text."""


def write_tables(summary: Summary, out: Path) -> None:
    """Write ``table.md``, ``table.tex``, ``table.csv``, ``results.json`` and the tables of the sweeps."""
    write_text(out / "table.md", markdown_text(summary))
    write_text(out / "table.tex", latex_text(summary))
    write_text(out / "table.csv", csv_text(summary))
    write_json(out / "results.json", {"densecal": "benchmark", **results(summary)})
    ranges = _alpha_ranges(summary)
    if ranges:
        write_text(out / "effective_alpha.csv", _ranges_csv(ranges))
        write_text(out / "effective_alpha.tex", _ranges_latex(summary, ranges))


def terminal_tables(summary: Summary) -> list[Table]:
    """Return the tables of every binning, of the masks and of intervals for the terminal."""
    lines = _lines(summary, grid=False)
    styles = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]", "": "{}"}

    def style(mean: str, std: str, mark: str) -> str:
        return styles[mark].format(mean) + (f" ± {std}" if std else "")

    head = f"Calibration in per cent: mean ± standard deviation over seeds; best bold, second underlined. {WEIGHTED}"
    tables = []
    for title, columns in _nonempty_tables(summary, PAPER | MASKS):
        cells = _cells(summary, columns)
        full_title = f"{head}\n{title}" if columns is MAIN else title
        tables.append(_terminal_table(full_title, cells, _texts(lines, cells, style)))
    if cells := _interval_cells(summary, lines):
        ends = _interval_texts(lines, cells, lambda mean, ends, _: f"{mean}\n{ends}", " to ")
        tables.append(_terminal_table(INTERVALS, cells, ends))
    return tables


def _terminal_table(title: str, cells: list[Cell], body: Body) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for dataset, column in cells:
        table.add_column(f"{terminal_text(dataset)}\n{column.heading}", justify="right")
    for line, texts, is_last in body:
        table.add_row(terminal_text(line.name), *texts, end_section=is_last)
    return table


def markdown_text(summary: Summary) -> str:
    """Return every table as Markdown, with the command that made them."""
    parts = [
        "<!-- densecal benchmark -->\n# Benchmark",
        f"Made by `{summary.command}`; the commands behind every row are in `commands.md`.",
        f"Calibration in per cent with {summary.bins} bins, mean ± standard deviation over the seeds "
        f"{', '.join(map(str, summary.matrix.seeds))}. **Best**, *second*. Calibrators were fitted on the validation "
        "images. Ensembles and MC dropout cost several models or passes; they are shown for reference and not marked.",
        WEIGHTED,
        *_notes(summary),
    ]
    lines = _lines(summary, grid=False)
    if lines:
        parts.append(_markdown_table(lines, _cells(summary, MAIN)))
        for title, columns in _nonempty_tables(summary, PAPER)[1:]:
            parts += [f"## {title}", _markdown_table(lines, _cells(summary, columns))]
        if cells := _interval_cells(summary, lines):
            body = _interval_texts(lines, cells, lambda mean, ends, _: f"{mean} ({ends})", " to ")
            parts += [f"## {INTERVALS}", _markdown(_markdown_heads(cells), _markdown_rows(body))]
        for dataset in summary.datasets:
            parts += [f"## {dataset}", _markdown_table(lines, _detail_cells(summary, dataset, lines))]
        if any(row.ood for row in summary.rows):
            parts.append(
                "Entropy in per cent of its maximum. AUROC and FPR95: how well the mean entropy of an image tells the "
                "images without foreground from the validation images."
            )
    swept = _lines(summary, grid=True)
    if swept:
        parts += ["## Sweeps", _markdown_table(swept, _cells(summary, SWEPT, swept), marked=False)]
    ranges = _alpha_ranges(summary)
    if ranges:
        parts += ["## Effective alpha", _ranges_markdown(summary, ranges)]
    if summary.choices:
        parts += ["## Tuned strengths", _tuning_markdown(summary)]
    return "\n\n".join(parts) + "\n"


def latex_text(summary: Summary) -> str:
    """Return the tables of every binning, of the masks and of intervals (booktabs), laid out like the paper's."""
    lines = _lines(summary, grid=False)
    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}

    def style(mean: str, std: str, mark: str) -> str:
        return marks[mark].format(mean) + (rf" {{\scriptsize$\pm$ {std}}}" if std else "")

    head = [
        r"% densecal benchmark; needs \usepackage{booktabs}",
        "% calibration in per cent, mean and standard deviation over seeds",
        "% OE is weighted by confidence, as in the paper's tables",
        f"% made by: {printable(summary.command)}",
        "",
    ]
    tables = []
    for title, columns in _nonempty_tables(summary, PAPER | MASKS):
        cells = _cells(summary, columns)
        tables.append(_latex_table(title, cells, _texts(lines, cells, style)))
    if cells := _interval_cells(summary, lines):
        ends = _interval_texts(lines, cells, lambda mean, ends, _: rf"{mean} {{\scriptsize({ends})}}", "--")
        tables.append(_latex_table(INTERVALS, cells, ends))
    return "\n".join([*head, *tables])


def _latex_table(title: str, cells: list[Cell], body: Body) -> str:
    heads, rules, first = [], [], 2
    for dataset, width in Counter(dataset for dataset, _ in cells).items():
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(dataset)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    out = [
        f"% {title.lower()}",
        r"\begin{tabular}{l" + "r" * len(cells) + "}",
        r"\toprule",
        rf" & {' & '.join(heads)} \\",
        " ".join(rules),
        " & ".join(["Method", *(f"{column.latex} {_ARROWS[column.best]}" for _, column in cells)]) + r" \\",
        r"\midrule",
    ]
    for i, (line, texts, is_last) in enumerate(body):
        out.append(" & ".join([escape_latex(line.name), *texts]) + r" \\")
        if is_last and i + 1 < len(body):
            out.append(r"\midrule")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", ""])


def csv_text(summary: Summary) -> str:
    """Return one line per row with mean and spread of every figure, as fractions."""
    lines: list[dict[str, Any]] = []
    for entry in results(summary)["rows"]:
        line = {key: entry[key] for key in ("name", "label", "calibrator", "dataset", "ood", "reference")}
        line |= {key: value for key, value in entry["method"].items() if key in _swept_keys(summary)}
        for key, figure in entry["figures"].items():
            line[key], line[f"{key}_std"] = _number_text(figure["mean"]), _number_text(figure["std"])
            ends = mean_interval(figure.get("interval", {}).values()) if key in _WITH_INTERVALS else None
            if ends:
                line[f"{key}_low"], line[f"{key}_high"] = map(_number_text, ends)
        lines.append(line)
    return csv_rows(lines)


# ------------------------------------------------------------------ lines, columns, marks


def _lines(summary: Summary, grid: bool) -> list[Line]:
    """Return the methods with or without a grid."""
    lines: dict[str, Line] = {}
    for row in summary.rows:
        if bool(row.grid) == grid:
            group = "reference" if row.reference else row.calibrator
            lines.setdefault(row.name, Line(row.name, {}, group)).rows[row.dataset] = row
    return list(lines.values())


def _cells(summary: Summary, columns: tuple[Column, ...], lines: list[Line] | None = None) -> list[Cell]:
    """Return the columns of every data set that has figures for them."""
    lines = _lines(summary, grid=False) if lines is None else lines
    return [(d, c) for d in summary.datasets for c in columns if _has_figures(summary, lines, d, c)]


def _nonempty_tables(summary: Summary, tables: dict[str, tuple[Column, ...]]) -> list[tuple[str, tuple[Column, ...]]]:
    """Return the tables that there are figures for, with their titles."""
    return [(title, columns) for title, columns in tables.items() if columns is MAIN or _cells(summary, columns)]


def _interval_cells(summary: Summary, lines: list[Line]) -> list[Cell]:
    """Return the columns of every data set that has intervals for them."""
    cells = _cells(summary, tuple(_BY_KEY[key] for key in _WITH_INTERVALS), lines)
    return [cell for cell in cells if any(_ends(line, cell) for line in lines)]


def _ends(line: Line, cell: Cell) -> Interval | None:
    dataset, column = cell
    row = line.rows.get(dataset)
    return mean_interval(row.intervals(column.section, column.key).values()) if row else None


def _detail_cells(summary: Summary, dataset: str, lines: list[Line]) -> list[Cell]:
    return [(dataset, column) for column in DETAILS if _has_figures(summary, lines, dataset, column)]


def _has_figures(summary: Summary, lines: list[Line], dataset: str, column: Column) -> bool:
    rows = [line.rows[dataset] for line in lines if dataset in line.rows]
    ood = any(row.ood for row in rows)
    if ood and (column.section == "segmentation" or column.key == "ece_foreground"):
        return False  # there is no foreground to be right or wrong about
    if column in _OOD and not ood:
        return False  # high entropy is good only where there is no foreground
    return any(row.values(column.section, column.key) for row in rows)


def _mean_and_spread(line: Line, cell: Cell) -> tuple[float, float]:
    dataset, column = cell
    row = line.rows.get(dataset)
    return spread(row.values(column.section, column.key).values()) if row else (math.nan, math.nan)


def _marks(lines: list[Line], cell: Cell) -> dict[str, str]:
    """Return ``best`` and ``second`` by the text of the mean, so that equal texts have equal marks."""
    column = cell[1]
    means = {
        column.text(mean): mean
        for line in lines
        if line.competes and not math.isnan(mean := _mean_and_spread(line, cell)[0])
    }
    marks: dict[str, str] = {}
    for mark in ("best", "second"):
        rest = [mean for text, mean in means.items() if text not in marks]
        if len(means) > 1 and rest:
            marks[column.text(column.best(rest))] = mark
    return marks


def _interval_texts(lines: list[Line], cells: list[Cell], style: Style, between: str) -> Body:
    """Return each line with its figures and their intervals, unmarked."""
    body = []
    for i, line in enumerate(lines):
        texts = []
        for cell in cells:
            text, ends = cell[1].text(_mean_and_spread(line, cell)[0]), _ends(line, cell)
            texts.append(style(text, between.join(map(cell[1].text, ends)), "") if ends else text)
        body.append((line, texts, _is_last(lines, i)))
    return body


def _is_last(lines: list[Line], i: int) -> bool:
    """Return whether a line is the last of its group."""
    return i + 1 == len(lines) or lines[i + 1].group != lines[i].group


def _texts(lines: list[Line], cells: list[Cell], style: Style, marked: bool = True) -> Body:
    """Return each line with its texts, and whether it is the last of its group."""
    marks = [_marks(lines, cell) if marked else {} for cell in cells]
    styled = []
    for i, line in enumerate(lines):
        texts = []
        for cell, mark in zip(cells, marks, strict=True):
            mean, std = _mean_and_spread(line, cell)
            text = cell[1].text(mean)
            shown = "" if math.isnan(std) else cell[1].text(std)
            texts.append(style(text, shown, mark.get(text, "") if line.competes else ""))
        styled.append((line, texts, _is_last(lines, i)))
    return styled


# ------------------------------------------------------------------ Markdown


def _markdown_table(lines: list[Line], cells: list[Cell], marked: bool = True) -> str:
    marks = {"best": "**{}**", "second": "*{}*", "": "{}"}
    body = _texts(lines, cells, lambda m, s, mark: marks[mark].format(m) + (f" ± {s}" if s else ""), marked)
    return _markdown(_markdown_heads(cells), _markdown_rows(body))


def _markdown_heads(cells: list[Cell]) -> list[str]:
    several = len({dataset for dataset, _ in cells}) > 1
    return ["method", *(f"{dataset} {column.heading}" if several else column.heading for dataset, column in cells)]


def _markdown_rows(body: Body) -> list[list[str]]:
    return [[line.name, *texts] for line, texts, _ in body]


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(heads) - 1)]
    lines = [heads, rule, *rows]
    return "\n".join("| " + " | ".join(printable(text).replace("|", r"\|") for text in line) + " |" for line in lines)


def _notes(summary: Summary) -> list[str]:
    notes = []
    if summary.missing:
        notes.append("Missing: " + "; ".join(f"{task} ({reason})" for task, reason in summary.missing.items()) + ".")
    short = {f"{row.name} (seeds {', '.join(row.records)})" for row in summary.rows if _lacks_seeds(summary, row)}
    if short:
        notes.append("Not all seeds: " + "; ".join(sorted(short)) + ".")
    if summary.stale:
        notes.append("Made with other settings than those of the matrix: " + "; ".join(summary.stale) + ".")
    return notes


def _lacks_seeds(summary: Summary, row: Row) -> bool:
    return not row.reference and len(row.records) < len(summary.matrix.seeds)


def _tuning_markdown(summary: Summary) -> str:
    rows = []
    for label, choice in summary.choices.items():
        for trial in choice.trials:
            chosen = "" if trial.override != choice.chosen else "chosen" if choice.kept_score else "least loss of F max"
            rows.append([label, trial.override, f"{100 * trial.ece:.2f}", f"{trial.score:.3f}", chosen])
    reference = next(iter(summary.choices.values())).reference
    note = (
        f"One strength per method, with as many values tried for each, seed {summary.matrix.seeds[0]}. The chosen "
        "value has the least ECE on the validation images, of those whose F max is less than "
        f"{MAX_DROP:g} below that of plain cross entropy ({reference:.3f})."
    )
    return note + "\n\n" + _markdown(["method", "setting", "validation ECE", "F max", ""], rows)


# ------------------------------------------------------------------ effective ranges of alpha


def _alpha_ranges(summary: Summary) -> list[EffectiveRange]:
    return [
        alphas
        for sweep in sweeps(summary)
        if (sweep.method, sweep.key) == ("slp", "alpha")
        for bins in summary.matrix.bins
        for alphas in effective_ranges(summary, sweep, bins)
    ]


def range_text(alphas: EffectiveRange) -> str:
    """Return a range in per cent, as the paper prints it."""
    if alphas.lower is None or alphas.upper is None:
        return "none"
    return f"{100 * alphas.lower:g} - {100 * alphas.upper:g}"


def _ranges_markdown(summary: Summary, ranges: list[EffectiveRange]) -> str:
    parts = [
        "Perturbation probabilities (per cent) around the best one, with which static label perturbation has less ECE "
        "than plain cross entropy. In brackets: the best value tried and its ECE in per cent."
    ]
    for bins, datasets, lines in _range_tables(summary, ranges):
        rows = [
            [line, *(f"{range_text(r)} (best {100 * r.best:g}: {100 * r.ece:.2f})" for r in line_ranges)]
            for line, line_ranges in lines
        ]
        parts.append(_markdown([f"{bins} bins", *datasets], rows))
    return "\n\n".join(parts)


def _ranges_latex(summary: Summary, ranges: list[EffectiveRange]) -> str:
    out = [r"% densecal benchmark; needs \usepackage{booktabs}", f"% made by: {printable(summary.command)}"]
    for bins, datasets, lines in _range_tables(summary, ranges):
        out += [r"\begin{tabular}{l" + "c" * len(datasets) + "}", r"\toprule"]
        out += [" & ".join([rf"$\alpha$ in \%, {bins} bins", *map(escape_latex, datasets)]) + r" \\", r"\midrule"]
        out += [
            " & ".join([escape_latex(line), *(range_text(r).replace("-", "--") for r in line_ranges)]) + r" \\"
            for line, line_ranges in lines
        ]
        out += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(out)


def _range_tables(
    summary: Summary, ranges: list[EffectiveRange]
) -> list[tuple[int, list[str], list[tuple[str, list[EffectiveRange]]]]]:
    """Return one table per number of bins: techniques by data sets."""
    tables = []
    for bins in summary.matrix.bins:
        of_bins = [r for r in ranges if r.bins == bins]
        datasets = list(dict.fromkeys(r.dataset for r in of_bins))
        lines = [(line, [r for r in of_bins if r.line == line]) for line in dict.fromkeys(r.line for r in of_bins)]
        tables.append((bins, datasets, lines))
    return tables


def _ranges_csv(ranges: list[EffectiveRange]) -> str:
    keys = ("line", "dataset", "bins", "lower", "upper", "best", "ece", "baseline")
    return csv_rows([{key: getattr(alphas, key) for key in keys} for alphas in ranges])


# ------------------------------------------------------------------ CSV


def _number_text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def _swept_keys(summary: Summary) -> set[str]:
    return {key.removeprefix("method.") for row in summary.rows for key in row.grid if key.startswith("method.")}
