"""All result files of a benchmark, as one row per method, calibrator and data set."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal import __version__
from densecal.benchmark.matrix import Matrix
from densecal.benchmark.plan import ERROR, PLAIN, Cell, Plan, Reference, Result, Task, has_failed, read_result
from densecal.benchmark.tuning import Choice, choices
from densecal.errors import InputError
from densecal.evaluation.measures import Interval
from densecal.evaluation.record import VALIDATION, Record, known_interval
from densecal.io.documents import parse_json, read_text
from densecal.metrics.entropy import drop_missing
from densecal.metrics.ood import Separation, separation

WITH_INTERVALS = (
    ("calibration", "ece_ew"),
    ("segmentation", "dice_image_mean"),
    ("segmentation", "iou_image_mean"),
)
"""The figures, by section and key, whose 95 % intervals over images the tables show."""


@dataclass(frozen=True)
class Row:
    """The evaluations of one method, with one calibrator or none, on one data set: one record per seed.

    Attributes:
        label: The method's label.
        calibrator: ``none`` for the model as it is.
        dataset: Data set.
        ood: Whether no image shows an object.
        reference: ``ensemble`` or ``MC dropout``, which are not methods of their own; else empty.
        method: The method's settings.
        grid: The values that tell the row from others of its entry; empty without a grid.
        records: Records by seed; by ``all`` for an ensemble.
        separations: By seed, for images without foreground: how well the entropy of an image separates them from the
            validation images.
    """

    label: str
    calibrator: str
    dataset: str
    ood: bool
    reference: str
    method: dict[str, Any]
    grid: dict[str, Any]
    records: dict[str, Record]
    separations: dict[str, Separation]

    @property
    def name(self) -> str:
        """The name of the row in tables."""
        name = f"{self.label} {self.reference}" if self.reference else self.label
        return name if self.calibrator == PLAIN else f"{name} + {self.calibrator}"

    def values(self, section: str, key: str, bins: int | None = None) -> dict[str, float]:
        """Return a figure by seed, without the seeds that do not have it.

        Args:
            section: ``calibration``, ``segmentation``, ``entropy`` or ``ood``.
            key: The figure.
            bins: Number of bins, if not that of the tables.
        """
        values = {seed: self._value(seed, section, key, bins) for seed in self.records}
        return {seed: value for seed, value in values.items() if not math.isnan(value)}

    def intervals(self, section: str, key: str) -> dict[str, Interval]:
        """Return the 95 % interval of a figure by seed; empty if a seed has none."""
        intervals = {seed: known_interval(_intervals(record, section), key) for seed, record in self.records.items()}
        known = {seed: interval for seed, interval in intervals.items() if interval is not None}
        return known if len(known) == len(intervals) else {}

    def _value(self, seed: str, section: str, key: str, bins: int | None) -> float:
        record = self.records[seed]
        if bins is not None:
            others = record.more_bins or {}
            return others[str(bins)].get(key, math.nan) if str(bins) in others else math.nan
        if section == "ood":
            return float(getattr(self.separations.get(seed), key, math.nan))
        if section == "entropy":
            return math.nan if record.entropy is None or record.entropy.mean is None else record.entropy.mean
        return record.figure(section, key)


@dataclass(frozen=True)
class Summary:
    """A benchmark as read from its files.

    Attributes:
        matrix: Its definition.
        command: The command that made it.
        rows: In the order of the tables.
        choices: Tuned strengths by label.
        missing: Tasks without a result, and why.
        stale: Tasks whose result was made with other settings than the matrix has.
        logs: Training logs by label and seed, lists of the lines of ``log.jsonl``.
        commands: The command that trained each cell, by its key.
        notes: Warnings from the training runs, with the cells that they come from.
    """

    matrix: Matrix
    command: str
    rows: list[Row]
    choices: dict[str, Choice]
    missing: dict[str, str]
    stale: list[str]
    logs: dict[str, dict[int, list[dict[str, Any]]]]
    commands: dict[str, str]
    notes: dict[str, list[str]]

    @property
    def bins(self) -> int:
        """Bins of the tables."""
        return self.matrix.bins[0]

    @property
    def datasets(self) -> list[str]:
        """Data sets in order, the validation images first."""
        return [VALIDATION, *(dataset.name for dataset in self.matrix.datasets)]


def summarise(matrix: Matrix, out: Path, command: str) -> Summary:
    """Read the result files of a benchmark; neither data nor checkpoints are needed.

    Args:
        matrix: The benchmark.
        out: Its folder.
        command: The command that tables name as theirs.
    """
    plan = Plan(matrix, out)
    chosen = choices(plan)
    cells = plan.cells({label: choice.chosen for label, choice in chosen.items()})
    summary = Summary(matrix, command, [], chosen, {}, [], {}, {}, {})
    by_row: dict[tuple[str, ...], Row] = {}
    tasks: list[Task] = [*cells, *plan.references(cells)]
    for task in tasks:
        result = read_result(task)
        if result is None:
            summary.missing[task.key] = _why_missing(task)
            continue
        if result.digest != task.digest:
            summary.stale.append(task.key)
        _add(summary, by_row, task, result)
    for label in matrix.tune.keys() - chosen.keys():
        summary.missing[label] = "its trials, or those of the reference, are not all finished"
    for trial in plan.trials:
        if read_result(trial) is None:
            summary.missing[trial.key] = _why_missing(trial)
        summary.commands[trial.key] = _command(trial)
    summary.rows.extend(sorted(by_row.values(), key=lambda row: _order(summary, row)))
    return summary


def results(summary: Summary) -> dict[str, Any]:
    """Return every figure of every row for JSON: mean, spread over seeds and value per seed."""
    return {
        "command": summary.command,
        "version": __version__,
        "matrix": summary.matrix.model_dump(mode="json"),
        "tuning": {label: asdict(choice) for label, choice in summary.choices.items()},
        "missing": summary.missing,
        "stale": summary.stale,
        "warnings": summary.notes,
        "rows": [_row_results(summary, row) for row in summary.rows],
    }


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation; NaN where there are too few values."""
    values = list(values)
    mean = statistics.fmean(values) if values else math.nan
    return mean, statistics.stdev(values) if len(values) > 1 else math.nan


