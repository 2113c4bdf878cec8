"""`densecal export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import (
    Force,
    check_targets,
    named_files,
    print_line,
    print_note,
    print_unfinished,
    progress_bar,
)
from densecal.errors import InputError


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Run folder, checkpoint folder, or ONNX file.")],
    out: Annotated[Path, typer.Option(help="File to write (.onnx).")] = ...,  # type: ignore[assignment]
    calibrator: Annotated[
        Path | None,
        typer.Option(help="Calibrator from `calibrate fit` to put into the file, for a run without its own."),
    ] = None,
    input: Annotated[
        str, typer.Option(help="unit (floats in [0, 1]), uint8 (bytes), or normalised (floats, mean and std applied).")
    ] = "unit",
    preprocess: Annotated[
        str | None,
        typer.Option(help="For an ONNX file: u2net, isnet or a YAML file. It says which output holds the maps."),
    ] = None,
    force: Force = False,
) -> None:
    """Write a trained model, with its calibrator, as one ONNX file from images to probabilities.

    The file takes any batch and image size. Where the network's code depends on the image size, the file takes only
    that of training, and says so. Before it is written, it is run with onnxruntime and compared with PyTorch at two
    image sizes and two batch sizes. A probability that differs by more than 1e-4 is an error (exit code 1), and nothing
    is written.

    Given an ONNX file of any origin, `export` puts the calibrator behind its output. Inputs, names and other outputs
    stay as they are, so programs that use the file go on working. The new file is run and compared, too.

    Examples:

    * `densecal export runs/duts --out model.onnx`

    * `densecal export runs/duts/checkpoints/best --calibrator cal.json --input uint8 --out model.onnx`

    * `densecal export u2netp.onnx --preprocess u2net --calibrator cal.json --out calibrated.onnx`
    """
    check_targets(out)
    from densecal import posthoc

    with progress_bar():  # importing PyTorch takes seconds
        from densecal.export import ExportError
    from densecal.io.outputs import check_outputs
    from densecal.io.run_files import run_files
    from densecal.prediction.onnx_model import is_onnx

    reads = [*posthoc.calibrator_files(calibrator)] if calibrator is not None else []
    reads += [model, *named_files(preprocess)] if is_onnx(model) else run_files(model)
    check_outputs("export", [(out, "onnx")], reads, force)
    try:
        if is_onnx(model):
            _fold(model, out, calibrator, preprocess)
        else:
            _export(model, out, calibrator, input, preprocess)
    except ExportError as error:
        print_note(f"densecal: {model}: {error}")
        raise typer.Exit(1) from None


def _fold(model: Path, out: Path, calibrator: Path | None, preprocess: str | None) -> None:
    """Put a calibrator into an ONNX file of another origin."""
    from densecal.export import fold_calibrator

    if calibrator is None:
        raise InputError("--calibrator", "nothing", "a calibrator to put into the ONNX file")
    with progress_bar() as report:
        folded = fold_calibrator(model, out, calibrator, preprocess, report)
    print_line(f"{out}: {folded.bytes / 1e6:.1f} MB, output {folded.output!r} is calibrated now")
    print_line(f"  largest difference from the original with the calibrator behind it: {folded.difference:.1e}")
    if folded.on_steps:
        print_line(f"  left out: {folded.on_steps:,} pixels on a step of the calibrator, where rounding decides")


def _export(model: Path, out: Path, calibrator: Path | None, input: str, preprocess: str | None) -> None:
    """Export a run or checkpoint folder."""
    from densecal.export import export_run

    if preprocess is not None:
        raise InputError("--preprocess", "with a run", "an ONNX file; a run knows how its images are prepared")
    print_unfinished(model)
    with progress_bar() as report:
        exported = export_run(model, out, calibrator, input, report)
    side = "any size" if exported.any_size else f"{exported.size} x {exported.size} pixels only"
    print_line(f"{out}: {exported.bytes / 1e6:.1f} MB, input {exported.input}, any batch, {side}")
    for comparison in exported.comparisons:
        batch, height, width = comparison.shape
        rounding = f", whose own rounding error is {comparison.rounding:.1e}" if comparison.rounding else ""
        difference = f"largest difference from PyTorch {comparison.difference:.1e}{rounding}"
        print_line(f"  batch {batch}, {height} x {width}: {difference}")
    if exported.on_steps:
        print_line(f"  left out: {exported.on_steps:,} pixels on a step of the calibrator, where rounding decides")
    if not exported.any_size:
        print_note("note: the network's code depends on the image size, so the file takes only that of training")
