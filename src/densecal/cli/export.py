"""`densecal export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder or checkpoint folder.")],
    out: Annotated[Path, typer.Option(help="File to write (.onnx).")] = ...,  # type: ignore[assignment]
    calibrator: Annotated[
        Path | None,
        typer.Option(help="A calibrator of `calibrate fit` to put into the file, for a run without its own."),
    ] = None,
    input: Annotated[
        str, typer.Option(help="unit (floats in [0, 1]), uint8 (bytes), or normalised (floats, mean and std applied).")
    ] = "unit",
) -> None:
    """Write a trained model, with its calibrator, as one ONNX file from images to probabilities.

    Batch and size are free; where the network's code depends on the size, the file says so and takes the size of
    training. Before it is written it is run by onnxruntime and compared with PyTorch, at two sizes and two batch
    sizes: a probability that differs by more than 1e-4 is an error (exit code 1) and nothing is written.

    Examples:

    * `densecal export runs/duts --out model.onnx`

    * `densecal export runs/duts/checkpoints/best --calibrator cal.json --input uint8 --out model.onnx`
    """
    from densecal.export import ExportError, export_run

    try:
        made = export_run(run, out, calibrator, input)
    except ExportError as error:
        print(f"densecal: {run}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    side = "any size" if made.any_size else f"{made.size} x {made.size} pixels only"
    print(f"{out}: {made.bytes / 1e6:.1f} MB, input {made.input}, any batch, {side}")
    for comparison in made.comparisons:
        batch, height, width = comparison.shape
        rounds = f", which itself rounds by {comparison.rounding:.1e}" if comparison.rounding else ""
        print(
            f"  batch {batch}, {height} x {width}: largest difference from PyTorch {comparison.difference:.1e}{rounds}"
        )
    if made.on_steps:
        print(f"  left out: {made.on_steps:,} pixels on a step of the calibrator, where rounding decides")
    if not made.any_size:
        print("note: this network's code depends on the size, so the file takes that of training", file=sys.stderr)
