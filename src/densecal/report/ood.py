"""The table and the figures of sets out of distribution, from records that have an ``ood`` list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from densecal.evaluation.record import Record
from densecal.report.figures import BLUE, RED, file_name, joint_figure, plain_text, reliability_figure, save_figures
from densecal.report.tables import percent, terminal_text

_PERCENT = ("ece_ew", "oe_ew", "oe_ew_weighted", "accuracy", "mean_confidence")


def ood_table(records: list[Record]) -> Table:
    """Return a table in per cent, one row per method, data set and set out of distribution."""
    table = Table(title="Out of distribution, in per cent; AUROC and FPR95 of an image's mean entropy")
    table.title_justify = "left"
    for heading in ("OoD set", "method", "against"):
        table.add_column(heading)
    for heading in ("images", "ECE", "OE", "OE weighted", "Acc.", "confidence", "AUROC", "FPR95"):
        table.add_column(heading, justify="right")
    for record in records:
        for entry in record.ood:
            outside = entry.record
            figures = [outside.calibration[key] for key in _PERCENT] + [entry.auroc, entry.fpr95]
            names = (entry.dataset, record.name, record.dataset)
            table.add_row(*map(terminal_text, names), f"{outside.images:,}", *map(percent, figures))
    return table


def ood_records(records: list[Record]) -> list[Record]:
    """Return the records out of distribution, each once."""
    by_name = {(entry.dataset, record.name): entry.record for record in records for entry in record.ood}
    return list(by_name.values())


def write_ood_figures(records: list[Record], folder: Path) -> list[Path]:
    """Draw every set out of distribution into ``ood/NAME``: histograms, joint density and reliability.

    Args:
        records: Evaluation records with an ``ood`` list, as ``densecal evaluate --ood --json`` writes them.
        folder: Where the PNG files go.

    Returns:
        The files written.
    """
    written = []
    for dataset in dict.fromkeys(entry.dataset for record in records for entry in record.ood):
        outside = [record for record in ood_records(records) if record.dataset == dataset]
        drawn = {
            "histograms": ood_figure(records, dataset),
            "joint": joint_figure(outside),
            "reliability": reliability_figure(outside),
        }
        written += save_figures(drawn, folder / "ood" / file_name(dataset), "evaluate")
    return written


def ood_figure(records: list[Record], dataset: str) -> Figure:
    """Draw entropy and confidence of the pixels in and out of distribution, one row per evaluation."""
    rows = [(record, entry) for record in records for entry in record.ood if entry.dataset == dataset]
    figure = Figure(figsize=(7.4, 2.6 * len(rows) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False, sharex="col")
    for (left, right), (record, entry) in zip(axes, rows, strict=True):
        for axis, both in ((left, entry.entropy), (right, entry.confidence)):
            sides = ((both.inside, BLUE, "-", record.dataset), (both.outside, RED, "--", dataset))
            for pixels, colour, line, label in sides:
                count = np.array(pixels, dtype=float)
                edges = np.linspace(0, 1, len(count) + 1)
                style = {"color": colour, "linestyle": line, "linewidth": 1.5}
                axis.stairs(count / count.sum(), edges, label=plain_text(label), **style)
            axis.set(yscale="log")
        left.set(ylabel="share of pixels", xlim=(0, 1))
        filled = np.flatnonzero(np.add(entry.confidence.inside, entry.confidence.outside))
        right.set(xlim=(min(0.5, filled[0] / len(entry.confidence.inside)), 1))
        right.legend(frameon=False, fontsize=8, loc="upper left")
        left.set_title(f"{plain_text(record.name)}: AUROC {entry.auroc:.3f}, FPR95 {entry.fpr95:.3f}", fontsize=9)
    for axis, quantity in zip(axes[-1], ("entropy (share of its maximum)", "confidence"), strict=True):
        axis.set_xlabel(quantity)
    return figure
