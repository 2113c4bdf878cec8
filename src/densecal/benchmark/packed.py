"""A benchmark's folder packed into one text file: what its tables and figures over settings need of every result.

A line is the JSON of one task: its ``result.json`` and the log of its run. The bulk of the result files is left out:
curves, histograms, joint densities, the intervals that no table shows and the entropy of every image. Joint densities
and reports therefore need the folder itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from densecal.benchmark.plan import RESULT
from densecal.benchmark.summary import WITH_INTERVALS
from densecal.errors import InputError
from densecal.evaluation.record import VALIDATION
from densecal.io.atomic import write_text
from densecal.io.documents import parse_json, read_json, read_text
from densecal.metrics.entropy import drop_missing
from densecal.metrics.ood import separation

_EXPECTED = "a benchmark that densecal.benchmark.packed packed"
_LOG = Path("run", "log.jsonl")
_RECORD = (
    "schema", "name", "dataset", "images", "pixels", "calibration", "segmentation", "segmentation_ci",
    "entropy", "calibrator", "more_bins",
)  # fmt: skip
_UNPACKED: dict[str, Any] = {
    "skipped": [],
    "warnings": [],
    "reliability": {
        "bins": 0, "count": [], "confidence": [], "accuracy": [],
        "histogram": {"count": [], "correct": []}, "classes": [],
    },
    "joint": {"cells": 0, "counts": [], "mean_confidence": None, "mean_accuracy": None, "spread": None},
}  # fmt: skip
"""What a record must have, and a packed one leaves out."""
_LOGGED = {
    "validation": ("ece_ew", "accuracy", "mean_confidence"),
    "method": ("alpha_mean", "expected_confidence", "multiplier", "bound", "gap"),
}


def pack(folder: Path, file: Path, change: Callable[[dict[str, Any]], dict[str, Any]] = lambda result: result) -> None:
    """Pack the finished tasks of a benchmark into a file; other tasks that the file holds stay in it.

    Args:
        folder: The benchmark's folder.
        file: Made or added to; a task that it holds already is replaced.
        change: Applied to the content of every result file.

    Raises:
        InputError: A file cannot be read.
    """
    tasks = _read(file) if file.exists() else {}
    for path in folder.rglob(RESULT):
        task: dict[str, Any] = {"result": change(_packed_result(read_json(path, "a result")))}
        log = path.parent / _LOG
        if log.exists():
            task["log"] = _packed_log([json.loads(line) for line in read_text(log, "a log").splitlines()])
        tasks[path.parent.relative_to(folder).as_posix()] = task
    write_text(file, _lines([{"task": name, **task} for name, task in sorted(tasks.items())]))


def unpack(file: Path, folder: Path) -> None:
    """Unpack a benchmark into a folder, from which tables can be made and in which missing tasks can be run.

    Args:
        file: What `pack` wrote.
        folder: Created if it is missing. Tasks that have a result there are left alone.

    Raises:
        InputError: The file cannot be read.
    """
    for name, task in _read(file).items():
        if (folder / name / RESULT).exists():
            continue
        if "log" in task:
            write_text(folder / name / _LOG, _lines(_unpacked_log(task["log"])))
        records = [_unpacked_record(record) for record in task["result"]["evaluations"]]
        write_text(folder / name / RESULT, _lines([{**task["result"], "evaluations": records}]))


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tasks of a packed file by their folders."""
    tasks = {}
    for number, line in enumerate(read_text(file, _EXPECTED).splitlines(), 1):
        where = f"{file}, line {number}"
        task = parse_json(line, where, _EXPECTED)
        if not isinstance(task, dict) or not {"task", "result"} <= task.keys():
            raise InputError(where, "a line without task and result", _EXPECTED)
        if not isinstance(task["task"], str) or Path(task["task"]).is_absolute() or ".." in Path(task["task"]).parts:
            raise InputError(where, f"task {task['task']!r}", "a folder inside the benchmark folder")
        tasks[task.pop("task")] = task
    return tasks


def _lines(values: list[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n" for value in values)


def _packed_result(result: dict[str, Any]) -> dict[str, Any]:
    records = result["evaluations"]
    separations = result.get("separations") or _separations(records)
    packed = {**result, "evaluations": [_packed_record(record) for record in records]}
    return packed | ({"separations": separations} if separations else {})


def _separations(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """AUROC and FPR95 of every data set against the validation images, by calibrator and data set."""
    entropies = {(record.get("calibrator"), record["dataset"]): _entropies(record) for record in records}
    separations: dict[str, dict[str, dict[str, float]]] = {}
    for (calibrator, dataset), outside in entropies.items():
        inside = entropies.get((calibrator, VALIDATION), np.array([]))
        if dataset != VALIDATION and len(inside) and len(outside):
            figures = separation(inside, outside)
            by_dataset = separations.setdefault(str(calibrator), {})
            by_dataset[dataset] = {"auroc": figures.auroc, "fpr95": figures.fpr95}
    return separations


def _entropies(record: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return drop_missing((record.get("entropy") or {}).get("images", []))


def _packed_record(record: dict[str, Any]) -> dict[str, Any]:
    packed = {key: record[key] for key in _RECORD if key in record}
    intervals = record["calibration"].get("ci", {})
    shown = {key: intervals[key] for section, key in WITH_INTERVALS if section == "calibration" and key in intervals}
    packed["calibration"] = _without_intervals(record["calibration"]) | {"ci": shown}
    if record.get("more_bins"):
        packed["more_bins"] = {bins: _without_intervals(figures) for bins, figures in record["more_bins"].items()}
    if record.get("entropy"):
        packed["entropy"] = {"mean": record["entropy"].get("mean")}
    return packed


def _without_intervals(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key != "ci"}


def _unpacked_record(packed: dict[str, Any]) -> dict[str, Any]:
    record = {**_UNPACKED, **packed, "calibration": {"ci": {}, **packed["calibration"]}}
    if packed.get("more_bins"):
        record["more_bins"] = {bins: {**figures, "ci": {}} for bins, figures in packed["more_bins"].items()}
    if packed.get("entropy"):
        record["entropy"] = {"histogram": [], "images": [], **packed["entropy"]}
    return record


def _packed_log(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Turn the lines of a log into one list per figure."""
    packed: dict[str, Any] = {key: [line.get(key) for line in lines] for key in ("epoch", "images_per_second")}
    for section, names in _LOGGED.items():
        present = [name for name in names if any(name in line.get(section, {}) for line in lines)]
        packed[section] = {name: [line.get(section, {}).get(name) for line in lines] for name in present}
    return packed


def _unpacked_log(packed: dict[str, Any]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for i in range(len(packed["epoch"])):
        line = {key: packed[key][i] for key in ("epoch", "images_per_second")}
        for section in _LOGGED:
            line[section] = {name: values[i] for name, values in packed[section].items() if values[i] is not None}
        lines.append(line)
    return lines
