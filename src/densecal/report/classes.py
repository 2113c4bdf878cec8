"""Reliability class by class: a figure of evaluation records of K classes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from densecal.evaluation.record import Record
from densecal.report.figures import CYCLE, GREY, by_folder, plain_text, save

COLUMNS = 6


def write_class_figures(records: list[Record], folder: Path) -> list[Path]:
    """Draw the records that have several classes, beside the files of ``write_figures``; returns those written."""
    written = []
    for place, group in by_folder(records, folder):
        several = [record for record in group if (record.settings.classes or 1) > 1]
        if several:
            path = place / "reliability-classes.png"
            save(class_figure(several), path)
            written.append(path)
    return written


def class_figure(records: list[Record]) -> Figure:
    """Share of a class over the probability given to it, a panel a class and a line a method.

    Bins with less than a thousandth of the pixels above the first bin, which is nearly all pixels of other classes,
    are left out: they say nothing.
    """
    classes = max(len(record.reliability.classes) for record in records)
    columns = min(COLUMNS, classes)
    rows = math.ceil(classes / columns)
    figure = Figure(figsize=(2.1 * columns + 0.4, 2.3 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for k, axis in enumerate(axes):
        if k >= classes:
            axis.set_axis_off()
            continue
        axis.plot([0, 1], [0, 1], ":", color=GREY)
        errors = []
        for i, record in enumerate(records):
            curve = record.reliability.classes[k]
            count = np.array(curve.count, dtype=float)
            held = count > 1e-3 * count[1:].sum()
            x, y = np.array(curve.confidence)[held], np.array(curve.accuracy)[held]
            colour = CYCLE[i % len(CYCLE)]
            axis.plot(x, y, "o-", color=colour, linewidth=1, markersize=3, label=plain_text(record.name))
            errors.append(f"{100 * curve.ece:.2f}")
        axis.set_title(f"class {k}: ECE {' / '.join(errors)} %", fontsize=8)
        axis.set(xlim=(0, 1), ylim=(0, 1))
    for axis in axes[::columns]:
        axis.set_ylabel("share of the class", fontsize=8)
    for axis in axes[max(classes - columns, 0) : classes]:
        axis.set_xlabel("probability of the class", fontsize=8)
        axis.tick_params(labelbottom=True)
    if len(records) > 1:
        axes[0].legend(frameon=False, fontsize=7, loc="upper left")
    return figure
