"""The figures that the page's templates show: cards, table rows and notes, computed from records and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from densecal.evaluation.record import PairedDifference, Record, known_interval
from densecal.report.tables import COLUMNS, Column, best_values, by_dataset, fixed, percent

if TYPE_CHECKING:
    from densecal.report.runs import Run

TITLES = {
    "ece_ew": "expected calibration error, equal-width bins",
    "oe_ew": "over-confidence: the part of the ECE where confidence exceeds accuracy",
    "oe_ew_weighted": "over-confidence weighted by confidence, the form of the paper's tables",
    "ece_em": "expected calibration error, equal-mass bins",
    "ece_sweep": "expected calibration error, monotone equal-mass bins",
    "ece_foreground": "expected calibration error of the foreground probability",
    "flip_rate": "share of decisions that the calibrator changed",
    "smece": "smooth calibration error, without bins",
    "brier": "Brier score",
    "accuracy": "share of correct pixels",
    "f_max": "best F over thresholds, maps stretched",
    "e_max": "best E over thresholds, maps stretched",
    "s_measure": "S-measure",
    "mae": "mean absolute error, maps stretched",
    "miou": "mean intersection over union of the classes, all pixels pooled",
    "iou": "intersection over union of the foreground, all pixels pooled",
    "dice": "Dice coefficient, all pixels pooled",
    "iou_image_mean": "intersection over union per image, mean over images",
    "dice_image_mean": "Dice coefficient per image, mean over images",
}
_SUMMARY = ("ece_ew", "oe_ew", "brier", "accuracy", "f_max", "miou", "dice_image_mean")
_PAIRED = ("ece_ew", "oe_ew", "brier", "accuracy")


@dataclass(frozen=True)
class Cell:
    """A figure of one method.

    Attributes:
        text: The figure as shown.
        interval: Its 95 % interval as shown, or empty.
        marked: Whether it is the best of its data set, or its interval leaves out 0.
        value: The figure to sort by, or empty.
        method: Name of the method, where the cell shows it.
    """

    text: str
    interval: str = ""
    marked: bool = False
    value: str = ""
    method: str = ""


@dataclass(frozen=True)
class CardFigure:
    """The best value of one figure, once for every method that has it."""

    heading: str
    percent: bool
    compared: bool
    best: list[Cell]


@dataclass(frozen=True)
class Card:
    """The summary of one data set."""

    dataset: str
    methods: int
    images: int
    figures: list[CardFigure]


def summary_cards(records: Sequence[Record]) -> list[Card]:
    """Return one card per data set."""
    columns = [column for key in _SUMMARY for column in COLUMNS if column.key == key]
    return [
        Card(
            dataset,
            len(group),
            max(record.images for record in group),
            [figure for column in columns if (figure := _card_figure(group, column)).best],
        )
        for dataset, group in by_dataset(records).items()
    ]


def difference_rows(paired: Sequence[PairedDifference]) -> list[tuple[PairedDifference, list[Cell]]]:
    """Return the differences between methods, marked where the interval leaves out 0."""
    return [(pair, [_difference_cell(pair, key) for key in _PAIRED]) for pair in paired]


def method_rows(records: Sequence[Record], columns: Sequence[Column]) -> list[tuple[Record, list[Cell]]]:
    """Return every method on every data set, with the best of each data set marked."""
    rows = []
    for group in by_dataset(records).values():
        best = best_values(group, columns)
        rows += [(record, [_cell(record, column, best[column.key]) for column in columns]) for record in group]
    return rows


def class_names(records: Sequence[Record]) -> list[str]:
    """Return the classes of all records, by number where data sets differ; none where maps hold foreground alone."""
    names: list[str] = []
    for record in filter(has_classes, records):
        own = [class_name(record, k) for k in range(len(record.reliability.classes))]
        agreed = [
            name if name == other else f"class {k}" for k, (name, other) in enumerate(zip(names, own, strict=False))
        ]
        names = [*agreed, *(own if len(own) > len(names) else names)[len(agreed) :]]
    return names


def has_classes(record: Record) -> bool:
    """Return whether the maps hold several classes."""
    return (record.settings.classes or 1) > 1


def class_name(record: Record, k: int) -> str:
    """Return what a class is called: its name if it has one, else its number."""
    names = record.settings.class_names
    return names[k] if k < len(names) else f"class {k}"


def training_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return name, epochs, best epoch, loss and validation figures of every run at its last epoch."""
    rows = []
    for run in runs:
        last = run.log[-1]
        best = min(run.log, key=lambda line: _brier(line["validation"]))
        figures = [percent(last["validation"].get(key)) for key in ("ece_ew", "oe_ew", "brier", "accuracy")]
        rows.append([run.name, str(int(last["epoch"])), str(int(best["epoch"])), fixed(last["loss"], 4), *figures])
    return rows


def ood_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return the figures of every method on every set out of distribution."""
    rows = []
    for record in records:
        for entry in record.ood:
            calibration = entry.record.calibration
            figures = [percent(calibration.get(key)) for key in ("ece_ew", "oe_ew", "accuracy", "mean_confidence")]
            separation = [fixed(entry.auroc, 3), fixed(entry.fpr95, 3)]
            images = f"{entry.record.images:,}"
            rows.append([record.name, entry.dataset, record.dataset, images, *figures, *separation])
    return rows


def record_notes(records: Sequence[Record]) -> list[str]:
    """Return the warnings of every record, and how many files it skipped."""
    notes = []
    for record in records:
        where = f"{record.name} on {record.dataset}"
        notes += [f"{where}: {warning}" for warning in record.warnings]
        if record.skipped:
            first = record.skipped[0]
            notes.append(f"{where}: {len(record.skipped)} files skipped, the first {first.file}: {first.reason}")
    return notes


def _card_figure(group: list[Record], column: Column) -> CardFigure:
    """Return the best value and the methods that have it: all that tie as shown, like the stars of the table."""
    values = [(record, column.value(record)) for record in group if not math.isnan(column.value(record))]
    shown = column.text(column.best([value for _, value in values])) if values else ""
    best = [
        Cell(shown, _interval(record, column), method=record.name)
        for record, value in values
        if column.text(value) == shown
    ]
    return CardFigure(column.heading, column.percent, len(values) > 1, best)


def _difference_cell(pair: PairedDifference, key: str) -> Cell:
    if key not in pair.difference:
        return Cell("-")
    text = f"{100 * pair.difference[key]:+.2f}"
    ends = known_interval(pair.ci, key)
    if ends is None:
        return Cell(text)
    low, high = ends
    return Cell(text, f"{100 * low:+.2f} to {100 * high:+.2f}", low > 0 or high < 0)


def _cell(record: Record, column: Column, best: float) -> Cell:
    value = column.value(record)
    text = column.text(value)
    missing = math.isnan(value)
    is_best = not missing and text == column.text(best)
    return Cell(text, _interval(record, column), is_best, "" if missing else repr(value))


def _interval(record: Record, column: Column) -> str:
    return " \N{EN DASH} ".join(column.text(end) for end in column.interval(record))


def _brier(validation: Mapping[str, float | None]) -> float:
    value = validation.get("brier")
    return math.inf if value is None else value
