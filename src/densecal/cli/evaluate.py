"""`densecal evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import (
    GROUPS_HELP,
    Force,
    check_targets,
    console,
    is_run,
    named_files,
    print_layouts,
    print_line,
    print_note,
    print_unfinished,
    progress_bar,
    read_groups,
)
from densecal.cli.cost_options import CostAlarm, CostMiss, prices_of
from densecal.cli.engine import Address, EngineName, EngineOption, open_engine
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.errors import InputError
from densecal.io import MAX_PIXELS, MAX_SLAB_PIXELS
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.runtime.progress import retitle

if TYPE_CHECKING:
    from densecal.evaluation.folders import Evaluation
    from densecal.evaluation.record import Record, SkippedFile
    from densecal.evaluation.worker import Settings
    from densecal.io.groups import Groups
    from densecal.runtime.engine import Engine
    from densecal.runtime.sharding import Processes


class Metrics(StrEnum):
    """The set of figures to compute."""

    fast = "fast"
    full = "full"


@app.command()
@with_map_options
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(help="Folder of maps, of METHOD/ folders or of METHOD/DATASET/ folders.")
    ],
    masks: Annotated[
        Path,
        typer.Argument(
            help="Masks of the maps: a folder, a data set, a list of lines IMAGE MASK, or DATASET/ folders."
        ),
    ],
    json: Annotated[Path | None, typer.Option(help="Write the record, with figures and curves, as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file, one line per method and data set.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write a booktabs table.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures (PNG).")] = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Bins of the calibration errors.")] = 10,
    metrics: Annotated[
        Metrics, typer.Option(help="fast leaves out S, weighted F and the boundary bands.")
    ] = Metrics.full,
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    class_names: Annotated[
        str | None, typer.Option(help="Names of the classes: road,sky,... or a file with one name per line.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: all cores.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and list them.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the method. Default: that of the folder.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: that of the mask folder.")] = None,
    groups: Annotated[str | None, typer.Option(metavar="FILE|REGEX", help=GROUPS_HELP)] = None,
    maps: MapOptions = AS_STORED,
    tolerance: Annotated[
        float, typer.Option(help="Volumes: distance in mm up to which surfaces agree (surface Dice).")
    ] = 1.0,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Refuse images with more pixels. Default: 67 million; with --metrics fast 1,074 million for GeoTIFF, "
            "volumes and arrays, which are then read in parts.",
        ),
    ] = None,
    ood: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of maps (or of METHOD/ folders) of images without foreground; may be repeated."),
    ] = None,
    cost_miss: CostMiss = None,
    cost_alarm: CostAlarm = None,
    partial: Annotated[
        Path | None,
        typer.Option(help="Write the sums of these images, in place of figures, to FILE.sketch for densecal merge."),
    ] = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    force: Force = False,
) -> None:
    """Measure how well the confidence of prediction maps is calibrated, and how good the maps are.

    Maps (8- or 16-bit PNG, TIFF, WebP, JPEG, or .npy/.npz floats) are matched to masks by file stem.
    Calibration is measured on the raw maps. F, E, S, weighted F and MAE follow PySODMetrics.

    Examples:

    * `densecal evaluate maps/ masks/ --json scores.json --figures figures/`

    * `densecal evaluate published-maps/ masks/ --latex table.tex` with METHOD/DATASET/ folders

    * `densecal evaluate softmax/ labels/ --classes 3 --ignore-index 255 --class-names road,sky,car`

    * `densecal evaluate logits/ labels/ --classes 3 --logits --key scores --channels-last` for .npz files

    * `densecal evaluate maps/ masks/ --ood maps-of-textures/`

    * `densecal evaluate maps/ masks/ --cost-miss 5 --cost-alarm 1` for the threshold that costs least

    * `densecal evaluate maps/ masks/ --groups 'patient[0-9]+'` with names such as patient07-slice12

    * `densecal evaluate maps-07/ masks-07/ --partial part-07.sketch`, and at the end `densecal merge part-*.sketch`

    * `torchrun --nproc-per-node 4 -m densecal.cli evaluate maps/ masks/ --json scores.json`, also on several machines

    * `densecal evaluate s3://bucket/maps s3://bucket/masks --json scores.json --engine ray --address auto`
    """
    from densecal.evaluation.worker import Settings
    from densecal.runtime.sharding import join_processes

    names = _class_names(class_names, classes)
    settings = Settings(
        bins, metrics is Metrics.full, classes, ignore_index, max_pixels or MAX_PIXELS, bool(ood), names, maps,
        tolerance, prices_of(cost_miss, cost_alarm), max_pixels or MAX_SLAB_PIXELS,
    )  # fmt: skip
    if not 0 < tolerance < math.inf:
        raise InputError("--tolerance", f"{tolerance:g}", "a distance above 0")
    if is_run(predictions):
        print_unfinished(predictions)
        expected = f"maps, as densecal predict {predictions} IMAGES --out MAPS writes them"
        raise InputError(predictions, "a run, which holds no maps", expected)
    if partial and any((json, csv, latex, figures, ood)):
        raise InputError("--partial", "other outputs or --ood with it", "--partial alone; densecal merge gives figures")
    with (
        join_processes() as processes,
        open_engine(engine, address, workers, preload=["densecal.evaluation.worker"]) as cluster,
    ):
        # on every process, because the others would wait for one that raises an error
        check_targets(json, csv, latex, partial, folder=figures)
        option_files = named_files(groups, class_names)
        _check_outputs(predictions, masks, settings, ood or [], option_files, json, csv, latex, figures, partial, force)
        work = Work(settings, workers or processes.workers(), skip_bad, processes, cluster)
        grouping = read_groups(groups)
        if partial:
            _write_partial(predictions, masks, name, dataset, grouping, work, partial)
            return
        evaluations, outside = _score(predictions, masks, name, dataset, ood or [], grouping, work)
    if processes.first:
        report_evaluations(evaluations, outside, json, csv, latex, figures)


def _class_names(option: str | None, classes: int | None) -> tuple[str, ...]:
    """Return the names of the classes, given as a comma-separated list or as a file with one name per line."""
    from densecal.io.documents import read_lines

    if option is None:
        return ()
    is_list = "," in option or not Path(option).exists()
    lines = option.split(",") if is_list else read_lines(Path(option), "one class name per line")
    names = tuple(line.strip() for line in lines)
    if len(names) != classes:
        expected = f"{classes}, as many as --classes" if classes else "--classes as well"
        raise InputError("--class-names", f"{len(names)} names", expected)
    return names


def _check_outputs(
    predictions: Path,
    masks: Path,
    settings: Settings,
    ood: list[Path],
    option_files: list[Path],
    json: Path | None,
    csv: Path | None,
    latex: Path | None,
    figures: Path | None,
    partial: Path | None,
    force: bool,
) -> None:
    """Refuse to overwrite maps, masks and files named in options, or files that no evaluation wrote."""
    if (json, csv, latex, figures, partial) == (None,) * 5:
        return
    from densecal.data.pairs import find_comparisons
    from densecal.evaluation.folders import plan_of
    from densecal.io.folders import files_in, folders_in
    from densecal.io.map_files import map_suffixes
    from densecal.io.outputs import check_output_folder, check_outputs
    from densecal.io.urls import is_folder

    comparisons = find_comparisons(predictions, masks, settings.maps)
    truths = list(dict.fromkeys(truth for *_, truth in comparisons))
    folders = [maps for _, _, maps, _ in comparisons]
    folders += [inner for folder in ood for inner in (folder, *(folder / method for method, *_ in comparisons))]

    def reads() -> Iterator[Path]:
        for folder in dict.fromkeys(folders):
            if is_folder(folder):
                inner = [] if files_in(folder, map_suffixes()) else folders_in(folder)
                yield from (path for maps in (folder, *inner) for path in files_in(maps, map_suffixes()))
        for *_, folder, truth in comparisons:
            yield truth
            yield from plan_of(folder, truth, settings, skip_bad=True)[0].files()
        yield from option_files

    if figures is not None:
        check_output_folder(figures, [*folders, *filter(is_folder, truths)], "--figures")
    files: list[tuple[Path | None, str]] = [(json, "json"), (csv, "csv"), (latex, "tex"), (partial, "sketch")]
    if figures is not None:
        from densecal.report.figures import figure_targets  # imports matplotlib

        files += figure_targets(figures)
    check_outputs("evaluate", files, reads(), force)


@dataclass(frozen=True)
class Work:
    """How the maps are scored, and by which processes."""

    settings: Settings
    workers: int
    skip_bad: bool
    processes: Processes
    engine: Engine | None


def _write_partial(
    predictions: Path,
    masks: Path,
    name: str | None,
    dataset: str | None,
    groups: Groups | None,
    work: Work,
    target: Path,
) -> None:
    """Score one folder of maps, and write its sums."""
    from densecal.data.pairs import find_comparisons
    from densecal.evaluation.folders import score_folder
    from densecal.evaluation.partial import write_partial

    comparisons = find_comparisons(predictions, masks, work.settings.maps)
    if len(comparisons) > 1:
        raise InputError("--partial", f"{len(comparisons)} evaluations", "one folder of maps")
    method, data, maps, truth = comparisons[0]
    with progress_bar() as bar:
        part = score_folder(
            maps, truth, name=name or method, dataset=dataset or data, groups=groups, progress=bar, **vars(work)
        )
    if part is not None:
        write_partial(target, part)
        _print_skipped(part.skipped)
        print_line(f"{part.total.images} images in {target}; densecal merge adds up the parts", target)


def _score(
    predictions: Path,
    masks: Path,
    name: str | None,
    dataset: str | None,
    ood: list[Path],
    groups: Groups | None,
    work: Work,
) -> tuple[list[Evaluation], list[Evaluation]]:
    """Return the evaluations with masks and those of images without foreground; none on any process but the first."""
    from densecal.data.pairs import find_comparisons
    from densecal.evaluation.folders import evaluate_shared
    from densecal.evaluation.ood import evaluate_ood, find_ood

    comparisons = find_comparisons(predictions, masks, work.settings.maps)
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
            for region, data_name in _regions(maps, truth, dataset or data, work):
                report = (
                    retitle(bar, f"{method} on {data_name}") if several or region.settings != work.settings else bar
                )
                evaluation = evaluate_shared(
                    maps, truth, name=name or method, dataset=data_name, groups=groups, progress=report, **vars(region)
                )
                evaluations.append(evaluation)
    return [e for e in evaluations if e is not None], [e for e in outside if e is not None]


def _regions(maps: Path, truth: Path, dataset: str, work: Work) -> list[tuple[Work, str]]:
    """Return the evaluations of a folder of maps: one, or one per region of multi-label maps, each with its name."""
    from densecal.evaluation.folders import plan_of

    plan, _ = plan_of(maps, truth, work.settings, work.skip_bad)
    if work.processes.first:
        print_layouts(maps, plan.notes)
    if not plan.regions:
        chosen = work.settings.maps.region
        return [(work, dataset if chosen is None else f"{dataset}: {chosen}")]
    parts = []
    for region in plan.regions:
        options = replace(work.settings.maps, region=region.name)
        parts.append((replace(work, settings=replace(work.settings, maps=options)), f"{dataset}: {region.name}"))
    return parts


def report_evaluations(
    evaluations: list[Evaluation],
    outside: list[Evaluation],
    json: Path | None,
    csv: Path | None,
    latex: Path | None,
    figures: Path | None,
) -> None:
    """Print tables and notes, and write the requested files."""
    from densecal.evaluation.folders import paired_differences
    from densecal.evaluation.ood import compare_ood
    from densecal.evaluation.record import to_file
    from densecal.io.atomic import write_json, write_text
    from densecal.report.measure_tables import calibrated_line, measure_tables
    from densecal.report.tables import (
        binning_table,
        comparison_table,
        csv_text,
        decomposition_table,
        figure_table,
        interval_table,
        latex_text,
    )

    records = [evaluation.record for evaluation in evaluations]
    others = [evaluation.record for evaluation in outside]
    out = console(json, csv, latex)
    if len(records) > 1:
        tables = (comparison_table(records), binning_table(records), decomposition_table(records))
        out.print(*tables, *filter(None, [interval_table(records)]))
    else:
        out.print(figure_table(records[0]), *measure_tables(records))
        if line := calibrated_line(records[0]):
            out.print(line)
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
        write_json(json, {"densecal": "evaluate"} | to_file(records, paired_differences(evaluations + outside)))
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
        print_note(f"warning: {where}{warning}")
    _print_skipped(record.skipped, where)


def _print_skipped(skipped: Sequence[SkippedFile], where: str = "") -> None:
    """Print the first skipped files on stderr."""
    for entry in skipped[:10]:
        print_note(f"skipped: {where}{entry.file}: {entry.reason}")
    if len(skipped) > 10:
        print_note(f"skipped: {where}{len(skipped) - 10} more, listed in the JSON")
