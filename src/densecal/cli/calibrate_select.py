"""`densecal calibrate select`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.calibrate_group import calibrate_app
from densecal.cli.common import (
    GROUPS_HELP,
    MASKS_HELP,
    Force,
    check_targets,
    is_run,
    named_files,
    print_layouts,
    print_line,
    print_note,
    print_unfinished,
    progress_bar,
    read_groups,
)
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.errors import InputError
from densecal.io.atomic import STDOUT
from densecal.io.map_options import AS_STORED, MapOptions

if TYPE_CHECKING:
    from densecal.calibrate.folders import MapData
    from densecal.calibrate.runs import RunData
    from densecal.calibrate.select import Candidate


@calibrate_app.command("select")
@with_map_options
def calibrate_select(
    predictions: Annotated[Path, typer.Argument(help="Folder of maps, or a run whose validation images are used.")],
    masks: Annotated[Path | None, typer.Argument(help=MASKS_HELP)] = None,
    out: Annotated[Path, typer.Option(help="File for the chosen calibrator (JSON).")] = ...,  # type: ignore[assignment]
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Calibrators to try. Default: all that need only maps.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of folds; each is judged on once.")] = 5,
    groups: Annotated[str | None, typer.Option(metavar="FILE|REGEX", help=GROUPS_HELP)] = None,
    json: Annotated[Path | None, typer.Option(help="Write the table as JSON.")] = None,
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    maps: MapOptions = AS_STORED,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; for runs.")] = "auto",
    force: Force = False,
) -> None:
    """Fit every calibrator that applies, and keep the one with the least NLL on images it was not fitted on.

    The images (or `--groups` of them) are split into folds. Every calibrator is fitted on all folds but one and judged
    on that one, so the figures are honest. The best is then fitted on all images. `flips` is the share of pixels whose
    decision changes. Exits with 3, and writes no calibrator, if the maps are best as they are.

    Examples:

    * `densecal calibrate select val-maps/ val-masks/ --out cal.json`

    * `densecal calibrate select val-maps/ val-masks/ --groups patients.csv --methods temperature,beta --out cal.json`

    * `densecal calibrate select softmax/ labels/ --classes 11 --ignore-index 11 --out cal.json`
    """
    if out != STDOUT and out.suffix.lower() != ".json":
        raise InputError("--out", str(out), "a name that ends in .json")
    check_targets(out, json)
    from dataclasses import asdict
    from itertools import chain

    from densecal import posthoc
    from densecal.calibrate import folders, select
    from densecal.calibrate.fit import fit
    from densecal.io.atomic import write_json
    from densecal.io.outputs import check_outputs, refuse_same_target

    data: MapData | RunData
    if is_run(predictions):
        if maps != AS_STORED:
            raise InputError(str(predictions), "a run, with options for maps", "a folder of maps, or a run alone")
        for name, value in {"MASKS": masks, "--classes": classes, "--ignore-index": ignore_index}.items():
            if value is not None:
                raise InputError(name, str(value), "nothing, because a run has its own data")
        print_unfinished(predictions)
        from densecal.calibrate import runs

        data = runs.RunData(predictions, device)
        names = data.part.names
    elif masks is None:
        raise InputError("MASKS", "nothing", f"a folder of masks for the maps in {predictions}")
    else:
        data = folders.MapData(predictions, masks, classes or 1, ignore_index, None, maps)
        print_layouts(predictions, data.notes)
        names = [pair.stem for pair in data.pairs]
    refuse_same_target([path for path in (out, json) if path not in (None, STDOUT)])
    for command, target in {"calibrate select": out, "calibrate select table": json}.items():
        check_outputs(command, [(target, "json")], chain(data.files(), named_files(groups)), force)
    grouping = read_groups(groups)
    with progress_bar() as report:
        chosen = None if methods is None else [name.strip() for name in methods.split(",")]
        of = None if grouping is None else grouping.of(names)
        result = select.select(data, chosen, folds, of, report)
        fitted = None if result.best == select.NONE else fit(result.best, data, "cpu", report)
    count = f"{result.images:,} images" + (f" in {result.groups:,} groups" if result.groups else "")
    print_line(f"{result.folds} folds of {count}; figures are those of images that were not fitted on", out)
    for candidate in result.candidates:
        print_line(_line(candidate), out)
    if json:
        candidates = [
            {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
            for row in map(asdict, result.candidates)
        ]
        content = {"best": result.best, "images": result.images, "groups": result.groups, "folds": result.folds}
        write_json(json, {"densecal": "calibrate select table", "version": 1, **content, "candidates": candidates})
    if fitted is None:
        print_note("densecal: calibrate select: no calibrator lowers the NLL; none is written")
        raise typer.Exit(3)
    posthoc.save(fitted.calibrator, out)
    print_line(f"{out}: {result.best}, fitted on all {result.images:,} images", out)


def _line(candidate: Candidate) -> str:
    """Return the row of a candidate."""
    if candidate.problem:
        return f"  {candidate.method:<22}{candidate.problem}"
    return (
        f"  {candidate.method:<22}NLL {candidate.nll:.5f}  ECE {100 * candidate.ece:5.2f} %  "
        f"flips {100 * candidate.flip_rate:5.2f} %"
    )
