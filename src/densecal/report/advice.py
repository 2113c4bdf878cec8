"""What an evaluation means and what to do about it, in words: the sentences at the top of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from densecal.evaluation.record import PairedDifference, Record, Repair, known_interval
from densecal.metrics.regions import SIZES
from densecal.report.cases import distance_unit
from densecal.report.tables import by_dataset

CALIBRATED = 0.005
"""An ECE below half a point is called well calibrated."""
_HELPS = 0.8
"""A temperature helps if it leaves less than this share of the ECE."""
_MORE = 1.25
"""Errors are called largest in a place where the ECE is this many times that of all pixels."""
_MOST = 6


@dataclass(frozen=True)
class Advice:
    """What one evaluation means.

    Attributes:
        method: Name of the method.
        dataset: Name of the data set.
        sentences: Plain text.
        command: What repairs it, or empty.
    """

    method: str
    dataset: str
    sentences: list[str]
    command: str


def all_advice(records: Sequence[Record]) -> list[Advice]:
    """Return what to say about every record; of many, about the best and the worst of each data set."""
    chosen = list(records)
    if len(chosen) > _MOST:
        chosen = []
        for group in by_dataset(records).values():
            ordered = sorted(group, key=lambda record: record.calibration.get("ece_ew", math.inf))
            chosen += ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]
    return [advice for record in chosen if (advice := _advice(record)).sentences]


def comparisons(paired: Sequence[PairedDifference]) -> list[str]:
    """Return a sentence per pair of methods: which is better calibrated, and whether the images suffice to say so."""
    return [text for pair in paired[:_MOST] if (text := _comparison(pair))]


def _advice(record: Record) -> Advice:
    sentences = [text for text in (_verdict(record), _repair(record), _worst_places(record)) if text]
    helps = record.repair is not None and _helps(record.repair)
    return Advice(
        record.name, record.dataset, sentences, "densecal calibrate fit temperature MAPS/ MASKS/ --out cal.json" * helps
    )


def _verdict(record: Record) -> str:
    figures = record.calibration
    if not {"ece_ew", "mean_confidence", "accuracy"} <= set(figures) or math.isnan(figures["ece_ew"]):
        return ""
    error, confidence, accuracy = figures["ece_ew"], figures["mean_confidence"], figures["accuracy"]
    gap = confidence - accuracy
    ends = known_interval(figures.ci, "ece_ew")
    between = "" if ends is None else f", 95 % interval {_number(ends[0])} to {_number(ends[1])} %"
    measured = f"ECE {_number(error)} %{between}"
    if error < CALIBRATED:
        return f"Well calibrated: confidence and accuracy differ by {_number(error)} points ({measured})."
    if abs(gap) < 0.5 * error:
        return (
            f"Over-confident in some places and under-confident in others: mean confidence {_number(confidence)} %, "
            f"accuracy {_number(accuracy)} % ({measured})."
        )
    kind = "Over-confident" if gap > 0 else "Under-confident"
    return (
        f"{kind} by {_number(abs(gap))} points: mean confidence is {_number(confidence)} %, but "
        f"{_number(accuracy)} % of the pixels are right ({measured})."
    )


def _repair(record: Record) -> str:
    repair = record.repair
    if repair is None or record.calibration.get("ece_ew", 0.0) < CALIBRATED:
        return ""
    change = f"from {_number(repair.ece_before)} to {_number(repair.ece_after)} %"
    known = "on images that it was not fitted on (each half of these with the temperature of the other)"
    if _helps(repair):
        return f"A temperature of {repair.temperature:.2g} brings the ECE {change} {known}."
    return (
        f"A temperature of {repair.temperature:.2g} takes the ECE {change} {known}, so one temperature does not "
        "repair it. Try isotonic or beta calibration."
    )


def _helps(repair: Repair) -> bool:
    return repair.ece_after < _HELPS * repair.ece_before and repair.ece_before >= CALIBRATED


def _worst_places(record: Record) -> str:
    """Return where errors are largest: at boundaries, or on objects of one size."""
    error = record.calibration.get("ece_ew", math.nan)
    if not error >= CALIBRATED:
        return ""
    places = []
    boundary = record.calibration.get("ece_boundary_5", math.nan)
    if boundary > _MORE * error:
        unit = distance_unit(record).replace("px", "pixels")
        places.append(f"within 5 {unit} of boundaries (ECE {_number(boundary)} %)")
    groups = [region for region in record.regions if region.name in SIZES]
    if groups:
        worst = max(groups, key=lambda region: region.figures["ece_ew"])
        own = worst.figures["ece_ew"]
        if own > _MORE * error:
            size = worst.name.replace("_", " ")
            places.append(f"in images with {size} (ECE {_number(own)} %, {worst.images:,} images)")
    return f"Errors are largest {' and '.join(places)}." if places else ""


def _comparison(pair: PairedDifference) -> str:
    difference, ends = pair.difference.get("ece_ew", math.nan), known_interval(pair.ci, "ece_ew")
    if math.isnan(difference) or ends is None:
        return ""
    low, high = sorted(abs(end) for end in ends)
    if ends[0] <= 0 <= ends[1]:
        return (
            f"{pair.a} and {pair.b} on {pair.dataset}: no clear difference in calibration. Their ECEs differ by "
            f"{_number(abs(difference))} points, and the 95 % interval, {100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}, "
            "includes 0."
        )
    better, worse = (pair.a, pair.b) if difference < 0 else (pair.b, pair.a)
    return (
        f"{better} is better calibrated than {worse} on {pair.dataset}: its ECE is lower by {_number(abs(difference))} "
        f"points on the same images (95 % interval {_number(low)} to {_number(high)})."
    )


def _number(share: float) -> str:
    """Return a share in per cent with two figures below ten and three above."""
    value = 100 * share
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"
