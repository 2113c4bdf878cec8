"""One cell of a benchmark: train, fit the calibrators, evaluate on every data set, and write the result last."""

from __future__ import annotations

import math
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import densecal
from densecal import __version__, posthoc
from densecal.benchmark.plan import PLAIN, VERSION, Cell, Reference, Task
from densecal.benchmark.sets import ImageSets
from densecal.calibrate.fit import fit_several
from densecal.calibrate.runs import ImageSetData, train_and_calibrate
from densecal.errors import InputError
from densecal.evaluation.model import Calibrator, ImageSet, Logits, evaluate_model_by_bins
from densecal.evaluation.record import Record
from densecal.io.atomic import write_json
from densecal.io.documents import read_json, read_yaml
from densecal.metrics.entropy import drop_missing
from densecal.prediction.ensembles import load_ensemble, with_mc_dropout
from densecal.prediction.predictor import Predictor, load_predictor
from densecal.runtime.progress import Progress
from densecal.training import checkpoint
from densecal.training.config import first_difference, parse_config


def run_task(task: Task, sets: ImageSets, progress: Progress) -> None:
    """Run a task and write its result.

    Args:
        task: A cell, or a reference made of finished cells.
        sets: Image sets, with those that earlier tasks have read.
        progress: Called with the progress.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(task, Cell):
            result = _cell_result(task, sets, progress)
        else:
            result = _reference_result(task, sets, progress)
    head = {"version": VERSION, "digest": task.digest, "densecal": __version__, "label": task.label}
    package = Path(densecal.__file__).parent
    notes = [str(warning.message) for warning in caught if Path(warning.filename).is_relative_to(package)]
    tail = {"seconds": time.perf_counter() - start, "warnings": list(dict.fromkeys(notes))}
    write_json(task.result, {**head, **result, **tail})
    if isinstance(task, Cell):
        _prune(task)


def evaluate_everywhere(
    logits: Logits,
    sets: Iterable[ImageSet],
    calibrators: Mapping[str, Calibrator | None],
    device: torch.device,
    bins: tuple[int, ...],
    progress: Progress,
) -> list[Record]:
    """Evaluate a model on every set, without a calibrator and with each of them.

    Returns:
        Records with ``calibrator`` and, for the other numbers of bins, ``more_bins``.
    """
    records = []
    for data in sets:
        by_bins = evaluate_model_by_bins(logits, data, calibrators, bins, device=device, progress=progress)
        for name in calibrators:
            record, *others = (evaluations[name].record for evaluations in by_bins)
            more_bins = {str(count): other.calibration for count, other in zip(bins[1:], others, strict=True)}
            assert record.entropy is not None
            means = drop_missing(record.entropy.images)
            entropy = replace(record.entropy, mean=float(means.mean()) if len(means) else math.nan)
            records.append(replace(record, entropy=entropy, calibrator=name, more_bins=more_bins))
    return records


def _cell_result(cell: Cell, sets: ImageSets, progress: Progress) -> dict[str, Any]:
    _prepare_run(cell)
    start = time.perf_counter()
    train_and_calibrate(cell.config, cell.run, True, progress, cell.start.run if cell.start else None)
    seconds = time.perf_counter() - start
    predictor = load_predictor(cell.run, _device(cell))
    return {
        "seed": cell.seed,
        "overrides": list(cell.overrides),
        "method": cell.config.model_dump(mode="json")["method"],
        "grid": cell.grid,
        "device": _device_name(predictor.device),
        "training_seconds": seconds,
        "evaluations": [r.to_json() for r in _evaluations(predictor, cell, cell.folder, sets, progress)],
    }


def _reference_result(reference: Reference, sets: ImageSets, progress: Progress) -> dict[str, Any]:
    first = reference.members[0]
    predictor = load_ensemble([cell.run for cell in reference.members], _device(first))
    if reference.kind == "MC dropout":
        predictor = with_mc_dropout(predictor)
    return {
        "kind": reference.kind,
        "seeds": [cell.seed for cell in reference.members],
        "evaluations": [r.to_json() for r in _evaluations(predictor, first, reference.folder, sets, progress)],
    }


def _evaluations(predictor: Predictor, cell: Cell, folder: Path, sets: ImageSets, progress: Progress) -> list[Record]:
    """Evaluate a model as a cell asks for, and save its calibrators in a folder."""
    images = sets.of(cell.config, cell.datasets, progress)
    validation = ImageSetData(predictor.model, images[0], predictor.device)
    fitted = fit_several(cell.calibrators, validation, predictor.device)
    for name, calibrator in fitted.items():
        posthoc.save(calibrator, folder / "calibrators" / f"{name}.json")
    calibrators: dict[str, Calibrator | None] = {PLAIN: predictor.calibrator, **fitted}
    return evaluate_everywhere(predictor.model, images, calibrators, predictor.device, cell.bins, progress)


def _prepare_run(cell: Cell) -> None:
    """Remove a run with other settings or with none, and copy the run of a trial that has the same training."""
    if cell.run.exists() and not _same_run(cell, cell.run):
        shutil.rmtree(cell.run)
    if cell.trial_run is not None and not cell.run.exists() and _same_run(cell, cell.trial_run):
        new = cell.run.with_name("run.new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(cell.trial_run, new)
        os.rename(new, cell.run)


def _same_run(cell: Cell, run: Path) -> bool:
    """Return whether a run folder holds a run with the settings of a cell."""
    path = run / "config.yaml"
    try:
        config = parse_config(read_yaml(path, "the configuration of a run"), str(path))
    except InputError:
        return False
    return first_difference(config, cell.config) is None and _first_stage(run) == _model_of(cell.start)


def _first_stage(run: Path) -> str | None:
    """Return the hash of the weights that a run started from, or ``None``."""
    try:
        origin = read_json(checkpoint.find(run) / checkpoint.META, "a checkpoint").get("first_stage")
    except InputError:
        return None
    return None if origin is None else str(origin["weights"])


def _model_of(cell: Cell | None) -> str | None:
    """Return the hash of the weights that a cell has trained."""
    if cell is None:
        return None
    meta = read_json(checkpoint.find(cell.run) / checkpoint.META, "a checkpoint")
    return str(meta["sha256"][checkpoint.MODEL])


def _device(cell: Cell) -> str:
    return "cpu" if cell.config.engine.accelerator == "cpu" else "auto"


def _prune(cell: Cell) -> None:
    """Remove checkpoints that are no longer needed."""
    unused = ("best", "previous", "last") if cell.keep == "none" else ("best", "previous")
    for name in unused:
        shutil.rmtree(cell.run / "checkpoints" / name, ignore_errors=True)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
