"""`densecal reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.benchmark import progress_table
from densecal.cli.common import Force, check_targets, console, print_line, print_note
from densecal.errors import InputError


@app.command()
def reproduce(
    item: Annotated[str | None, typer.Argument(help="A table or figure of the paper; --list names them.")] = None,
    scale: Annotated[
        str, typer.Option(help="full: the paper's setting; cpu: within an hour on two cores; smoke: generated data.")
    ] = "full",
    data: Annotated[Path, typer.Option(help="Folder of the data sets and of maps/NETWORK/DATASET/.")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="Folder of all items, which share their cells.")] = None,
    force: Force = False,
    list_items: Annotated[bool, typer.Option("--list", help="Name every table and figure, and exit.")] = False,
) -> None:
    """Make a table or figure of the paper: run what it needs and print the paper's numbers beside ours.

    A row that several items show is trained once. Run the command again after a crash: a finished cell is never run
    again. Missing data sets are named; rows whose data is available are run.

    Examples:

    * `densecal reproduce --list`

    * `densecal reproduce table-1 --data data --out paper`

    * `densecal reproduce table-3 --scale cpu --data data --out paper`

    * `densecal reproduce table-2 --scale smoke --out paper`
    """
    from densecal.reproduce.items import Scale, load_items

    if list_items:
        width = max(map(len, load_items()))
        for name, content in load_items().items():
            print(f"{name:{width}}  {content.title}")
        return
    if item is None:
        raise InputError("item", "nothing", "the name of a table or figure, see densecal reproduce --list")
    if scale not in list(Scale):
        raise InputError("--scale", repr(scale), f"one of {', '.join(Scale)}")
    if out is None:
        raise InputError("--out", "nothing", "a folder")
    check_targets(folder=out)
    from densecal.reproduce.comparison import terminal_table
    from densecal.reproduce.runner import reproduce as run_item

    with progress_table() as report:
        outcome = run_item(item, Scale(scale), data, out, report, force)
    for comparison in outcome.comparisons:
        if comparison.rows:
            console().print(terminal_table(comparison))
        for note in comparison.misprints():
            print_line(note)
    for file in outcome.files:
        print_line(str(file))
    for line in outcome.missing:
        print_note(f"missing: {line}")
    for task, reason in outcome.failed.items():
        print_note(f"failed: {task}: {reason}")
    if outcome.failed:
        raise typer.Exit(1)
