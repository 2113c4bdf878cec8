"""`densecal calibrate fit` and `apply`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli import calibrate_prior, calibrate_select
from densecal.cli.app import app
from densecal.cli.calibrate_group import calibrate_app
from densecal.cli.common import (
    MASKS_HELP,
    Force,
    check_targets,
    is_run,
    print_layouts,
    print_line,
    print_note,
    print_unfinished,
    progress_bar,
)
from densecal.cli.engine import Address, EngineName, EngineOption, open_engine
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.errors import InputError
from densecal.io.atomic import STDOUT
from densecal.io.map_options import AS_STORED, MapOptions

if TYPE_CHECKING:
    from densecal.calibrate.folders import MapData
    from densecal.calibrate.runs import RunData

__all__ = ["calibrate_prior", "calibrate_select"]  # whose commands belong to the same group

app.add_typer(calibrate_app, name="calibrate")


@calibrate_app.command("fit")
@with_map_options
def calibrate_fit(
    method: Annotated[
        str,
        typer.Argument(
            help="Calibrator, such as temperature. An unknown name lists them all; `calibrate select` chooses one."
        ),
    ],
    predictions: Annotated[Path, typer.Argument(help="Folder of maps, or a run whose validation images are used.")],
    masks: Annotated[Path | None, typer.Argument(help=MASKS_HELP)] = None,
    out: Annotated[Path, typer.Option(help="File for the calibrator (JSON).")] = ...,  # type: ignore[assignment]
    images: Annotated[Path | None, typer.Option(help="Folder of images, for local-temperature and selective.")] = None,
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    maps: MapOptions = AS_STORED,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; for runs.")] = "auto",
    engine: EngineOption = EngineName.local,
    address: Address = None,
    force: Force = False,
) -> None:
    """Fit a calibrator on held-out maps and masks, or on the validation images of a run.

    The printed figures are those of the data that the calibrator was fitted on. Measure it on other data with
    `densecal evaluate`.

    Examples:

    * `densecal calibrate fit temperature val-maps/ val-masks/ --out cal.json`

    * `densecal calibrate fit local-temperature runs/duts --out cal.json`

    * `densecal calibrate fit vector softmax/ labels/ --classes 11 --ignore-index 11 --out cal.json`

    * `densecal calibrate fit temperature val-maps/ val-masks/ --out cal.json --engine ray --address auto`
    """
    if out != STDOUT and out.suffix.lower() != ".json":
        raise InputError("--out", str(out), "a name that ends in .json")
    check_targets(out)
    from densecal import posthoc

    kind = posthoc.find(method, "METHOD")
    from densecal.calibrate import folders
    from densecal.calibrate.fit import fit
    from densecal.io.outputs import check_outputs

    data: MapData | RunData
    fit_device = "cpu"
    if engine is EngineName.ray and (is_run(predictions) or kind.needs_images or (classes or 1) > 1):
        expected = "maps of one foreground probability, and a calibrator that is fitted from counts of their logits"
        raise InputError("--engine ray", f"{method} on {predictions}", expected)
    if is_run(predictions):
        options = {"MASKS": masks, "--images": images, "--classes": classes, "--ignore-index": ignore_index}
        if maps != AS_STORED:
            raise InputError(str(predictions), "a run, with options for maps", "a folder of maps, or a run alone")
        for name, value in options.items():
            if value is not None:
                raise InputError(name, str(value), "nothing, because a run has its own data")
        print_unfinished(predictions)
        with progress_bar():  # importing PyTorch takes seconds
            from densecal.calibrate import runs

            data = run = runs.RunData(predictions, device)
        fit_device = str(run.predictor.device)
    elif masks is None:
        from densecal.data.pairs import check_folder

        check_folder(predictions, "a folder of maps, or a run")
        raise InputError("MASKS", "nothing", f"a folder of masks for the maps in {predictions}")
    else:
        data = folders.MapData(predictions, masks, classes or 1, ignore_index, images, maps)
        print_layouts(predictions, data.notes)
    file, weights = posthoc.calibrator_files(out)
    targets = [(file, "json"), (weights if kind.needs_images else None, "safetensors")]
    check_outputs("calibrate fit", targets, data.files(), force)
    with open_engine(engine, address) as cluster, progress_bar() as report:
        if cluster is not None and isinstance(data, folders.MapData):
            data.engine = cluster
        result = fit(method, data, fit_device, report)
    posthoc.save(result.calibrator, out)
    for warning in result.warnings:
        print_note(f"warning: {warning}")
    fitted = f"{out}: {method} fitted on {result.images:,} images{_parameters(result.calibrator.to_json())}"
    print_line(fitted, out)
    for stage, scores in (("before", result.before), ("after", result.after)):
        print_line(f"  {stage:<6}  NLL {scores.nll:.5f}  ECE {100 * scores.ece:.2f} %", out)


@calibrate_app.command("apply")
@with_map_options
def calibrate_apply(
    calibrator: Annotated[Path, typer.Argument(help="File that `calibrate fit` wrote.")],
    predictions: Annotated[Path, typer.Argument(help="Folder of maps.")],
    out: Annotated[Path, typer.Option(help="Folder for the calibrated maps.")] = ...,  # type: ignore[assignment]
    images: Annotated[Path | None, typer.Option(help="Folder of images, for local-temperature and selective.")] = None,
    maps: MapOptions = AS_STORED,
    force: Force = False,
) -> None:
    """Write the calibrated maps of a folder of maps.

    8- and 16-bit maps become 16-bit PNG, so that rounding does not undo the calibration. Float maps become .npy.

    Example: `densecal calibrate apply cal.json test-maps/ --out calibrated/`
    """
    from densecal import posthoc
    from densecal.calibrate.folders import apply

    loaded = posthoc.load(calibrator)
    with progress_bar() as report:
        applied = apply(loaded, predictions, out, images, report, posthoc.calibrator_files(calibrator), force, maps)
    low, high = applied.flip_ci
    interval = "" if math.isnan(low) else f" (95 % interval {100 * low:.3f} to {100 * high:.3f})"
    print_line(f"{out}: {applied.maps:,} maps; {100 * applied.flip_rate:.3f} % of decisions changed{interval}")


def _parameters(data: dict[str, object]) -> str:
    """Return the parameters of a calibrator that are single numbers, as text."""
    return "".join(f", {name} {value:.6g}" for name, value in data.items() if isinstance(value, float))


_ORDER = ("fit", "select", "apply", "prior")
calibrate_app.registered_commands.sort(key=lambda command: _ORDER.index(command.name or ""))  # the order of use
