"""`densecal export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, print_line, print_note, tell_unfinished


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder or checkpoint folder.")],
    out: Annotated[Path, typer.Option(help="File to write (.onnx).")] = ...,  # type: ignore[assignment]
    calibrator: Annotated[
        Path | None,
        typer.Option(help="Calibrator from `calibrate fit` to put into the file, for a run without its own."),
    ] = None,
    input: Annotated[
        str, typer.Option(help="unit (floats in [0, 1]), uint8 (bytes), or normalised (floats, mean and std applied).")
    ] = "unit",
    force: Force = False,
) -> None:
    """Write a trained model, with its calibrator, as one ONNX file from images to probabilities.

    The file takes any batch and image size. Where the network's code depends on the image size, the file takes only
    that of training, and says so. Before it is written, it is run with onnxruntime and compared with PyTorch at two
    image sizes and two batch sizes. A probability that differs by more than 1e-4 is an error (exit code 1), and nothing
    is written.

    Examples:

    * `densecal export runs/duts --out model.onnx`

    * `densecal export runs/duts/checkpoints/best --calibrator cal.json --input uint8 --out model.onnx`
    """
    check_targets(out)
    from densecal import posthoc
    from densecal.export import ExportError, export_run
    from densecal.io.outputs import check_outputs
    from densecal.io.run_files import run_files

    reads = [*run_files(run), *(posthoc.calibrator_files(calibrator) if calibrator is not None else ())]
    check_outputs("export", [(out, "onnx")], reads, force)

    tell_unfinished(run)
    try:
        exported = export_run(run, out, calibrator, input)
    except ExportError as error:
        print_note(f"densecal: {run}: {error}")
        raise typer.Exit(1) from None
    side = "any size" if exported.any_size else f"{exported.size} x {exported.size} pixels only"
    print_line(f"{out}: {exported.bytes / 1e6:.1f} MB, input {exported.input}, any batch, {side}")
    for comparison in exported.comparisons:
        batch, height, width = comparison.shape
        rounding = f", whose own rounding error is {comparison.rounding:.1e}" if comparison.rounding else ""
        difference = f"largest difference from PyTorch {comparison.difference:.1e}{rounding}"
        print(f"  batch {batch}, {height} x {width}: {difference}")
    if exported.on_steps:
        print(f"  left out: {exported.on_steps:,} pixels on a step of the calibrator, where rounding decides")
    if not exported.any_size:
        print_note("note: the network's code depends on the image size, so the file takes only that of training")
