"""`densecal benchmark`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import console

if TYPE_CHECKING:
    from rich.table import Table

    from densecal.benchmark import Event

_MOST_ROWS = 25
"""A longer progress table leaves out finished and waiting tasks."""


@app.command()
def benchmark(
    matrix: Annotated[Path, typer.Argument(help="YAML file of methods, seeds, data sets and calibrators.")],
    out: Annotated[Path, typer.Option(help="Folder of the benchmark.")] = ...,  # type: ignore[assignment]
    jobs: Annotated[int, typer.Option(min=1, help="Processes per GPU, or on the CPU.")] = 1,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Train nothing; make tables and figures from the results there are.")
    ] = False,
) -> None:
    """Compare methods: train and evaluate every method with every seed, and write the table of the paper.

    A finished cell is never run again, and an interrupted one is resumed. Run the command again after a crash, or
    after adding to the matrix. The folder then holds table.md, table.tex, table.csv, results.json, commands.md and
    figures/.

    Examples:

    * `densecal benchmark examples/benchmark_scenes.yaml --out runs/scenes`

    * `densecal benchmark matrix.yaml --out runs/duts --jobs 3` for networks too small to fill a GPU

    * `densecal benchmark matrix.yaml --out runs/duts --tables-only`
    """
    from densecal.benchmark import load_matrix, run_benchmark, summarise

    loaded = load_matrix(matrix)
    from densecal.io.atomic import write_text
    from densecal.report.benchmark_commands import commands_text
    from densecal.report.benchmark_figures import write_benchmark_figures
    from densecal.report.benchmark_tables import terminal_table, write_tables

    if not tables_only:
        with _progress_table() as report:
            run_benchmark(loaded, out, jobs, report)
    summary = summarise(loaded, out, shlex.join(["densecal", "benchmark", str(matrix), "--out", str(out)]))
    if summary.rows:
        write_tables(summary, out)
        figures = write_benchmark_figures(summary, out / "figures")
        write_text(out / "commands.md", commands_text(summary, figures))
        console().print(terminal_table(summary))
        print(f"Tables and figures: {out}")
    for task in summary.stale:
        print(f"warning: {task}: made with other settings than those of the matrix", file=sys.stderr)
    for task, reason in summary.missing.items():
        print(f"missing: {task}: {reason}", file=sys.stderr)
    if summary.missing:
        raise typer.Exit(1)


@contextmanager
def _progress_table() -> Iterator[Callable[[Event], None]]:
    """Show a table of tasks on a terminal; elsewhere print one line per task that ends."""
    from rich.console import Console
    from rich.live import Live

    states: dict[str, Event] = {}
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield _print_end
        return
    with Live(console=terminal, transient=True, refresh_per_second=4) as live:

        def show(event: Event) -> None:
            states[event.task] = event
            live.update(_table(states))

        yield show


def _print_end(event: Event) -> None:
    if event.state in ("finished", "failed"):
        print(f"{event.task}: {event.state}, {event.text}", file=sys.stderr, flush=True)


def _table(states: dict[str, Event]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    done = sum(event.state == "finished" for event in states.values())
    table = Table(caption=f"{done} of {len(states)} finished", caption_justify="left")
    for heading in ("task", "state", ""):
        table.add_column(heading)
    colours = {"waiting": "dim", "running": "yellow", "finished": "green", "failed": "red"}
    # a long table shows only what is running or has failed
    hidden = ("finished", "waiting") if len(states) > _MOST_ROWS else ()
    for event in states.values():
        if event.state not in hidden:
            state = f"[{colours[event.state]}]{event.state}[/]"
            table.add_row(escape(event.task), state, escape(event.text))
    return table
