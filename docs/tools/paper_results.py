"""What the pages show of `densecal reproduce`, from the cells that are kept in docs/results/paper-*.jsonl."""

from __future__ import annotations

import functools
from pathlib import Path

from matplotlib.figure import Figure

from densecal.reproduce.agreement import agreement
from densecal.reproduce.comparison import OURS, PAPER, Comparison
from densecal.reproduce.figures import figures_of
from densecal.reproduce.items import Item, Scale, load_items, load_settings
from densecal.reproduce.kept import read_results
from densecal.reproduce.results import Results
from densecal.reproduce.tables import item_tables

RESULTS = Path(__file__).parents[1] / "results"
SCALES = (Scale.full, Scale.cpu)
SIX = load_items()["table-1"].data
FIGURES = ("convergence", "slp-calibration", "eta-lambda")
"""Items whose figures the pages show."""


@functools.cache
def results_of(name: str, scale: Scale) -> Results:
    """Return what is kept of an item at a scale."""
    return read_results(load_items()[name], scale, RESULTS)


@functools.cache
def tables_of(name: str, scale: Scale) -> list[Comparison]:
    """Return the tables of an item from its kept cells; none without any."""
    results = results_of(name, scale)
    return item_tables(name, load_items()[name], results) if results.summaries else []


def items_table() -> str:
    """Return the table of all items."""
    lines = [
        "| item | shows | needs besides DUTS-TR and the six test sets | run | agreement |",
        "|---|---|---|---|---|",
    ]
    for name, item in load_items().items():
        lines.append(f"| `{name}` | {item.title} | {_needs(item)} | {_run(name)} | {_agreement(name)} |")
    return "\n".join(lines) + "\n"


def _needs(item: Item) -> str:
    sources = item.sources().values()
    trained = [load_settings(source.matrix).train for source in sources if not source.is_published]
    sets = [name for name in dict.fromkeys((*trained, *item.data)) if name not in ("DUTS-TR", *SIX)]
    return ", ".join([*sets, *(["maps of the networks"] if any(s.is_published for s in sources) else [])])


def _run(name: str) -> str:
    """Say at which scales the item was run, how many of its rows and on which data sets; all run at smoke."""
    said = []
    for scale in SCALES:
        for table in tables_of(name, scale)[:1]:
            rows = sum(any(value.is_ours and value.ours != "-" for value in values) for values in table.rows.values())
            sets = dict.fromkeys(column.dataset for column in table.columns if _is_ours(table, column))
            if rows:
                said.append(f"{scale}: {rows} of {len(table.rows)} rows, {', '.join(sets)}")
    return "; ".join(said) or str(Scale.smoke)


def _agreement(name: str) -> str:
    item = load_items()[name]
    lines = {scale: agreement(item, results_of(name, scale), tables_of(name, scale)) for scale in SCALES}
    said = [f"{scale}: {line}" for scale, line in lines.items() if line]
    return "; ".join(said) or "not yet known"


def _is_ours(table: Comparison, column: object) -> bool:
    i = table.columns.index(column)
    return any(values[i].is_ours and values[i].ours != "-" for values in table.rows.values())


def side_by_side(table: Comparison) -> str:
    """Return the rows and columns that we have as Markdown, the paper's number and ours in neighbouring columns."""
    shown = [i for i, column in enumerate(table.columns) if _is_ours(table, column)]
    rows = {title: values for title, values in table.rows.items() if any(values[i].is_ours for i in shown)}
    lines = {(title, kind): texts for title, kind, texts in table.lines()}
    heads, picked = [], []
    for i in shown:
        column = table.columns[i]
        name = f"{column.dataset} {column.text}"
        kinds = [PAPER, OURS] if any(values[i].paper for values in rows.values()) else [OURS]
        heads += [f"{name}, {kind}" for kind in kinds] if len(kinds) > 1 else [name]
        picked += [(i, kind) for kind in kinds]
    text = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for title in rows:
        cells = [lines[title, kind][i] if (title, kind) in lines else "" for i, kind in picked]
        text.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(text).replace("*", r"\*") + "\n"


def with_baseline(table: Comparison, scale: Scale) -> Comparison:
    """Put cross entropy, which the paper has in Table 3 alone, above the rows of another table of the same columns."""
    (first,) = tables_of("table-3", scale)
    assert first.columns == table.columns
    return Comparison(table.title, table.head, table.columns, {"Baseline": first.rows["Baseline"], **table.rows})


def binnings(scale: Scale) -> Comparison:
    """Return the errors of the other binnings on one data set as one table."""
    names = ("equal-mass", "sweep", "debias")
    tables = []
    for name in names:
        item = load_items()[name]
        rows = {"Baseline": "sod/bce", **item.rows}
        tables += item_tables(name, item.model_copy(update={"rows": rows}), results_of("table-3", scale))
    picked = [
        (table, i)
        for table in tables
        for i, column in enumerate(table.columns)
        if column.dataset == "ECSSD" and column.figure.key.startswith("ece")
    ]
    columns = [table.columns[i] for table, i in picked]
    return Comparison(
        "", [], columns, {title: [table.rows[title][i] for table, i in picked] for title in tables[0].rows}
    )


def blocks() -> dict[str, str]:
    """Return the tables of both pages by name."""
    made = {"items": items_table()}
    for scale in SCALES:
        if not results_of("table-3", scale).summaries:
            continue
        (benchmark,), (ablation,), (textures,) = (tables_of(name, scale) for name in ("table-1", "table-3", "table-2"))
        made |= {
            f"table-1-{scale}": side_by_side(with_baseline(benchmark, scale)),
            f"table-3-{scale}": side_by_side(ablation),
            f"table-2-{scale}": side_by_side(textures),
            f"binnings-{scale}": side_by_side(binnings(scale)),
        }
    return made


def figures() -> dict[str, Figure]:
    """Return the figures of the pages by the names of their files."""
    drawn = {}
    for name in FIGURES:
        results = results_of(name, Scale.cpu)
        if results.summaries:
            own = figures_of(load_items()[name], results)
            drawn |= {f"paper-{title}": figure for title, figure in own.items()}
    return drawn
