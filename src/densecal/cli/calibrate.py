"""`densecal calibrate` and `risk-control`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import check_targets, print_line, progress_bar
from densecal.errors import InputError
from densecal.io.atomic import STDOUT

calibrate_app = typer.Typer(help="Fit a post-hoc calibrator, and apply one to maps.", no_args_is_help=True)
app.add_typer(calibrate_app, name="calibrate")


@calibrate_app.command("fit")
def calibrate_fit(
    method: Annotated[
        str,
        typer.Argument(help="temperature, vector, platt, isotonic, histogram, beta, local-temperature or selective."),
    ],
    predictions: Annotated[Path, typer.Argument(help="Folder of maps, or a run whose validation images are used.")],
    masks: Annotated[Path | None, typer.Argument(help="Folder of masks, for a folder of maps.")] = None,
    out: Annotated[Path, typer.Option(help="File for the calibrator (JSON).")] = ...,  # type: ignore[assignment]
    images: Annotated[Path | None, typer.Option(help="Folder of images, for local-temperature and selective.")] = None,
    classes: Annotated[int | None, typer.Option(min=1, max=255, help="K for maps of K softmax classes.")] = None,
    ignore_index: Annotated[int | None, typer.Option(min=0, max=255, help="Mask value of void pixels.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; for runs.")] = "auto",
) -> None:
    """Fit a calibrator on held-out maps and masks, or on the validation images of a run.

    The printed figures are those of the data that the calibrator was fitted on. Measure it on other data with
    `densecal evaluate`.

    Examples:

    * `densecal calibrate fit temperature val-maps/ val-masks/ --out cal.json`

    * `densecal calibrate fit local-temperature runs/duts --out cal.json`

    * `densecal calibrate fit vector softmax/ labels/ --classes 11 --ignore-index 11 --out cal.json`
    """
    if out != STDOUT and out.suffix.lower() != ".json":
        raise InputError("--out", str(out), "a name that ends in .json")
    check_targets(out)
    from densecal import posthoc

    posthoc.find(method, "METHOD")
    from densecal.calibrate.fit import FitData, fit
    from densecal.calibrate.folders import MapData

    data: FitData
    fit_device = "cpu"
    if _is_run(predictions):
        given = {"MASKS": masks, "--images": images, "--classes": classes, "--ignore-index": ignore_index}
        for name, value in given.items():
            if value is not None:
                raise InputError(name, str(value), "nothing, because a run has its own data")
        from densecal.calibrate.runs import RunData

        data = run = RunData(predictions, device)
        fit_device = str(run.predictor.device)
    elif masks is None:
        raise InputError("MASKS", "nothing", f"a folder of masks for the maps in {predictions}")
    else:
        data = MapData(predictions, masks, classes or 1, ignore_index, images)
    with progress_bar() as report:
        result = fit(method, data, fit_device, report)
    posthoc.save(result.calibrator, out)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    fitted = f"{out}: {method} fitted on {result.images:,} images{_parameters(result.calibrator.to_json())}"
    print_line(fitted, out)
    for stage, scores in (("before", result.before), ("after", result.after)):
        print_line(f"  {stage:<6}  NLL {scores.nll:.5f}  ECE {100 * scores.ece:.2f} %", out)


@calibrate_app.command("apply")
def calibrate_apply(
    calibrator: Annotated[Path, typer.Argument(help="File that `calibrate fit` wrote.")],
    predictions: Annotated[Path, typer.Argument(help="Folder of maps.")],
    out: Annotated[Path, typer.Option(help="Folder for the calibrated maps.")] = ...,  # type: ignore[assignment]
    images: Annotated[Path | None, typer.Option(help="Folder of images, for local-temperature and selective.")] = None,
) -> None:
    """Write the calibrated maps of a folder of maps.

    8- and 16-bit maps become 16-bit PNG, so that rounding does not undo the calibration. Float maps become .npy.

    Example: `densecal calibrate apply cal.json test-maps/ --out calibrated/`
    """
    from densecal import posthoc
    from densecal.calibrate.folders import apply

    loaded = posthoc.load(calibrator)
    with progress_bar() as report:
        count = apply(loaded, predictions, out, images, report)
    print(f"{out}: {count:,} maps")


@app.command("risk-control")
def risk_control(
    predictions: Annotated[Path, typer.Argument(help="Folder of foreground maps.")],
    masks: Annotated[Path, typer.Argument(help="Folder of masks.")],
    alpha: Annotated[float, typer.Option(help="Largest false-negative rate to accept, on average.")] = 0.1,
    ignore_index: Annotated[int | None, typer.Option(min=0, max=255, help="Mask value of void pixels.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Find the threshold that misses at most a share alpha of the foreground of a new image, on average.

    The guarantee (conformal risk control) holds for new images of the same kind. It needs at least 1/alpha - 1
    images with masks. The other figures show its price: how much is called foreground.

    Example: `densecal risk-control val-maps/ val-masks/ --alpha 0.05 --json threshold.json`
    """
    check_targets(json)
    from dataclasses import asdict

    from densecal.calibrate.folders import control_risk
    from densecal.io.atomic import write_json

    with progress_bar() as report:
        result = control_risk(predictions, masks, alpha, ignore_index, report)
    for line in (
        f"foreground is p >= {result.threshold:g} (lambda {result.lam:g}), from {result.images:,} images",
        f"  false-negative rate  {100 * result.risk:.2f} % here, at most {100 * alpha:g} % expected on a new image",
        f"  false-positive rate  {100 * result.fpr:.2f} %",
        f"  called foreground    {100 * result.set_size:.2f} % of an image",
    ):
        print_line(line, json)
    if json:
        record = asdict(result)
        write_json(json, {"densecal": "risk-control", "version": 1, "lambda": record.pop("lam"), **record})


def _is_run(path: Path) -> bool:
    """Whether a folder is a run or a checkpoint rather than a folder of maps."""
    return (path / "checkpoints").is_dir() or (path / "meta.json").is_file()


def _parameters(data: dict[str, object]) -> str:
    """Return the parameters that are single numbers, as text."""
    return "".join(f", {name} {value:.6g}" for name, value in data.items() if isinstance(value, float))