def mean_interval(intervals: Iterable[Interval]) -> Interval | None:
    """Return the means of the ends, which is how far the figure of one run is known; None without intervals."""
    lows, highs = tuple(zip(*intervals, strict=True)) or ((), ())
    return (statistics.fmean(lows), statistics.fmean(highs)) if lows else None


def _add(summary: Summary, by_row: dict[tuple[str, ...], Row], task: Task, result: Result) -> None:
    """Add the evaluations of a result to their rows."""
    outside = {dataset.name for dataset in summary.matrix.datasets if dataset.shows_no_object}
    reference = task.kind if isinstance(task, Reference) else ""
    records = {(record.calibrator or PLAIN, record.dataset): record for record in result.records}
    for (calibrator, dataset), record in records.items():
        if dataset not in summary.datasets or calibrator not in (PLAIN, *summary.matrix.calibrators):
            continue
        ood = dataset in outside
        row = by_row.setdefault(
            (task.label, reference, calibrator, dataset),
            Row(task.label, calibrator, dataset, ood, reference, result.method, result.grid, {}, {}),
        )
        row.records[str(task.seed)] = record
        if ood:
            inside = records[calibrator, VALIDATION]
            packed = result.separations.get((calibrator, dataset))
            row.separations[str(task.seed)] = packed or separation(_entropies(inside), _entropies(record))
    for note in result.warnings:
        summary.notes.setdefault(note, []).append(task.key)
    if isinstance(task, Cell):
        summary.commands[task.key] = _command(task)
        summary.logs.setdefault(task.label, {})[task.seed] = _log(task)


def _entropies(record: Record) -> NDArray[np.float64]:
    assert record.entropy is not None
    return drop_missing(record.entropy.images)


def _order(summary: Summary, row: Row) -> tuple[int, int, int]:
    """Return the sort key of a row: data set, then references last, then calibrator; methods keep their order."""
    calibrators = [PLAIN, *summary.matrix.calibrators]
    return summary.datasets.index(row.dataset), int(bool(row.reference)), calibrators.index(row.calibrator)


def _row_results(summary: Summary, row: Row) -> dict[str, Any]:
    first = next(iter(row.records.values()))
    figures: dict[str, Any] = {key: _figure(row, "calibration", key) for key in first.calibration}
    figures |= {key: _figure(row, "segmentation", key) for key in first.segmentation}
    figures["entropy"] = _figure(row, "entropy", "mean")
    figures |= {key: _figure(row, "ood", key) for key in ("auroc", "fpr95") if row.separations}
    for bins in summary.matrix.bins[1:]:
        for key in ("ece_ew", "oe_ew", "oe_ew_weighted", "ue_ew", "ece_em"):
            figures[f"{key}@{bins}"] = _figure(row, "calibration", key, bins)
    shown = ("label", "calibrator", "dataset", "ood", "reference", "method", "grid")
    return {"name": row.name, **{key: getattr(row, key) for key in shown}, "figures": figures}


def _figure(row: Row, section: str, key: str, bins: int | None = None) -> dict[str, Any]:
    values = row.values(section, key, bins)
    mean, std = spread(values.values())
    figure: dict[str, Any] = {"mean": mean, "std": std, "seeds": values}
    if section in ("calibration", "segmentation") and bins is None and (intervals := row.intervals(section, key)):
        figure["interval"] = intervals
    return figure


def _intervals(record: Record, section: str) -> Mapping[str, Interval]:
    return record.calibration.ci if section == "calibration" else record.segmentation_ci or {}


def _why_missing(task: Task) -> str:
    try:
        lines = read_text(task.folder / ERROR, "the reason of a failure").splitlines()
    except InputError:
        start = task.start if isinstance(task, Cell) else None
        return "not run yet" if start is None or not has_failed(start) else f"its first stage, {start.key}, failed"
    return lines[-1] if lines else "failed"


def _command(cell: Cell) -> str:
    first = ["--from", str(cell.start.run)] if cell.start else []
    return shlex.join(["densecal", "train", cell.recipe, *cell.overrides, *first, "--out", str(cell.run)])


def _log(cell: Cell) -> list[dict[str, Any]]:
    path, expected = cell.run / "log.jsonl", "the log of a run"
    try:  # not read_log: packed benchmarks keep a few figures of every epoch alone
        return [parse_json(line, path, expected) for line in read_text(path, expected).splitlines()]
    except InputError:
        return []
