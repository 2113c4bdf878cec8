"""The command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from densecal import __version__
from densecal.errors import InputError

app = typer.Typer(
    name="densecal",
    help="Segmentation models whose confidence can be believed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

MAX_PIXELS = 1 << 26


class Metrics(StrEnum):
    """Which figures to compute."""

    fast = "fast"
    full = "full"


def main() -> None:
    """Entry point: bad input is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"densecal: {error}".replace("\n", " "), file=sys.stderr)
        sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        print(f"densecal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def evaluate(
    predictions: Annotated[Path, typer.Argument(help="Folder of maps, of METHOD/ or of METHOD/DATASET/ folders.")],
    masks: Annotated[Path, typer.Argument(help="Folder of masks, or of DATASET/ folders of masks.")],
    json: Annotated[Path | None, typer.Option(help="Write every figure as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a line a method and data set.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a booktabs table.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures (PNG).")] = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Bins of the calibration errors.")] = 10,
    metrics: Annotated[
        Metrics, typer.Option(help="fast leaves out S, weighted F and the boundary bands.")
    ] = Metrics.full,
    classes: Annotated[int | None, typer.Option(min=1, max=255, help="K for maps of K softmax classes.")] = None,
    ignore_index: Annotated[int | None, typer.Option(min=0, max=255, help="Mask value of void pixels.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores unless given.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and list them.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the method; the folder's unless given.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set; the mask folder's unless given.")] = None,
    max_pixels: Annotated[int, typer.Option(min=1, help="Refuse larger images.")] = MAX_PIXELS,
) -> None:
    """Measure how far the confidences of prediction maps can be believed, and how good the maps are.

    Maps (8- or 16-bit PNG, TIFF, WebP, JPEG, or .npy/.npz floats) are matched to masks by file stem.
    Calibration is measured on the raw maps; F, E, S, weighted F and MAE follow PySODMetrics.

    Examples:

    * `densecal evaluate maps/ masks/ --json scores.json --figures figures/`

    * `densecal evaluate published-maps/ masks/ --latex table.tex` with METHOD/DATASET/ folders

    * `densecal evaluate softmax/ labels/ --classes 11 --ignore-index 11`
    """
    from densecal.evaluation import evaluate as run
    from densecal.evaluation import find_comparisons, paired_differences
    from densecal.files import write_json, write_text
    from densecal.report.tables import comparison_table, csv_text, figure_table, latex_text
    from densecal.scoring import Settings

    settings = Settings(bins, metrics is Metrics.full, classes, ignore_index, max_pixels)
    found = find_comparisons(predictions, masks)
    several = len(found) > 1
    if several and (name or dataset):
        raise InputError("--name, --dataset", f"one for {len(found)} evaluations", "the names of the folders instead")
    evaluations = []
    for method, data, maps, truth in found:
        title = f"{method} on {data}" if several else "Scoring"
        with _progress(title) as progress:
            evaluations.append(
                run(
                    maps,
                    truth,
                    name=name or method,
                    dataset=dataset or data,
                    settings=settings,
                    workers=workers or os.cpu_count() or 1,
                    skip_bad=skip_bad,
                    progress=progress,
                )
            )
    records = [evaluation.record for evaluation in evaluations]
    _console().print(comparison_table(records) if several else figure_table(records[0]))
    for record in records:
        _print_notes(record, several)
    if json:
        paired = paired_differences(evaluations)
        write_json(json, {"evaluations": records, "paired": paired} if several else records[0])
    if csv:
        write_text(csv, csv_text(records))
    if latex:
        write_text(latex, latex_text(records))
    if figures:
        from densecal.report.figures import write_figures

        write_figures(records, figures)


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
    with _warnings_as_lines(), _training_progress() as progress:
        result = run(config, out, resume, progress)
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
    with _progress("Predicting") as progress:
        count = run_prediction(
            predictor, images, out, format=format, uncertainty=uncertainty, batch=batch, progress=progress
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

    with _warnings_as_lines(), _training_progress() as progress:
        evaluations = run_demo(out, progress)
    _console().print(comparison_table([evaluation.record for evaluation in evaluations]))
    print(f"The page: {out / 'report.html'}")


data_app = typer.Typer(help="Generate and pack data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("scenes")
def data_scenes(
    out: Annotated[Path, typer.Argument(help="New folder for images/ and masks/.")],
    count: Annotated[int, typer.Option(min=1, help="Number of scenes.")] = 100,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
) -> None:
    """Generate textured scenes whose label probabilities are known.

    Example: `densecal data scenes scenes/ --count 200 --size 128`
    """
    from densecal.data.scenes import generate, write

    write(generate(count, size, seed), out)
    print(f"{out}: {count:,} scenes")


@data_app.command("pack")
def data_pack(
    images: Annotated[Path, typer.Argument(help="Folder of images, zip or list file.")],
    masks: Annotated[Path | None, typer.Argument(help="Folder of masks, where images is a folder.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the cache.")] = ...,  # type: ignore[assignment]
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 384,
    classes: Annotated[int, typer.Option(min=1, max=255, help="Number of classes; 1 for foreground masks.")] = 1,
    ignore_index: Annotated[int, typer.Option(min=0, max=255, help="Label of void pixels, for K classes.")] = 255,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores unless given.")] = None,
) -> None:
    """Decode and resize a data set once, into memory-mapped files that training reads.

    Example: `densecal data pack DUTS-TR/images DUTS-TR/masks --size 384 --out cache/duts-384`
    """
    from densecal.data import open_source, pack

    source = open_source(images, masks)
    with _progress("Packing") as progress:
        packed = pack(source, source.names, size, out, classes, workers, progress, ignore_index=ignore_index)
    for warning in packed.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{out}: {len(packed):,} samples, {'rebuilt' if packed.rebuilt else 'up to date'}")


def _console() -> Console:
    """Standard output; wide enough for every column where it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, for people only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title.replace("[", r"\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _training_progress() -> Iterator[Callable[[str, int, int, dict[str, float]], None]]:
    """One bar that is reused for packing, epochs and validations, with the latest figures beside it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Starting", total=None, figures="")

        def show(title: str, done: int, total: int, figures: dict[str, float]) -> None:
            bar.update(task, description=title, completed=done, total=total)
            if figures:
                bar.update(task, figures="  ".join(f"{name} {value:.4f}" for name, value in figures.items()))

        yield show


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings of densecal as one line each on stderr, without the source line Python adds."""
    import warnings

    def line(message: object, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        warnings.showwarning = line
        yield


def _print_notes(record: dict[str, object], several: bool) -> None:
    """Warnings and skipped files, on stderr."""
    where = f"{record['name']} on {record['dataset']}: " if several else ""
    warnings, skipped = record["warnings"], record["skipped"]
    assert isinstance(warnings, list)
    assert isinstance(skipped, list)
    for warning in warnings:
        print(f"warning: {where}{warning}", file=sys.stderr)
    for entry in skipped[:10]:
        print(f"skipped: {where}{entry['file']}: {entry['reason']}", file=sys.stderr)
    if len(skipped) > 10:
        print(f"skipped: {where}{len(skipped) - 10} more, listed in the JSON", file=sys.stderr)


if __name__ == "__main__":
    main()
