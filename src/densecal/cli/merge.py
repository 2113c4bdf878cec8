"""`densecal merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, print_note, progress_bar
from densecal.cli.evaluate import report_evaluations


@app.command()
def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="PART.sketch...", help="Files written by densecal evaluate --partial, in any order."),
    ],
    json: Annotated[Path | None, typer.Option(help="Write the record, with figures and curves, as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file with one line.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a booktabs table.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the method. Default: that of the parts.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: that of the parts.")] = None,
    force: Force = False,
) -> None:
    """Add up the parts of an evaluation, exactly: the figures are those of one call over all images.

    Parts come from `densecal evaluate --partial` with the same settings. However the images are cut into parts, and
    in whatever order the parts are given, the files are the same to the byte. An image in two parts is refused.

    Examples:

    * `densecal evaluate maps-0/ masks-0/ --partial part-0.sketch --name unet --dataset streets`, on any machine

    * `densecal merge part-*.sketch --json scores.json`
    """
    from densecal.evaluation.folders import compute
    from densecal.evaluation.partial import merge_partials
    from densecal.io.outputs import check_outputs

    check_targets(json, csv, latex)
    check_outputs("evaluate", [(json, "json"), (csv, "csv"), (latex, "tex")], parts, force)
    with progress_bar() as report:
        whole = merge_partials(parts, name, dataset, report)
    if whole.unchecked:
        print_note(f"note: {whole.unchecked:,} images came without names: parts that overlap in some may go unnoticed")
    report_evaluations([compute(whole, "PART", "PART")], [], json, csv, latex, None)
