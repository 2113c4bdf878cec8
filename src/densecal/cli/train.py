"""`densecal train` and `demo`."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import (
    console,
    print_line,
    print_note,
    print_unfinished,
    progress_bar,
)
from densecal.errors import InputError, Preempted

if TYPE_CHECKING:
    from densecal.training.sections import DataConfig


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or a YAML file; with --settings, a section or a method.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings such as optim.lr=1e-4.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Required, except with --settings.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in the folder. A larger optim.epochs extends the run.")
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="A finished run of bce on the same data, which is the first of two stages."),
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Print the settings with their defaults and meaning, and train nothing.")
    ] = False,
) -> None:
    """Train a calibrated segmentation model and write a run folder.

    The folder holds config.yaml, log.jsonl, checkpoints/last, previous and best, alpha.csv (adaptive methods) and
    calibrator.json (with model.calibrator). `--resume` continues a run that was killed, and it ends with the same
    weights, bit for bit on a CPU with the same number of threads (engine.threads). Ctrl-C stops a run after the current
    step; a second Ctrl-C stops it at once.

    Examples:

    * `densecal train demo --out runs/demo`

    * `densecal train sod data.images=DUTS-TR/images data.masks=DUTS-TR/masks --out runs/duts`

    * `densecal train --settings optim` explains the settings of a section, and `--settings aslp-mc` those of a method

    * `densecal train my.yaml method.name=aslp-mc method.technique=si optim.epochs=20 --out runs/si --resume`

    * `densecal train sod-paper method.name=als --from runs/bce --out runs/als`
    """
    if settings:
        from densecal.cli.settings import print_settings

        print_settings(recipe)
        return
    if recipe is None:
        raise InputError("RECIPE", "nothing", "a recipe's name or a YAML file (--settings lists the settings)")
    if out is None:
        raise InputError("--out", "nothing", "a run folder")
    from densecal.training.config import dropped_options, load_config

    config = load_config(recipe, overrides or [])
    if dropped := dropped_options(recipe, overrides or []):
        print_note(f"{recipe}: dropped for {config.method.name}: {', '.join(dropped)}")
    run_config = out / "config.yaml"
    if overrides and run_config.is_file() and Path(recipe).is_file() and run_config.samefile(recipe):
        raise InputError(
            recipe, "the configuration of the run itself", "this file without further settings, or a copy of it"
        )
    if "weights" not in config.model.model_fields_set and not resume and start is None:
        print_note(
            f"note: model.weights is not given, so {config.model.encoder} starts from random weights and learns from "
            "your images alone; model.weights=imagenet uses pretrained ones (offline: model.weights=offline "
            "model.encoder=tf_efficientnet_lite2), model.weights=null hides this note"
        )
    if config.model.weights is not None:
        print_unfinished(Path(config.model.weights))
    try:
        with progress_bar(keep=True) as report:
            # this import takes seconds, so mistakes in the settings are reported before it
            from densecal.calibrate.runs import train_and_calibrate

            result = train_and_calibrate(config, out, resume, report, start)
    except KeyboardInterrupt:
        stopped = Preempted(f"{out}: stopped; --resume continues after the last finished epoch")
        stopped.number = signal.SIGINT
        raise stopped from None
    from densecal.runtime.sharding import is_first_process

    if not is_first_process():
        return
    if result is None:
        print_line(f"{out}: this run is finished; nothing to train")
        return
    figures = {"ECE": result.ece_ew, "OE": result.oe_ew, "accuracy": result.accuracy, "Brier": result.brier}
    text = ", ".join(f"{name} {100 * value:.2f} %" for name, value in figures.items())
    print_line(f"{out}: validation on {result.images:,} images: {text}")
    from densecal.training.state import perturbed_labels

    perturbed = perturbed_labels(out)
    if perturbed is not None:
        print_line(f"{out}: {config.method.name}: {perturbed}")
    _print_caches(config.data)


def _print_caches(data: DataConfig) -> None:
    """Print where the packed images of a run are kept, and their size."""
    from densecal.data.caches import read_cache
    from densecal.training.samples import cache_folders

    with suppress(InputError):  # the images may have been moved meanwhile; that is not an error
        for cache in filter(None, map(read_cache, cache_folders(data))):
            size = f"{cache.bytes / 1e6:,.1f} MB"
            print_line(f"{cache.folder}: {cache.samples:,} packed images, {size}, kept for the next training")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, maps and report.html.")] = Path("demo"),
) -> None:
    """Show in about two minutes what calibration is: train with and without it on generated scenes.

    It needs no data and no network. The result is report.html in the folder.

    Example: `densecal demo --out demo`
    """
    from densecal.demo import run_demo
    from densecal.report.tables import comparison_table, interval_table

    try:
        with progress_bar(keep=True) as report:
            evaluations = run_demo(out, report)
    except Preempted as stopped:
        stopped.args = (f"{out}: stopped; the same command starts from the beginning",)
        raise
    records = [evaluation.record for evaluation in evaluations]
    console().print(comparison_table(records), *filter(None, [interval_table(records)]))
    print_line(f"The page: {out / 'report.html'}")
