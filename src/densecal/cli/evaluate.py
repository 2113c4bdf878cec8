"""`densecal evaluate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import check_targets, console, progress_bar
from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.runtime.progress import retitle

if TYPE_CHECKING:
    from densecal.evaluation.folders import Evaluation
    from densecal.evaluation.record import Record
    from densecal.evaluation.worker import Settings
    from densecal.runtime.sharding import Processes


class Metrics(StrEnum):
    """The set of figures to compute."""

    fast = "fast"
    full = "full"


@app.command()
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(help="Folder of maps, of METHOD/ folders or of METHOD/DATASET/ folders.")
    ],
    masks: Annotated[Path, typer.Argument(help="Folder of masks, or of DATASET/ folders of masks.")],
    json: Annotated[Path | None, typer.Option(help="Write every figure as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file, one line per method and data set.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a booktabs table.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures (PNG).")] = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Bins of the calibration errors.")] = 10,
    metrics: Annotated[
        Metrics, typer.Option(help="fast leaves out S, weighted F and the boundary bands.")
    ] = Metrics.full,
    classes: Annotated[int | None, typer.Option(min=1, max=255, help="K for maps of K softmax classes.")] = None,
    ignore_index: Annotated[int | None, typer.Option(min=0, max=255, help="Mask value of void pixels.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: all cores.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and list them.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the method. Default: that of the folder.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: that of the mask folder.")] = None,
    max_pixels: Annotated[int, typer.Option(min=1, help="Refuse images with more pixels.")] = MAX_PIXELS,
    ood: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of maps of images without foreground (of METHOD/ folders); may be repeated."),
    ] = None,
) -> None:
    """Measure how well the confidence of prediction maps is calibrated, and how good the maps are.

    Maps (8- or 16-bit PNG, TIFF, WebP, JPEG, or .npy/.npz floats) are matched to masks by file stem.
    Calibration is measured on the raw maps. F, E, S, weighted F and MAE follow PySODMetrics.

    Examples:

    * `densecal evaluate maps/ masks/ --json scores.json --figures figures/`

    * `densecal evaluate published-maps/ masks/ --latex table.tex` with METHOD/DATASET/ folders

    * `densecal evaluate softmax/ labels/ --classes 11 --ignore-index 11`

    * `densecal evaluate maps/ masks/ --ood maps-of-textures/`

    * `torchrun --nproc-per-node 4 -m densecal.cli evaluate maps/ masks/ --json scores.json`, also on several machines
    """
    from densecal.evaluation.worker import Settings
    from densecal.runtime.sharding import join_processes

    settings = Settings(bins, metrics is Metrics.full, classes, ignore_index, max_pixels, bool(ood))
    with join_processes() as processes:
        if processes.first:
            check_targets(json, csv, latex, folder=figures)
        work = Work(settings, workers or processes.workers(), skip_bad, processes)
        evaluations, outside = _score(predictions, masks, name, dataset, ood or [], work)
    if processes.first:
        _report(evaluations, outside, json, csv, latex, figures)


@dataclass(frozen=True)
class Work:
    """How the maps are scored, and by which processes."""

    settings: Settings
    workers: int
    skip_bad: bool
    processes: Processes


def _score(
    predictions: Path, masks: Path, name: str | None, dataset: str | None, ood: list[Path], work: Work
) -> tuple[list[Evaluation], list[Evaluation]]:
    """Return the evaluations with masks and those of images without foreground; none on any process but the first."""
    from densecal.evaluation.folders import evaluate_shared
    from densecal.evaluation.ood import evaluate_ood, find_ood
    from densecal.io.pairs import find_comparisons

    comparisons = find_comparisons(predictions, masks)
    several = len(comparisons) > 1
    if several and (name or dataset):
        raise InputError(
            "--name, --dataset",
            f"one name for {len(comparisons)} evaluations",
            "neither, because the folders name them",
        )
    methods = list(dict.fromkeys(name or method for method, *_ in comparisons))
    evaluations, outside = [], []
    with progress_bar() as bar:
        for data, by_method in find_ood(ood, methods).items():
            for method, maps in by_method.items():
                report = retitle(bar, f"{method} on {data}")
                outside.append(evaluate_ood(maps, name=method, dataset=data, progress=report, **vars(work)))
        for method, data, maps, truth in comparisons:
            report = retitle(bar, f"{method} on {data}") if several else bar
            evaluations.append(
                evaluate_shared(
                    maps, truth, name=name or method, dataset=dataset or data, progress=report, **vars(work)
                )
            )
    return [e for e in evaluations if e is not None], [e for e in outside if e is not None]


def _report(
    evaluations: list[Evaluation],
    outside: list[Evaluation],
    json: Path | None,
    csv: Path | None,
    latex: Path | None,
    figures: Path | None,
) -> None:
    """Print tables and notes, and write the files that were asked for."""
    from densecal.evaluation.folders import paired_differences
    from densecal.evaluation.ood import compare_ood
    from densecal.evaluation.record import to_file
    from densecal.io.atomic import write_json, write_text
    from densecal.report.tables import comparison_table, csv_text, figure_table, latex_text

    records = [evaluation.record for evaluation in evaluations]
    others = [evaluation.record for evaluation in outside]
    out = console(json, csv, latex)
    out.print(comparison_table(records) if len(records) > 1 else figure_table(records[0]))
    everything = records + others
    if others:
        from densecal.report.ood import ood_table

        records = [
            replace(record, ood=tuple(compare_ood(record, other) for other in others if other.name == record.name))
            for record in records
        ]
        out.print(ood_table(records))
    for record in everything:
        _print_notes(record, len(everything) > 1)
    if json:
        write_json(json, to_file(records, paired_differences(evaluations + outside)))
    if csv:
        write_text(csv, csv_text(everything))
    if latex:
        write_text(latex, latex_text(everything))
    if figures:
        from densecal.report.classes import write_class_figures
        from densecal.report.figures import write_figures

        write_figures(records, figures)
        write_class_figures(records, figures)
        if others:
            from densecal.report.ood import write_ood_figures

            write_ood_figures(records, figures)


def _print_notes(record: Record, several: bool) -> None:
    """Print warnings and skipped files on stderr."""
    where = f"{record.name} on {record.dataset}: " if several else ""
    for warning in record.warnings:
        print(f"warning: {where}{warning}", file=sys.stderr)
    for entry in record.skipped[:10]:
        print(f"skipped: {where}{entry.file}: {entry.reason}", file=sys.stderr)
    if len(record.skipped) > 10:
        print(f"skipped: {where}{len(record.skipped) - 10} more, listed in the JSON", file=sys.stderr)
