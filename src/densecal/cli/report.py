"""`densecal report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, print_line, print_note, print_unfinished, progress_bar
from densecal.cli.cost_options import CostAlarm, CostMiss, prices_of
from densecal.errors import InputError
from densecal.runtime.cores import cores


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, evaluation JSON files, benchmark folders.")],
    out: Annotated[Path, typer.Option(help="The HTML file.")] = ...,  # type: ignore[assignment]
    predictions: Annotated[
        Path | None, typer.Option(help="Maps of the evaluations, laid out as for evaluate; for the gallery.")
    ] = None,
    masks: Annotated[Path | None, typer.Option(help="Their masks, laid out as for evaluate.")] = None,
    images: Annotated[Path | None, typer.Option(help="Their images, or DATASET/ folders of them.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Images per evaluation in the gallery.")] = 24,
    cost_miss: CostMiss = None,
    cost_alarm: CostAlarm = None,
    force: Force = False,
) -> None:
    """Make one self-contained HTML file, smaller than 5 MB, from any number of runs and evaluations.

    For a run, it shows the training curves, alpha, and the model on up to 200 validation images. An evaluation file
    holds no images, so the gallery needs the folders it was made from.

    Examples:

    * `densecal report runs/bce runs/aslp --out report.html`

    * `densecal report scores.json --out report.html`

    * `densecal report scores.json --predictions maps/ --masks masks/ --images photos/ --out report.html`

    * `densecal report scores.json --cost-miss 5 --cost-alarm 1 --out report.html`
    """
    prices = prices_of(cost_miss, cost_alarm)
    if (predictions is None) != (masks is None) or (images is not None and predictions is None):
        raise InputError("--predictions, --masks, --images", "only some of them", "maps and masks together, or none")
    check_targets(out)
    from densecal.io.outputs import check_outputs
    from densecal.report.collect import collect
    from densecal.report.gallery import Folders
    from densecal.report.inputs import files_read
    from densecal.report.measure_sections import with_costs
    from densecal.report.page import write_page

    print_unfinished(*paths)
    folders = None if predictions is None or masks is None else Folders(predictions, masks, images)
    check_outputs("report", [(out, "html")], files_read(paths, folders), force)
    with progress_bar(keep=True) as show:
        page = collect(paths, folders, examples, cores(), show)
    if prices is not None:
        page.records = with_costs(page.records, prices)
    size = write_page(page, out)
    for note in page.notes:
        print_note(f"note: {note}")
    print_line(f"{out}: {size / 1e6:.2f} MB", out)
