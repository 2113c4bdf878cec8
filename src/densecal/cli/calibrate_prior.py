"""`densecal calibrate prior`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.calibrate_group import calibrate_app
from densecal.cli.common import (
    MASKS_HELP,
    Force,
    check_targets,
    print_layouts,
    print_line,
    print_note,
    progress_bar,
)
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.errors import InputError
from densecal.io.atomic import STDOUT
from densecal.io.map_options import AS_STORED, MapOptions


@calibrate_app.command("prior")
@with_map_options
def calibrate_prior(
    predictions: Annotated[Path, typer.Argument(help="Folder of calibrated maps of the source.")],
    masks: Annotated[Path, typer.Argument(help=MASKS_HELP)],
    target: Annotated[Path, typer.Argument(help="Folder of calibrated maps of the target, which need no masks.")],
    out: Annotated[Path, typer.Option(help="File for the calibrator (JSON).")] = ...,  # type: ignore[assignment]
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    maps: MapOptions = AS_STORED,
    force: Force = False,
) -> None:
    """Adapt calibrated maps to unlabelled data in which the classes have other frequencies.

    It ASSUMES label shift: only the frequencies of the classes differ between source and target, and each class looks
    as it did. Unlabelled data cannot confirm that, and where it is wrong (another camera, another disease), the result
    is worse than before. The frequencies of the source are counted in its masks, those of the target are estimated
    from its maps by maximum likelihood, which is what EM (Saerens 2002) converges to.

    Example: `densecal calibrate prior calibrated-val/ val-masks/ calibrated-target/ --out prior.json`
    """
    if out != STDOUT and out.suffix.lower() != ".json":
        raise InputError("--out", str(out), "a name that ends in .json")
    check_targets(out)
    from itertools import chain

    from densecal import posthoc
    from densecal.calibrate.folders import MapData, one_plan
    from densecal.calibrate.prior import fit_prior
    from densecal.io.outputs import check_outputs

    data = MapData(predictions, masks, classes or 1, ignore_index, None, maps)
    unlabelled = one_plan(target, None, maps, classes or data.classes)
    for folder, notes in ((predictions, data.notes), (target, unlabelled.notes)):
        print_layouts(folder, notes)
    check_outputs("calibrate prior", [(out, "json")], chain(data.files(), unlabelled.files()), force)
    with progress_bar() as report:
        calibrator = fit_prior(data, unlabelled, report)
    posthoc.save(calibrator, out)
    print_line(f"{out}: prior-shift from {len(data):,} images to {len(unlabelled.pairs):,} without labels", out)
    names = ["background", "foreground"] if data.classes == 1 else [f"class {k}" for k in range(data.classes)]
    for name, source, shifted in zip(names, calibrator.source, calibrator.target, strict=True):
        print_line(f"  {name:<11} {100 * source:6.2f} % -> {100 * shifted:6.2f} %", out)
    print_note(
        "note: this assumes that only the frequencies of the classes differ, which unlabelled maps cannot confirm"
    )
