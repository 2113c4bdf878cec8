"""The tables of an item, from its results: the paper's numbers beside ours."""

from __future__ import annotations

from densecal.benchmark.studies import EffectiveRange, effective_ranges, sweeps
from densecal.evaluation.record import VALIDATION
from densecal.report.benchmark_tables import range_text
from densecal.reproduce.comparison import FIGURES, Comparison, Heading, Value
from densecal.reproduce.items import Item, parse_source
from densecal.reproduce.paper import paper_numbers
from densecal.reproduce.results import Results

_UNEVALUATED = ("hours", "images_per_second")
"""Figures that belong to a training, not to a data set."""


def item_tables(name: str, item: Item, results: Results) -> list[Comparison]:
    """Return the tables of an item, without their notes."""
    return _ranges(name, item, results) if item.kind == "ranges" else [_compare(name, item, results)]


def _compare(name: str, item: Item, results: Results) -> Comparison:
    """Put the paper's numbers beside ours; the last columns are our validation images, which the paper has not."""
    own = [] if item.kind == "time" else [VALIDATION]
    columns = [_heading(dataset, key) for dataset in _column_sets(item, own) for key in item.figures]
    numbers = paper_numbers(name)
    rows = {}
    for title, source in item.sources().items():
        printed = [*numbers.get(title, []), *[None] * len(columns)][: len(columns)]
        rows[title] = [
            Value(results.value(source, column), number) for column, number in zip(columns, printed, strict=True)
        ]
    return Comparison(item.title, [], columns, rows)


def _column_sets(item: Item, own: list[str]) -> list[str]:
    if set(item.figures) & set(_UNEVALUATED):
        return [""]
    return [*item.data, *own]


def _heading(dataset: str, key: str) -> Heading:
    figure, _, bins = key.partition("@")
    return Heading(dataset, FIGURES[figure], int(bins) if bins else None)


def _ranges(name: str, item: Item, results: Results) -> list[Comparison]:
    """Return one table per number of bins, the largest number first: the paper's curves have 100."""
    matrix = next(parse_source(text).matrix for text in item.rows.values())
    summary = results.summaries[matrix]
    numbers = paper_numbers(name)
    comparisons = []
    for bins in sorted(summary.matrix.bins, reverse=True):
        ranges: dict[tuple[str, str], EffectiveRange] = {
            (entry.line, entry.dataset): entry
            for sweep in sweeps(summary)
            for entry in effective_ranges(summary, sweep, bins)
        }
        columns = [Heading(dataset, FIGURES["ece_ew"], bins) for dataset in (*item.data, VALIDATION)]
        rows = {}
        for title in item.rows:
            values = []
            for column, printed in zip(columns, [*numbers[title], None], strict=True):
                entry = ranges.get((title.lower(), column.dataset))
                values.append(Value("-" if entry is None else range_text(entry), printed))
            rows[title] = values
        comparisons.append(Comparison(f"{item.title}, {bins} bins", [], columns, rows))
    return comparisons
