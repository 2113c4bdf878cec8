"""How far our results for an item agree with the paper, in one line computed from both."""

from __future__ import annotations

import math
import statistics

from densecal.benchmark.studies import AlphaPath, Sweep, convergence, reference_value, sweeps
from densecal.benchmark.summary import Summary, spread
from densecal.evaluation.record import VALIDATION
from densecal.report.tables import Column
from densecal.reproduce.comparison import FIGURES, Comparison, Heading, Value
from densecal.reproduce.figures import rows_of, with_norms
from densecal.reproduce.items import Item
from densecal.reproduce.results import Results

BASELINE = "Baseline"
"""The row that others are compared with, if the paper's table has it."""
ASLP = "ASLP_MC"
_FEWEST = 4
"""Rows from which an order is compared."""
_CONVERGED = 0.9
"""Share of what labels lose by the end of training, at which alpha counts as converged."""
_LAST_EPOCHS = 5
_DROP = 0.01
"""Change of F max that counts."""
STABLE = {"eta": (0.0002, 0.005), "lam": (500.0, 10_000.0)}
"""Ranges in which the paper calls training stable or optimal."""
SYMBOLS = {"eta": "eta", "lam": "lambda"}


def agreement(item: Item, results: Results, tables: list[Comparison]) -> str:
    """Return one line on the agreement, empty if there is nothing to compare.

    Args:
        item: The item.
        results: Its results.
        tables: Its tables, the paper's own first.
    """
    if item.kind == "curves":
        parts = [_curves(item, summary) for summary in results.summaries.values()]
    elif item.kind == "convergence":
        parts = [_convergence(item, summary) for summary in results.summaries.values()]
    elif item.kind == "ranges":
        parts = [_overlap(table) for table in tables[:1]]
    elif item.kind == "table":
        parts = [_columns(table) for table in tables]
    else:
        parts = [_gaps(table) for table in tables if item.kind in ("joint", "entropy")]
    return "; ".join(part for part in parts if part)


def _columns(table: Comparison) -> str:
    """Compare every figure of every data set that both have: changes against the baseline, or the order of rows."""
    by_dataset: dict[str, list[str]] = {}
    for i, column in enumerate(table.columns):
        pairs = {title: _pair(values[i]) for title, values in table.rows.items()}
        both = {title: pair for title, pair in pairs.items() if pair is not None}
        text = _signs(column, both) if BASELINE in both else _order(column, both)
        if text:
            by_dataset.setdefault(column.dataset, []).append(text)
    parts = [f"{dataset}: {', '.join(texts)}" for dataset, texts in by_dataset.items()]
    said = "rows that differ from the baseline in the paper's direction" if BASELINE in table.rows else "order of rows"
    return f"{said}, {'; '.join(parts)}" if parts else ""


def _signs(column: Heading, pairs: dict[str, tuple[float, float]]) -> str:
    ours, paper = pairs[BASELINE]
    same = [(x > ours) == (y > paper) for title, (x, y) in pairs.items() if title != BASELINE]
    return f"{column.text} {sum(same)} of {len(same)}" if same else ""


def _order(column: Heading, pairs: dict[str, tuple[float, float]]) -> str:
    if len(pairs) < _FEWEST:
        return ""
    from scipy.stats import spearmanr  # takes as long to import as all else the command needs before it trains

    ours, paper = zip(*pairs.values(), strict=True)
    return f"{column.text} rank correlation {spearmanr(ours, paper).statistic:.2f} ({len(pairs)} rows)"


def _pair(value: Value) -> tuple[float, float] | None:
    """Return our number and the paper's, if both are numbers."""
    if isinstance(value.ours, str) or not value.is_ours or value.paper is None or value.paper.value is None:
        return None
    return value.ours, value.paper.value


def _gaps(table: Comparison) -> str:
    """Return how far confidence is above accuracy where the paper has only a picture."""
    where = {(column.dataset, column.figure.key): i for i, column in enumerate(table.columns)}
    dataset = next((name for name, _ in where if any(_gap(table, where, row, name) for row in table.rows)), None)
    if dataset is None:
        return ""
    shown = [f"{row} {gap}" for row in (BASELINE, ASLP) if (gap := _gap(table, where, row, dataset))]
    return f"a picture; confidence minus accuracy on {dataset}: {', '.join(shown)} points" if shown else ""


def _gap(table: Comparison, where: dict[tuple[str, str], int], row: str, dataset: str) -> str:
    """Return the difference in points; empty without a number of ours."""
    values = table.rows[row]
    confidence, accuracy = (values[where[dataset, key]].ours for key in ("mean_confidence", "accuracy"))
    if isinstance(confidence, str) or isinstance(accuracy, str) or math.isnan(confidence - accuracy):
        return ""
    return f"{100 * (confidence - accuracy):+.1f}"


