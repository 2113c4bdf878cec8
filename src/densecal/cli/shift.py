"""`densecal shift`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, console, print_unfinished, progress_bar
from densecal.errors import InputError

if TYPE_CHECKING:
    from densecal.evaluation.model import Calibrator
    from densecal.evaluation.shift import Shifts


@app.command()
def shift(
    run: Annotated[Path, typer.Argument(help="Run folder or checkpoint folder.")],
    images: Annotated[Path, typer.Argument(help="Folder of images, list file, or zip with images/ and masks/.")],
    masks: Annotated[Path | None, typer.Argument(help="Folder of masks, where IMAGES is a folder of images.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the curves (PNG).")] = None,
    calibrator: Annotated[
        Path | None,
        typer.Option(help="Calibrator (JSON) for a run without its own. The model is shown with and without it."),
    ] = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Bins of the calibration errors.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    force: Force = False,
) -> None:
    """Measure how calibration and accuracy suffer as images get noisy, blurred, compressed, bright or low in contrast.

    Five kinds of corruption, at five severities each, are applied to the images at the network's input size. Figures
    are computed at the size of the masks.

    Examples:

    * `densecal shift runs/duts ecssd.zip --json shift.json --figures figures/`

    * `densecal shift runs/duts photos/ masks/ --calibrator temperature.json`
    """
    check_targets(json, folder=figures)
    from densecal import posthoc
    from densecal.data import open_source

    with progress_bar():  # importing PyTorch takes seconds
        from densecal.evaluation.model import load_image_set
        from densecal.evaluation.shift import shift_evaluations
    from densecal.io.atomic import write_json
    from densecal.io.outputs import check_output_folder, check_outputs
    from densecal.io.run_files import run_files
    from densecal.prediction.predictor import load_predictor, own_calibrator_error
    from densecal.report.shift import shift_table

    print_unfinished(run)
    if figures is not None:
        check_output_folder(figures, [images, masks], "--figures")
    reads = [*run_files(run), *open_source(images, masks).files(), images]
    reads += posthoc.calibrator_files(calibrator) if calibrator is not None else ()
    check_outputs("shift", [(json, "json"), (None if figures is None else figures / "shift.png", "png")], reads, force)
    with progress_bar():
        predictor = load_predictor(run, device)
    data = predictor.config.data
    ignore_index = data.ignore_index if data.classes > 1 else None
    with progress_bar() as report:
        image_set = load_image_set(
            _dataset_name(images), images, masks, size=data.size, classes=data.classes, ignore_index=ignore_index,
            progress=report,
        )  # fmt: skip
    name = run.resolve().name
    calibrators: dict[str, Calibrator | None] = {name: predictor.calibrator}
    if calibrator is not None:
        if predictor.calibrator is not None:
            raise own_calibrator_error(run, predictor.calibrator)
        fitted = posthoc.load(calibrator).to(predictor.device)
        if fitted.num_classes != data.classes:
            raise InputError(
                calibrator, f"a calibrator for {fitted.num_classes} classes", f"one for {data.classes}, as {run} has"
            )
        calibrators[f"{name} with {calibrator.stem}"] = fitted
    with progress_bar() as report:
        shifts = shift_evaluations(
            predictor.model, image_set, calibrators, device=predictor.device, bins=bins, batch=batch, seed=seed,
            progress=report,
        )  # fmt: skip
    console(json).print(shift_table(shifts))
    if json:
        entries = [_entry(name, by_kind) for name, by_kind in shifts.items()]
        write_json(json, {"densecal": "shift", "evaluations": entries})
    if figures:
        from densecal.report.figures import save_figures
        from densecal.report.shift import shift_figure

        save_figures({"shift": shift_figure(shifts)}, figures, "shift")


def _dataset_name(images: Path) -> str:
    """Return the name of the folder or file, or that of the parent of a folder named "images"."""
    path = images.resolve()
    return path.parent.name if path.name.lower() in ("images", "imgs", "image") else path.stem


def _entry(name: str, by_kind: Shifts) -> dict[str, object]:
    """Return one method for JSON, with the clean record, which all kinds share, only once."""
    clean = next(iter(by_kind.values()))[0]
    shifted = {kind: {s: record.to_json() for s, record in records.items() if s} for kind, records in by_kind.items()}
    return {"name": name, "dataset": clean.dataset, "clean": clean.to_json(), "shift": shifted}
