"""Tables of the figures by region and by class, and of what a calibrated model would show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from densecal.evaluation.measures import Region
from densecal.evaluation.record import Record, known_interval
from densecal.report.cases import distance_unit
from densecal.report.sections import class_name, has_classes
from densecal.report.tables import fixed, percent, terminal_text

REGIONS = {
    "boundary_5": "within 5 {unit} of a boundary",
    "boundary_5_15": "5-15 {unit} from a boundary",
    "interior": "farther than 15 {unit}",
    "small_objects": "images with small objects",
    "medium_objects": "images with medium objects",
    "large_objects": "images with large objects",
    "no_object": "images without an object",
    "hard_images": "images the model is unsure of",
    "medium_images": "images in between",
    "easy_images": "images the model is sure of",
}
"""What the regions are called; the unit is that of `distance_unit`."""
REGION_HEADS = ("ECE", "over", "under", "Brier", "accuracy", "confidence")
REGION_FIGURES = ("ece_ew", "oe_ew", "ue_ew", "brier", "accuracy", "mean_confidence")
CLASS_HEADS = (
    "share", "mean probability", "ECE", "ACE", "TACE", "Brier", "calibration part", "NLL", "calibration part",
)  # fmt: skip


def region_title(region: Region, unit: str) -> str:
    """Return the name of a region, with the range of the figure that selects its images.

    Args:
        region: The region.
        unit: What `distance_unit` says of its record.
    """
    title = REGIONS[region.name].format(unit=unit) if region.name in REGIONS else region.name
    if region.low is None or region.high is None:
        return title
    if region.name.endswith("_objects"):
        return f"{title} ({region.low:,.0f}-{region.high:,.0f} {'px' if unit == 'px' else 'voxels'} each)"
    return f"{title} (confidence {percent(region.low)}-{percent(region.high)} %)"


def region_cells(region: Region) -> list[tuple[str, str]]:
    """Return the figures of a region in per cent, each with its interval or an empty text."""
    cells = []
    for key in REGION_FIGURES:
        ends = known_interval(region.ci, key)
        cells.append((percent(region.figures.get(key)), " to ".join(map(percent, ends)) if ends else ""))
    return cells


def class_cells(record: Record, k: int) -> list[str]:
    """Return the figures of one class: in per cent, NLL as it is."""
    curve = record.reliability.classes[k]
    f = curve.figures
    if f is None:
        return ["-", "-", percent(curve.ece), *["-"] * 6]
    shown = [f.share, f.mean_probability, curve.ece, f.ace, f.tace, f.brier, f.brier_calibration]
    return [*map(percent, shown), fixed(f.nll, 4), fixed(f.nll_calibration, 4)]


TOP_K_HEADS = ("most probable classes", "true class among them", "their probability", "ECE", "over")
COST_HEADS = (
    "threshold", "cost", "95 % interval", "best threshold", "its cost", "at 0.5", "never acting", "always",
)  # fmt: skip


def top_k_rows(record: Record) -> list[list[str]]:
    """Return by k how often the true class is among the k most probable ones, and their probability, in per cent."""
    curves = record.reliability.top_k
    return [[str(c.k), *map(percent, (c.hit_rate, c.probability, c.ece, c.oe))] for c in curves]


def cost_rows(record: Record) -> list[tuple[str, list[str]]]:
    """Return for the foreground, or for every class, what acting on its probability costs per 1,000 pixels."""
    rows = []
    for k, cost in enumerate(record.costs):
        name = class_name(record, k) if has_classes(record) else "foreground"
        ends = known_interval({"cost": cost.ci} if cost.ci else {}, "cost")
        amounts = (cost.best_cost, cost.cost_at_half, cost.never, cost.always)
        best, *others = (fixed(1000 * amount, 3) for amount in amounts)
        interval = " to ".join(fixed(1000 * end, 3) for end in ends) if ends else ""
        shown = [fixed(cost.threshold, 3), fixed(1000 * cost.cost, 3), interval, fixed(cost.best_threshold, 3), best]
        rows.append((name, [*shown, *others]))
    return rows


def prices_line(records: Sequence[Record]) -> str:
    """Return at which prices the costs are."""
    cost = next(cost for record in records for cost in record.costs)
    return f"cost per 1,000 pixels at {cost.miss:g} per missed and {cost.false_alarm:g} per falsely reported pixel"


def calibrated_line(record: Record) -> str:
    """Return what a calibrated model would show on these images; empty where that is unknown."""
    consistency = record.reliability.consistency
    if consistency is None or math.isnan(consistency.p_value):
        return ""
    return (
        f"A calibrated model would show an ECE of {percent(consistency.ece)} % on these images, and one above "
        f"{percent(consistency.ece_high)} % in 5 of 100 cases: p = {consistency.p_value:.3f}."
    )


def measure_tables(records: Sequence[Record]) -> list[Table]:
    """Return the tables of regions, and of classes where maps hold several, of every record."""
    tables = []
    for record in records:
        name = f"{record.name} on {record.dataset}"
        if record.regions:
            tables.append(_region_table(record, name))
        if has_classes(record):
            tables.append(_class_table(record, name))
        if record.reliability.top_k:
            tables.append(_top_k_table(record, name))
        if record.costs:
            tables.append(_cost_table(record, name))
    return tables


def _region_table(record: Record, name: str) -> Table:
    title = f"{name}: calibration by region, in per cent, with 95 % intervals of the ECE"
    table = Table(title=terminal_text(title), title_justify="left")
    table.add_column("region")
    for head in ("images", *REGION_HEADS[:1], "95 % interval", *REGION_HEADS[1:]):
        table.add_column(head, justify="right")
    for region in record.regions:
        (ece, interval), *rest = region_cells(region)
        table.add_row(
            region_title(region, distance_unit(record)),
            f"{region.images:,}",
            ece,
            interval,
            *(value for value, _ in rest),
        )
    return table


def _class_table(record: Record, name: str) -> Table:
    title = f"{name}: single classes, in per cent (NLL in nats)"
    table = Table(title=terminal_text(title), title_justify="left")
    table.add_column("class")
    for head in CLASS_HEADS:
        table.add_column(head, justify="right")
    for k in range(len(record.reliability.classes)):
        table.add_row(terminal_text(class_name(record, k)), *class_cells(record, k))
    return table


def _top_k_table(record: Record, name: str) -> Table:
    table = Table(title=terminal_text(f"{name}: the k most probable classes, in per cent"), title_justify="left")
    for head in TOP_K_HEADS:
        table.add_column(head, justify="right")
    for cells in top_k_rows(record):
        table.add_row(*cells)
    return table


def _cost_table(record: Record, name: str) -> Table:
    table = Table(title=terminal_text(f"{name}: {prices_line([record])}"), title_justify="left")
    table.add_column("acting on")
    for head in COST_HEADS:
        table.add_column(head, justify="right")
    for title, cells in cost_rows(record):
        table.add_row(terminal_text(title), *cells)
    return table
