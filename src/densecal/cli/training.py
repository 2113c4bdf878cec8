"""`densecal train`, `predict` and `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import console, progress, training_progress, warnings_as_lines


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings such as optim.lr=1e-4.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
) -> None:
    """Train a calibrated segmentation model and leave a run folder.

    The folder holds config.yaml, log.jsonl, alpha.csv and checkpoints/last and checkpoints/best. A run that was
    killed goes on with `--resume` and ends with the same weights, to the bit on a CPU.

    Examples:

    * `densecal train demo --out runs/demo`

    * `densecal train sod data.images=DUTS-TR/images data.masks=DUTS-TR/masks --out runs/duts`

    * `densecal train my.yaml method.name=aslp-mc method.technique=si optim.epochs=20 --out runs/si --resume`
    """
    from densecal.training.config import load_config
    from densecal.training.loop import train as run

    config = load_config(recipe, overrides or [])
    with warnings_as_lines(), training_progress() as report:
        result = run(config, out, resume, report)
    if result is None:
        print(f"{out}: this run is finished; nothing to do")
        return
    figures = {"ECE": result.ece_ew, "OE": result.oe_ew, "accuracy": result.accuracy, "Brier": result.brier}
    shown = ", ".join(f"{name} {100 * value:.2f} %" for name, value in figures.items())
    print(f"{out}: validation {shown}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder or checkpoint folder.")],
    images: Annotated[Path, typer.Argument(help="Folder of images, list file, or zip with images/.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")] = ...,  # type: ignore[assignment]
    format: Annotated[
        str | None, typer.Option(help="png16 (default), png8 or npy (default for several classes).")
    ] = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Also write confidence/ and entropy/ maps.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write the probability maps of a trained model, at the size of each image.

    Examples:

    * `densecal predict runs/duts photos/ --out maps/`

    * `densecal predict runs/duts/checkpoints/best photos/ --out maps/ --format npy --uncertainty`
    """
    from densecal.prediction import load_predictor
    from densecal.prediction import predict as run_prediction

    predictor = load_predictor(run, device)
    with progress("Predicting") as report:
        count = run_prediction(
            predictor, images, out, format=format, uncertainty=uncertainty, batch=batch, progress=report
        )
    print(f"{out}: {count:,} maps")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, maps and report.html.")] = Path("demo"),
) -> None:
    """Show in about two minutes what calibration is: train with and without it on generated scenes.

    Needs no data and no network; the result is report.html in the folder.
    """
    from densecal.demo import run_demo
    from densecal.report.tables import comparison_table

    with warnings_as_lines(), training_progress() as report:
        evaluations = run_demo(out, report)
    console().print(comparison_table([evaluation.record for evaluation in evaluations]))
    print(f"The page: {out / 'report.html'}")
