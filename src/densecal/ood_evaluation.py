"""Evaluating out of distribution: maps of images that show nothing to be found, beside the maps of those that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from densecal.data.images import MAP_SUFFIXES
from densecal.errors import InputError
from densecal.evaluation import Evaluation, Progress, nowhere, score_all
from densecal.metrics.entropy import known
from densecal.metrics.ood import separation
from densecal.pairing import check_folder, find_maps
from densecal.remote import entries, is_folder
from densecal.scoring import Settings
from densecal.sharding import ALONE, Processes

Record = dict[str, Any]


def evaluate_ood(
    predictions: Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Evaluation:
    """Score a folder of maps of images without foreground: every pixel is background.

    Segmentation scores say nothing about an empty mask, so the record has none, and no curves. It has ``entropy``, as
    a share of its maximum: a histogram over pixels and the mean of every image.

    Args:
        predictions: Folder of foreground maps.
        name: What to call the method; the folder's name unless given.
        dataset: What to call the data; the folder's name unless given.
        settings: Bins and the largest image; maps of K classes have no background to be right about.
        workers: Processes to use.
        skip_bad: Leave out what cannot be read, and list it, instead of stopping.
        progress: Called with (done, total) maps.
        processes: As for ``evaluate``.
    """
    settings = settings or Settings()
    if not settings.binary:
        raise InputError("--ood", f"maps of {settings.classes} classes", "foreground maps of images that show nothing")
    plain = replace(settings, full=False, ignore_index=None, entropy=True)
    total, skipped = score_all(find_maps(predictions), plain, workers, skip_bad, progress, processes)
    if not processes.first:
        return nowhere()
    if not total.stems:
        raise InputError(predictions, "no map that could be scored", "at least one readable map")
    folder = predictions.resolve().name
    record = total.record(name or folder, dataset or folder, skipped)
    record["segmentation"] = {}
    del record["curves"]
    return Evaluation(record, total.stems, total.meter.sketch.image_rows())


def find_ood(folders: Sequence[Path], methods: Sequence[str]) -> dict[str, dict[str, Path]]:
    """The folders of maps, by data set and method.

    Args:
        folders: One a data set, named after it; holds the maps where there is one method, else METHOD/ folders of them.
        methods: The methods that are evaluated.
    """
    found: dict[str, dict[str, Path]] = {}
    for folder in folders:
        check_folder(folder, "a folder of prediction maps")
        dataset = folder.resolve().name
        if dataset in found:
            raise InputError(folder, f"a second --ood folder called {dataset}", "folders with names of their own")
        if len(methods) == 1 and any(path.suffix.lower() in MAP_SUFFIXES for path, _ in entries(folder)):
            found[dataset] = {methods[0]: folder}
            continue
        found[dataset] = {method: folder / method for method in methods}
        for method, maps in found[dataset].items():
            if not is_folder(maps):
                raise InputError(maps, "no such folder", f"the maps of {method}")
    return found


def ood_entry(record: Record, ood_record: Record) -> Record:
    """Compare the records of one method on data in and out of distribution.

    Args:
        record: In distribution; has ``entropy``, as records of models and of ``Settings(entropy=True)`` do.
        ood_record: Out of distribution; the same.

    Returns:
        ``dataset``; ``auroc`` and ``fpr95`` of the mean entropy of an image, images out of distribution being the
        positives; ``entropy`` and ``confidence``, each a histogram ``in`` and one ``out`` of 100 bins over [0, 1];
        ``record``.
    """
    scores = separation(known(record["entropy"]["images"]), known(ood_record["entropy"]["images"]))
    return {
        "dataset": ood_record["dataset"],
        **asdict(scores),
        "entropy": {"in": record["entropy"]["histogram"], "out": ood_record["entropy"]["histogram"]},
        "confidence": {
            "in": record["reliability"]["histogram"]["count"],
            "out": ood_record["reliability"]["histogram"]["count"],
        },
        "record": ood_record,
    }
