"""What the page shows of regions, single classes and calibrated models: rows, lines and kinds of diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from densecal.evaluation.record import Record
from densecal.metrics.cost import ExpectedCost, Prices
from densecal.report import measure_tables as tables
from densecal.report.cases import distance_unit
from densecal.report.sections import class_name, has_classes
from densecal.report.tables import fixed

CLASS_HEADS = (*tables.CLASS_HEADS, "IoU")
REGION_HEADS = ("Images", *tables.REGION_HEADS)
_KINDS = {
    "all": ("curve", "confidence, all pixels"),
    "smooth": ("smooth", "the same without bins"),
    "foreground": ("foreground", "foreground probability"),
    "smooth_foreground": ("smooth_foreground", "the same without bins"),
}


def diagram_kinds(records: Sequence[Record]) -> dict[str, str]:
    """Return the reliability diagrams that some record has, by key, and what each is called."""
    return {
        key: title
        for key, (name, title) in _KINDS.items()
        if any(getattr(record.reliability, name) is not None for record in records)
    }


def calibrated_lines(records: Sequence[Record]) -> list[str]:
    """Return for every record what a calibrated model would show."""
    lines = [(record, tables.calibrated_line(record)) for record in records]
    return [f"{record.name} on {record.dataset}: {line}" for record, line in lines if line]


def region_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return region, method, data set, number of images, and the figures with their intervals."""
    rows = []
    for record in records:
        for region in record.regions:
            cells = [f"{value} ({interval})" if interval else value for value, interval in tables.region_cells(region)]
            title = tables.region_title(region, distance_unit(record))
            rows.append([title, record.name, record.dataset, f"{region.images:,}", *cells])
    return rows


def class_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return class, method, data set, figures and IoU of every class of the records that have several."""
    rows = []
    for record in filter(has_classes, records):
        overlaps = record.segmentation.get("iou", ())
        for k in range(len(record.reliability.classes)):
            iou = overlaps[k] if isinstance(overlaps, tuple) and k < len(overlaps) else math.nan
            figures = tables.class_cells(record, k)
            rows.append([class_name(record, k), record.name, record.dataset, *figures, fixed(iou, 3)])
    return rows


def top_k_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return number of classes, method, data set and figures of the most probable classes together."""
    return [[k, record.name, record.dataset, *cells] for record in records for k, *cells in tables.top_k_rows(record)]


def cost_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return class, method, data set and costs."""
    return [
        [title, record.name, record.dataset, *cells] for record in records for title, cells in tables.cost_rows(record)
    ]


def with_costs(records: Sequence[Record], prices: Prices) -> list[Record]:
    """Return the records with the costs at these prices, for foreground maps from their counts over thresholds."""
    priced = []
    for record in records:
        costs = tuple(
            cost for cost in record.costs if (cost.miss, cost.false_alarm) == (prices.miss, prices.false_alarm)
        )
        counts = record.thresholds
        if not costs and counts is not None:
            pixels = (counts.positives, counts.negatives)
            costs = (ExpectedCost.of_counts(counts.true_positives, counts.false_positives, pixels, prices),)
        priced.append(replace(record, costs=costs))
    return priced
