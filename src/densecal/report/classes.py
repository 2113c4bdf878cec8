"""Reliability per class: a figure of evaluation records with K classes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from densecal.evaluation.record import Record
from densecal.report.figures import CYCLE, GREY, by_folder, plain_text, save_figures
from densecal.report.sections import class_name, has_classes

_COLUMNS = 6


def write_class_figures(records: list[Record], folder: Path) -> list[Path]:
    """Draw the records that have several classes, beside the files of ``write_figures``.

    Returns:
        The files written.
    """
    written = []
    for subfolder, group in by_folder(records, folder):
        several = list(filter(has_classes, group))
        if several:
            written += save_figures({"reliability-classes": class_figure(several)}, subfolder, "evaluate")
    return written


def class_figure(records: list[Record]) -> Figure:
    """Draw the share of each class over its predicted probability: one panel per class, one line per method.

    Bins with very few pixels are noise and are left out: those with less than a thousandth of the pixels above the
    first bin, which holds nearly all pixels of other classes.
    """
    classes = max(len(record.reliability.classes) for record in records)
    columns = min(_COLUMNS, classes)
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
            enough = count > 1e-3 * count[1:].sum()
            x, y = np.array(curve.confidence)[enough], np.array(curve.accuracy)[enough]
            colour = CYCLE[i % len(CYCLE)]
            axis.plot(x, y, "o-", color=colour, linewidth=1, markersize=3, label=plain_text(record.name))
            errors.append(f"{100 * curve.ece:.2f}")
        axis.set_title(f"{plain_text(class_name(records[0], k))}: ECE {' / '.join(errors)} %", fontsize=8)
        axis.set(xlim=(0, 1), ylim=(0, 1))
    for axis in axes[::columns]:
        axis.set_ylabel("share of the class", fontsize=8)
    for axis in axes[max(classes - columns, 0) : classes]:
        axis.set_xlabel("probability of the class", fontsize=8)
        axis.tick_params(labelbottom=True)
    if len(records) > 1:
        axes[0].legend(frameon=False, fontsize=7, loc="upper left")
    return figure
