"""The table of effective probabilities: ranges of alpha beside those of the paper."""

from __future__ import annotations

from densecal.benchmark.studies import EffectiveRange, effective_ranges, sweeps
from densecal.report.benchmark_tables import range_text
from densecal.reproduce.comparison import FIGURES, Comparison, Heading, Value
from densecal.reproduce.items import Item, parse_source
from densecal.reproduce.paper import paper_numbers
from densecal.reproduce.results import Results


def range_comparisons(name: str, item: Item, results: Results) -> list[Comparison]:
    """Return one table per number of bins, the largest number first: the paper's curves have 100."""
    matrix = next(parse_source(text).matrix for text in item.rows.values())
    summary = results.summaries[matrix]
    numbers = paper_numbers(name)
    comparisons = []
    for bins in sorted(summary.matrix.bins, reverse=True):
        ranges: dict[tuple[str, str], EffectiveRange] = {
            (found.line, found.dataset): found
            for sweep in sweeps(summary)
            for found in effective_ranges(summary, sweep, bins)
        }
        columns = [Heading(dataset, FIGURES["ece_ew"], bins) for dataset in item.data]
        rows = {}
        for title in item.rows:
            values = []
            for dataset, printed in zip(item.data, numbers[title], strict=True):
                found = ranges.get((title.lower(), dataset))
                values.append(Value("-" if found is None else range_text(found), printed))
            rows[title] = values
        comparisons.append(Comparison(f"{item.title}, {bins} bins", [], columns, rows))
    return comparisons
