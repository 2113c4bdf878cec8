"""Evaluating out of distribution: maps of images without any object, compared with those of images with objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from densecal.data.pairs import check_folder, find_plan
from densecal.errors import InputError
from densecal.evaluation.folders import Evaluation, score_all, skipped_file
from densecal.evaluation.record import OutOfDistribution, Record, TwoHistograms
from densecal.evaluation.worker import Settings
from densecal.io.map_files import map_suffixes
from densecal.io.suffixes import suffix_of
from densecal.io.urls import entries, is_folder
from densecal.metrics.entropy import drop_missing
from densecal.metrics.ood import separation
from densecal.runtime.engine import Engine
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import ALONE, Processes


def evaluate_ood(
    predictions: Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress = silent,
    processes: Processes = ALONE,
    engine: Engine | None = None,
) -> Evaluation | None:
    """Score a folder of maps of images without foreground: every pixel is background.

    Segmentation scores are meaningless for empty masks, so the record has none, and no curves. It has ``entropy``, as a
    share of its maximum: a histogram over pixels and the mean per image.

    Args:
        predictions: Folder of foreground maps.
        name: Name of the method; the folder's name unless given.
        dataset: Name of the data set; the folder's name unless given.
        settings: Bins and the largest image. Maps of K classes are refused, because they have no background class.
        workers: Number of processes.
        skip_bad: Leave out files that cannot be read, and list them, instead of stopping.
        progress: Called with the number of maps scored.
        processes: The processes that share the work, as for ``evaluate_shared``.
        engine: Engine that does the work, instead of worker processes.
    """
    settings = settings or Settings()
    if not settings.binary:
        raise InputError("--ood", f"maps of {settings.classes} classes", "foreground maps of images without any object")
    plain = replace(settings, full=False, ignore_index=None, entropy=True)
    layout = find_plan(predictions, None, settings.maps)
    if layout.classes not in (None, 1) or layout.regions:
        raise InputError(predictions, "maps of several classes", "foreground maps of images without any object")
    plain = replace(plain, maps=layout.options)
    total, skipped = score_all(layout.pairs, plain, workers, skip_bad, progress, processes, engine)
    if not processes.first:
        return None
    if not total.images:
        raise InputError(predictions, "no map that could be scored", "at least one readable map")
    folder = predictions.resolve().name
    record = total.record(name or folder, dataset or folder, map(skipped_file, skipped))
    record = replace(record, segmentation={}, segmentation_ci=None, curves=None)
    return Evaluation(record, total.stems, total.meter.sketch.image_rows())


def find_ood(folders: Sequence[Path], methods: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Find the folders of maps, by data set and method.

    Args:
        folders: One folder per data set, named after it. It holds maps if there is one method, else METHOD/ folders.
        methods: Names of the methods that are evaluated.
    """
    by_dataset: dict[str, dict[str, Path]] = {}
    for folder in folders:
        check_folder(folder, "a folder of prediction maps")
        dataset = folder.resolve().name
        if dataset in by_dataset:
            raise InputError(folder, f"a second --ood folder called {dataset}", "folders with names of their own")
        if len(methods) == 1 and any(suffix_of(path) in map_suffixes() for path, _ in entries(folder)):
            by_dataset[dataset] = {methods[0]: folder}
            continue
        by_dataset[dataset] = {method: folder / method for method in methods}
        for method, maps in by_dataset[dataset].items():
            if not is_folder(maps):
                raise InputError(maps, "no such folder", f"the maps of {method}")
    return by_dataset


def compare_ood(record: Record, outside: Record) -> OutOfDistribution:
    """Compare the records of one method in and out of distribution.

    Args:
        record: Record in distribution, with ``entropy``, as in records of models and of ``Settings(entropy=True)``.
        outside: Record out of distribution; likewise.

    Returns:
        How well the mean entropy of an image separates the sets, with images out of distribution as positives, and
        histograms of both.
    """
    assert record.entropy is not None
    assert outside.entropy is not None
    scores = separation(drop_missing(record.entropy.images), drop_missing(outside.entropy.images))
    return OutOfDistribution(
        outside.dataset,
        **asdict(scores),
        entropy=TwoHistograms(record.entropy.histogram, outside.entropy.histogram),
        confidence=TwoHistograms(record.reliability.histogram.count, outside.reliability.histogram.count),
        record=outside,
    )
