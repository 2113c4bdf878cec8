"""Scores of cases as lines of the terminal's table, columns of the CSV file and rows of the page, and their units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from densecal.evaluation.case_figures import ClassCases, Interval
from densecal.evaluation.record import Record, known_interval

_NOTES = {
    "dice": "mean over cases that show it",
    "hd95": "95th percentile of the distance of surfaces",
    "nsd": "surface Dice",
    "volume_bias": "predicted minus true volume",
    "volume_error": "size of that difference",
    "volume_error_relative": "as a share of the true volume",
}


AVERAGES = {
    "mean": "all pixels",
    "foreground": "pixels called foreground",
    "interior": "pixels away from boundaries",
    "patch": "the least certain patch",
}
"""Over what a case's confidence is averaged."""
TRUST_HEADS = (
    "Cases",
    "Area under the curve",
    "95 % interval",
    "at random",
    "at best",
    "Risk of the most certain 50 %",
)


@dataclass(frozen=True)
class CaseLine:
    """A score of cases.

    Attributes:
        name: Its name; the column of the CSV file.
        value: The score.
        interval: 95 % interval, where there is one.
        note: What it is.
    """

    name: str
    value: float
    interval: Interval | None
    note: str


def distance_unit(record: Record) -> str:
    """Return what distances from boundaries are measured in: ``px`` of pictures, ``mm`` or ``voxels`` of volumes."""
    unit = "pixels" if record.cases is None else record.cases.unit
    return {"ml": "mm", "voxels": "voxels"}.get(unit, "px")


def case_lines(record: Record) -> list[CaseLine]:
    """Return the scores of a record's cases: by class, then how well confidence finds the cases that fail."""
    cases = record.cases
    if cases is None:
        return []
    lines: list[CaseLine] = []
    # for pictures of one class, Dice by case is dice_image_mean
    for scores in cases.classes if cases.unit != "pixels" or len(cases.classes) > 1 else ():
        lines += _class_lines(record, scores)
    if cases.trust is not None:
        note = f"risk 1 - Dice over coverage; {cases.trust.risk:.4f} if at random, {cases.trust.best:.4f} at best"
        for name, curve in cases.trust.by.items():
            lines.append(CaseLine(f"aurc_case_{name}", curve.aurc, curve.ci, note))
            note = ""
    return lines


def trust_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return average, method, data set and risks of every record that has a risk-coverage curve of cases."""
    rows = []
    for record in records:
        trust = None if record.cases is None else record.cases.trust
        for name, curve in trust.by.items() if trust is not None else ():
            assert trust is not None
            average = AVERAGES.get(name, name)
            ends = " \N{EN DASH} ".join(f"{end:.4f}" for end in curve.ci or ())
            half = curve.curve[len(curve.curve) // 2 - 1]
            others = (f"{value:.4f}" for value in (trust.risk, trust.best, half))
            cells = [f"{trust.cases:,}", f"{curve.aurc:.4f}", ends, *others]
            rows.append([average, record.name, record.dataset, *cells])
    return rows


def _class_lines(record: Record, scores: ClassCases) -> Iterator[CaseLine]:
    cases, settings = record.cases, record.settings
    assert cases is not None
    several = len(cases.classes) > 1
    called = settings.class_names[scores.label] if settings.class_names and several else ""
    for name, value in scores.means.items():
        note = _NOTES[name]
        distance = distance_unit(record)
        if name == "hd95":
            note += f", {distance}"
        elif name == "nsd":
            note += f" at {cases.tolerance:g} {distance}"
        elif name.startswith("volume") and not name.endswith("relative"):
            note += f", {cases.unit}"
        elif name == "dice":
            note = f"{called}, " * bool(called) + f"{note}: {scores.present}, {scores.absent} without"
        label = f"_{scores.label}" if several else ""
        yield CaseLine(f"{name}_case{label}", value, known_interval(scores.ci, name), note)
