"""Running one cell: train, fit the calibrators, evaluate everywhere, and write the result last."""

from __future__ import annotations

import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import densecal
from densecal import __version__, posthoc
from densecal.benchmark.plan import PLAIN, VERSION, Cell, Reference, Task
from densecal.benchmark.sets import ImageSets
from densecal.ensembles import load_ensemble, with_mc_dropout
from densecal.errors import InputError
from densecal.files import write_json
from densecal.metrics.entropy import known
from densecal.model_evaluation import Calibrator, ImageSet, Logits, evaluate_model_by_bins, model_outputs, resized
from densecal.prediction import Predictor, load_predictor
from densecal.reading import read_yaml
from densecal.training.config import first_difference, parse_config
from densecal.training.loop import train

COUNTED_BATCH, TRAINED_BATCH = 64, 4
"""Images at a time for calibrators that count pixels, and for those that are trained by gradient steps."""

Record = dict[str, Any]
Report = Callable[[str, int, int], None]


def run_task(task: Task, sets: ImageSets, report: Report) -> None:
    """Do a task and write its result.

    Args:
        task: What to do.
        sets: Image sets that earlier tasks have read.
        report: Called with (what is done, steps done, steps in all).
    """
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = _cell_result(task, sets, report) if isinstance(task, Cell) else _reference_result(task, sets, report)
    head = {"version": VERSION, "digest": task.digest, "densecal": __version__, "label": task.label}
    own = Path(densecal.__file__).parent
    notes = [str(warning.message) for warning in caught if Path(warning.filename).is_relative_to(own)]
    tail = {"seconds": time.perf_counter() - start, "warnings": list(dict.fromkeys(notes))}
    write_json(task.result, {**head, **result, **tail})
    if isinstance(task, Cell):
        _prune(task)


def fit_calibrators(
    names: Iterable[str], logits: Logits, validation: ImageSet, device: torch.device
) -> dict[str, posthoc.Calibrator]:
    """Fit calibrators on validation images, at the size of their masks.

    Returns:
        Those that could be fitted; of the others there is a warning.
    """

    def batches(size: int = TRAINED_BATCH) -> Iterator[posthoc.Batch]:
        for _, images, z, y in model_outputs(logits, validation, device, size):
            masks = y if validation.classes > 1 else y[:, None]
            # copies, because a calibrator that is trained cannot differentiate through inference tensors
            yield posthoc.Batch(z.clone(), masks.clone(), resized(images, z.shape[2:]).clone())

    several = {"num_classes": validation.classes} if validation.classes > 1 else {}
    made = {name: posthoc.create(name, **several).to(device) for name in names}
    histogram = posthoc.LogitHistogram()
    if any(calibrator.from_histogram for calibrator in made.values()):
        for batch in batches(COUNTED_BATCH):
            histogram.update(batch.logits, batch.masks)
    fitted = {}
    for name, calibrator in made.items():
        try:
            calibrator.fit(histogram if calibrator.from_histogram else batches, validation.ignore_index)
        except InputError as error:
            # a model that no calibrator fits is still a result
            warnings.warn(f"{error}; evaluated without {name}", stacklevel=2)
            continue
        fitted[name] = calibrator.eval()
    return fitted


def evaluate_everywhere(
    logits: Logits,
    sets: Iterable[ImageSet],
    calibrators: Mapping[str, Calibrator | None],
    device: torch.device,
    bins: tuple[int, ...],
    report: Report,
) -> list[Record]:
    """Evaluate a model on every set, as it is and with every calibrator.

    Returns:
        Evaluation records, with two keys more: ``calibrator`` and, for the further bins, ``more_bins``.
    """
    records = []
    for data in sets:
        progress = _titled(report, f"evaluating on {data.name}")
        by_bins = evaluate_model_by_bins(logits, data, calibrators, bins, device=device, progress=progress)
        for name in calibrators:
            record = by_bins[0][name].record
            record["calibrator"] = name
            means = known(record["entropy"]["images"])
            record["entropy"]["mean"] = float(means.mean()) if len(means) else math.nan
            record["more_bins"] = {
                str(count): found[name].record["calibration"]
                for count, found in zip(bins[1:], by_bins[1:], strict=True)
            }
            records.append(record)
    return records


def _cell_result(cell: Cell, sets: ImageSets, report: Report) -> dict[str, Any]:
    _prepare_run(cell)
    start = time.perf_counter()
    train(cell.config, cell.run, resume=True, progress=lambda title, done, total, _: report(title, done, total))
    seconds = time.perf_counter() - start
    predictor = load_predictor(cell.run, _device(cell))
    return {
        "seed": cell.seed,
        "overrides": list(cell.overrides),
        "method": cell.config.model_dump(mode="json")["method"],
        "grid": cell.grid,
        "device": _device_name(predictor.device),
        "training_seconds": seconds,
        "evaluations": _evaluations(predictor, cell, cell.folder, sets, report),
    }


def _reference_result(reference: Reference, sets: ImageSets, report: Report) -> dict[str, Any]:
    first = reference.members[0]
    predictor = load_ensemble([cell.run for cell in reference.members], _device(first))
    if reference.kind == "MC dropout":
        predictor = with_mc_dropout(predictor)
    return {
        "kind": reference.kind,
        "seeds": [cell.seed for cell in reference.members],
        "evaluations": _evaluations(predictor, first, reference.folder, sets, report),
    }


def _evaluations(predictor: Predictor, cell: Cell, folder: Path, sets: ImageSets, report: Report) -> list[Record]:
    """Evaluate a model as a cell asks for; its calibrators are kept in a folder."""
    images = sets.of(cell.config, cell.datasets, report)
    fitted = fit_calibrators(cell.calibrators, predictor.model, images[0], predictor.device)
    for name, calibrator in fitted.items():
        posthoc.save(calibrator, folder / "calibrators" / f"{name}.json")
    calibrators: dict[str, Calibrator | None] = {PLAIN: predictor.calibrator, **fitted}
    return evaluate_everywhere(predictor.model, images, calibrators, predictor.device, cell.bins, report)


def _prepare_run(cell: Cell) -> None:
    """Make way for a run with other settings than the one there, or take over a run that is the same."""
    if (cell.run / "config.yaml").is_file() and not _same_run(cell, cell.run):
        shutil.rmtree(cell.run)
    if cell.like is not None and not cell.run.exists() and _same_run(cell, cell.like):
        new = cell.run.with_name("run.new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(cell.like, new)
        os.rename(new, cell.run)


def _same_run(cell: Cell, run: Path) -> bool:
    """Whether a run folder holds a run with a cell's settings."""
    held = run / "config.yaml"
    try:
        there = parse_config(read_yaml(held, "the configuration of a run"), str(held))
    except InputError:
        return False
    return first_difference(there, cell.config) is None


def _device(cell: Cell) -> str:
    return "cpu" if cell.config.engine.accelerator == "cpu" else "auto"


def _prune(cell: Cell) -> None:
    """Remove checkpoints that nobody needs any more."""
    unused = ("best", "previous", "last") if cell.keep == "none" else ("best", "previous")
    for name in unused:
        shutil.rmtree(cell.run / "checkpoints" / name, ignore_errors=True)


def _titled(report: Report, title: str) -> Callable[[int, int], None]:
    return lambda done, total: report(title, done, total)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
