"""`densecal train`, `predict` and `demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import console, import_fabric, progress_bar, warnings_as_lines
from densecal.errors import InputError, Preempted
from densecal.io import MAX_PIXELS


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings such as optim.lr=1e-4.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
) -> None:
    """Train a calibrated segmentation model and write a run folder.

    The folder holds config.yaml, log.jsonl, checkpoints/last, previous and best, alpha.csv (adaptive methods) and
    calibrator.json (with model.calibrator). `--resume` continues a run that was killed, and it ends with the same
    weights, bit for bit on a CPU. Ctrl-C stops a run after the current step, a second Ctrl-C stops it at once.

    Examples:

    * `densecal train demo --out runs/demo`

    * `densecal train sod data.images=DUTS-TR/images data.masks=DUTS-TR/masks --out runs/duts`

    * `densecal train my.yaml method.name=aslp-mc method.technique=si optim.epochs=20 --out runs/si --resume`
    """
    from densecal.training.config import load_config

    config = load_config(recipe, overrides or [])
    # this import takes seconds, so mistakes in the settings are reported before it
    import_fabric()
    from densecal.calibrate.runs import train_and_calibrate

    try:
        with warnings_as_lines(), progress_bar(keep=True) as report:
            result = train_and_calibrate(config, out, resume, report)
    except KeyboardInterrupt:
        print(f"densecal: {out}: stopped; --resume continues after the last finished epoch", file=sys.stderr)
        raise
    if result is None:
        print(f"{out}: this run is finished; nothing to train")
        return
    figures = {"ECE": result.ece_ew, "OE": result.oe_ew, "accuracy": result.accuracy, "Brier": result.brier}
    shown = ", ".join(f"{name} {100 * value:.2f} %" for name, value in figures.items())
    print(f"{out}: validation on {result.images:,} images: {shown}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder or checkpoint folder.")],
    images: Annotated[Path, typer.Argument(help="Folder of images, one image, list file, or zip with images/.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")] = ...,  # type: ignore[assignment]
    format: Annotated[
        str | None, typer.Option(help="png16 (default), png8 or npy (default for several classes).")
    ] = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Also write confidence/ and entropy/ maps.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images per batch; with --tile, as many tiles as have the same number of pixels.")
    ] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="Another run whose probabilities are averaged in, at the network's size; may be repeated."),
    ] = None,
    mc_dropout: Annotated[
        int | None, typer.Option(min=1, help="Average over this many draws of the network's dropout.")
    ] = None,
    tile: Annotated[
        int | None,
        typer.Option(
            help="Predict at each image's own resolution, in tiles with this side in pixels (a multiple of 32)."
        ),
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(help="Pixels that tiles share (a multiple of 32). Default: a quarter of a tile.")
    ] = None,
    max_pixels: Annotated[int, typer.Option(min=1, help="Refuse images with more pixels.")] = MAX_PIXELS,
) -> None:
    """Write the probability maps of a trained model, at the size of each image.

    Images are resized to the size the network was trained at, and its output is resized back. With `--tile`, large
    images keep their detail: the network sees overlapping tiles, whose probabilities are blended.

    Examples:

    * `densecal predict runs/duts photos/ --out maps/`

    * `densecal predict runs/duts/checkpoints/best photos/ --out maps/ --format npy --uncertainty`

    * `densecal predict runs/seed0 photos/ --ensemble runs/seed1 --ensemble runs/seed2 --out maps/`

    * `densecal predict runs/duts aerial/ --tile 512 --out maps/`
    """
    if tile is None and overlap is not None:
        raise InputError("--overlap", str(overlap), "--tile as well")
    from densecal.prediction.ensembles import load_ensemble, with_mc_dropout
    from densecal.prediction.folder import predict as run_prediction
    from densecal.prediction.tiles import Tiling
    from densecal.runtime.sharding import join_processes

    tiling = None if tile is None else Tiling.of(tile, overlap)
    with warnings_as_lines(), join_processes() as processes, progress_bar() as report:
        processes.use_own_gpu()
        predictor = load_ensemble([run, *(ensemble or [])], device)
        if mc_dropout:
            predictor = with_mc_dropout(predictor, mc_dropout)
        count = run_prediction(
            predictor,
            images,
            out,
            format=format,
            uncertainty=uncertainty,
            batch=batch,
            tiling=tiling,
            max_pixels=max_pixels,
            progress=report,
            processes=processes,
        )
    if processes.first:
        print(f"{out}: {count:,} maps")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, maps and report.html.")] = Path("demo"),
) -> None:
    """Show in about two minutes what calibration is: train with and without it on generated scenes.

    It needs no data and no network. The result is report.html in the folder.
    """
    from densecal.demo import run_demo
    from densecal.report.tables import comparison_table

    try:
        with warnings_as_lines(), progress_bar(keep=True) as report:
            evaluations = run_demo(out, report)
    except Preempted as stopped:
        stopped.args = (f"{out}: stopped; the same command starts from the beginning",)
        raise
    console().print(comparison_table([evaluation.record for evaluation in evaluations]))
    print(f"The page: {out / 'report.html'}")