def _overlap(table: Comparison) -> str:
    """Compare ranges in per cent, written as ``0 - 5``."""
    pairs = [
        (_ends(str(value.ours)), _ends(value.paper.text))
        for values in table.rows.values()
        for value in values
        if value.paper is not None
    ]
    both = [(ours, paper) for ours, paper in pairs if ours and paper]
    meet = sum(max(ours[0], paper[0]) < min(ours[1], paper[1]) for ours, paper in both)
    return f"{meet} of {len(both)} ranges overlap with the paper's" if both else ""


def _ends(text: str) -> tuple[float, float] | None:
    lower, between, upper = text.partition(" - ")
    return (float(lower), float(upper)) if between else None


def _curves(item: Item, summary: Summary) -> str:
    """Describe every curve on the first data set that is there."""
    summary = rows_of(summary, item)
    shown = {row.dataset for row in summary.rows if row.grid}
    dataset = next((name for name in (*item.data, VALIDATION) if name in shown), None)
    figure = FIGURES["ece_ew" if "ece_ew" in item.figures else item.figures[0]]
    base = None if dataset is None else reference_value(summary, dataset, figure.section, figure.key)
    if dataset is None or base is None:
        return ""
    parts = [
        text
        for sweep in sweeps(summary)
        for text in (_stable(sweep, dataset) if sweep.key in STABLE else _shape(sweep, dataset, figure, base))
    ]
    return f"{dataset}: {'; '.join(parts)}" if parts else ""


def _points(sweep: Sweep, line: str, dataset: str, figure: Column) -> list[tuple[float, float]]:
    return [(x, spread(row.values(figure.section, figure.key).values())[0]) for x, row in sweep.points(line, dataset)]


def _shape(sweep: Sweep, dataset: str, figure: Column, base: float) -> list[str]:
    """Count the lines with the form that the paper describes: an error falls and rises, F max holds and then drops."""
    lines = {line: _points(sweep, line, dataset, figure) for line in sweep.lines}
    if figure.key == "f_max":
        drops = {line: next((x for x, y in points if y < base - _DROP), None) for line, points in lines.items()}
        shown = [f"{'nowhere' if x is None else f'from {x:g}'} ({line.upper()})" for line, x in drops.items()]
        own = f"F max falls by more than {_DROP} {', '.join(shown)}"
        return [f"{own}; in the paper from 0.2 (HI), 0.4 (SI), 0.6 (DM)"]
    falls = [min(y for _, y in points) < min(base, points[-1][1]) for points in lines.values()]
    count = f"{sum(falls)} of {len(falls)} techniques"
    return [f"the error falls and then rises with {sweep.key} for {count}; in the paper for all"]


def _stable(sweep: Sweep, dataset: str) -> list[str]:
    """Return the error inside the range that the paper calls stable, and outside."""
    lower, upper = STABLE[sweep.key]
    points = [point for line in sweep.lines for point in _points(sweep, line, dataset, FIGURES["ece_ew"])]
    inside = [100 * y for x, y in points if lower <= x <= upper]
    outside = [f"{100 * y:.2f} at {x:g}" for x, y in points if not lower <= x <= upper]
    span = f"{SYMBOLS[sweep.key]} {lower:g} to {upper:g}, which the paper calls stable"
    return [", ".join([f"{span}: ECE {min(inside):.2f} to {max(inside):.2f}", *outside])]


def _convergence(item: Item, summary: Summary) -> str:
    """Return after how many epochs of the second stage alpha has converged, in words."""
    epochs: dict[str, list[str]] = {}
    for path in convergence(with_norms(summary, {source.label for source in item.sources().values()})):
        epochs.setdefault(path.grad_norm, []).append(f"{path.technique.upper()} {_epochs(path)}")
    titles = {"none": "unnormalised (in the paper HI 5, M and DM 11)", "paper": "normalised (in the paper equal)"}
    return "; ".join(f"epochs to converge, {titles[norm]}: {', '.join(texts)}" for norm, texts in epochs.items())


def _epochs(path: AlphaPath) -> int:
    """Return the epochs until labels have lost nine tenths of what they lose by the end."""
    lost = [1 - confidence for confidence in path.confidence]
    end = statistics.fmean(lost[-_LAST_EPOCHS:])
    return next(i for i, value in enumerate(lost, 1) if value >= _CONVERGED * end)
