"""`densecal raters`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, console, progress_bar
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.io import MAX_PIXELS, MAX_SLAB_PIXELS
from densecal.io.map_options import AS_STORED, MapOptions


@app.command()
@with_map_options
def raters(
    predictions: Annotated[Path, typer.Argument(help="Folder of maps.")],
    masks: Annotated[
        list[Path],
        typer.Argument(help="A folder of masks for each rater, or one whose files hold the masks of all."),
    ],
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Bins of the calibration errors.")] = 10,
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Refuse images with more pixels. Default: as for evaluate --metrics fast.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    maps: MapOptions = AS_STORED,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: all cores.")] = None,
    force: Force = False,
) -> None:
    """Score maps against several raters: calibration against their mean vote, volumes, and how far they agree.

    Example: `densecal raters softmax/ rater-1/ rater-2/ rater-3/ --classes 4 --json raters.json`
    """
    import dataclasses

    from densecal.cli.common import print_layouts, print_note
    from densecal.data.pairs import find_plan
    from densecal.evaluation.raters import evaluate_raters
    from densecal.evaluation.worker import Settings
    from densecal.io.atomic import write_json
    from densecal.io.outputs import check_outputs
    from densecal.report.raters import rater_table
    from densecal.runtime.cores import cores

    settings = Settings(
        bins, False, classes, ignore_index, max_pixels or MAX_PIXELS, maps=maps,
        max_slab_pixels=max_pixels or MAX_SLAB_PIXELS,
    )  # fmt: skip
    check_targets(json)
    plans = [find_plan(predictions, folder, maps, classes, ignore_index) for folder in masks]
    reads = (file for plan in plans for file in plan.files())
    check_outputs("raters", [(json, "json")], reads, force)
    print_layouts(predictions, plans[0].notes)
    with progress_bar() as bar:
        figures = evaluate_raters(predictions, masks, settings, workers or cores(), bar)
    console(json).print(rater_table(figures))
    for warning in figures.warnings:
        print_note(f"warning: {warning}")
    if json is not None:
        write_json(json, {"densecal": "raters"} | dataclasses.asdict(figures))
