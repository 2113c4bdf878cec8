"""`densecal benchmark`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, console, is_quiet, print_line, print_note
from densecal.cli.engine import Address, EngineName, EngineOption, open_engine
from densecal.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from densecal.benchmark import Event

_TABLES = (
    "table.md", "table.tex", "table.csv", "results.json", "effective_alpha.csv", "effective_alpha.tex", "commands.md",
)  # fmt: skip
_MOST_ROWS = 25
"""A longer progress table leaves out waiting tasks."""


@app.command()
def benchmark(
    matrix: Annotated[Path, typer.Argument(help="YAML file of methods, seeds, data sets and calibrators.")],
    out: Annotated[Path, typer.Option(help="Folder of the benchmark.")] = ...,  # type: ignore[assignment]
    jobs: Annotated[int, typer.Option(min=1, help="Processes per GPU, or on the CPU.")] = 1,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Train nothing; make tables and figures from the existing results.")
    ] = False,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    force: Force = False,
) -> None:
    """Compare methods: train and evaluate every method with every seed, and write the table of the paper.

    A finished cell is never run again, and an interrupted one is resumed. Run the command again after a crash, or
    after adding to the matrix. The folder then holds table.md, table.tex, table.csv, results.json, commands.md and
    figures/.

    Examples:

    * `densecal benchmark examples/benchmark_scenes.yaml --out runs/scenes`

    * `densecal benchmark matrix.yaml --out runs/duts --jobs 3` for networks too small to fill a GPU

    * `densecal benchmark matrix.yaml --out runs/duts --tables-only`

    * `densecal benchmark matrix.yaml --out /shared/duts --engine ray --address auto`, one cell per GPU of a cluster
    """
    from densecal.benchmark import load_matrix, run_benchmark, summarise
    from densecal.benchmark.plan import Plan
    from densecal.benchmark.workers import data_files

    if engine is EngineName.ray and jobs > 1:
        raise InputError("--jobs", f"{jobs} with --engine ray", "neither, because the cluster runs a cell per GPU")
    loaded = load_matrix(matrix)
    from densecal.io.atomic import write_text
    from densecal.io.outputs import check_outputs
    from densecal.report.benchmark_commands import commands_text
    from densecal.report.benchmark_figures import write_benchmark_figures
    from densecal.report.benchmark_tables import terminal_tables, write_tables
    from densecal.report.figures import figure_targets

    own_matrix = (out / "matrix.yaml").is_file() and (out / "matrix.yaml").samefile(matrix)
    names = _TABLES if own_matrix or tables_only else (*_TABLES, "matrix.yaml")
    tables = [(out / name, Path(name).suffix[1:]) for name in names]
    reads = (matrix, *(() if tables_only else data_files(Plan(loaded, out))))
    check_outputs("benchmark", [*tables, *figure_targets(out / "figures")], reads, force)
    if not tables_only:
        with open_engine(engine, address) as cluster, progress_table() as report:
            run_benchmark(loaded, out, jobs, report, cluster)
    summary = summarise(loaded, out, shlex.join(["densecal", "benchmark", str(matrix), "--out", str(out)]))
    if summary.rows:
        write_tables(summary, out)
        figures = write_benchmark_figures(summary, out / "figures")
        write_text(out / "commands.md", commands_text(summary, figures))
        console().print(*terminal_tables(summary))
        print_line(f"Tables and figures: {out}")
    for task in summary.stale:
        print_note(f"warning: {task}: made with other settings than those of the matrix")
    for task, reason in summary.missing.items():
        print_note(f"missing: {task}: {reason}")
    if summary.missing:
        raise typer.Exit(1)


@contextmanager
def progress_table() -> Iterator[Callable[[Event], None]]:
    """Print one line per task that ends and, on a terminal, show a table of the others."""
    from rich.console import Console
    from rich.live import Live

    from densecal.cli.progress import Pace
    from densecal.report.tables import terminal_text

    states: dict[str, Event] = {}
    pace = Pace()
    terminal = Console(stderr=True)

    def end_line(event: Event) -> str | None:
        states[event.task] = event
        ended = sum(state.state in ("finished", "failed") for state in states.values())
        pace.report(ended, len(states))
        if event.state not in ("finished", "failed"):
            return None
        left = f", {pace.text()}" if ended < len(states) else ""
        return f"{event.task}: {event.state}, {event.text} ({ended} of {len(states)}{left})"

    if not terminal.is_terminal or is_quiet():

        def print_end(event: Event) -> None:
            line = end_line(event)
            if line is not None and not is_quiet():
                print_note(line)

        yield print_end
        return
    with Live(console=terminal, transient=True, refresh_per_second=4) as live:

        def show(event: Event) -> None:
            line = end_line(event)
            if line is not None:
                live.console.print(terminal_text(line), highlight=False, soft_wrap=True)
            live.update(_table(states, pace.text()))

        yield show


def _table(states: dict[str, Event], time: str) -> Table:
    from rich.table import Table

    from densecal.report.tables import terminal_text

    done = sum(event.state == "finished" for event in states.values())
    table = Table(caption=f"{done} of {len(states)} finished, {time}", caption_justify="left")
    for heading in ("task", "state", ""):
        table.add_column(heading)
    colours = {"waiting": "dim", "running": "yellow", "finished": "green", "failed": "red"}
    # finished tasks are listed above the table; a long table shows only those that are running or have failed
    hidden = ("finished", "waiting") if len(states) > _MOST_ROWS else ("finished",)
    for event in states.values():
        if event.state not in hidden:
            state = f"[{colours[event.state]}]{event.state}[/]"
            table.add_row(terminal_text(event.task), state, terminal_text(event.text))
    return table
