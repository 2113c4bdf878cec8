"""Calibration under shift: a table, and curves over the severity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich.table import Table

from densecal.report.figures import CYCLE, plain_text
from densecal.report.tables import percent, terminal_text

if TYPE_CHECKING:
    from densecal.evaluation.shift import Shifts

FIGURES = {"ece_ew": "ECE", "oe_ew": "OE", "accuracy": "accuracy"}


def shift_table(shifts: dict[str, Shifts]) -> Table:
    """Return a table of ECE, OE and accuracy by kind and severity, in per cent.

    Args:
        shifts: What ``shift_evaluations`` returns, by name of the method.
    """
    table = Table(title="Under shift, in per cent", title_justify="left")
    severities = list(next(iter(next(iter(shifts.values())).values())))
    for heading in ("shift", "method", "figure"):
        table.add_column(heading)
    for severity in severities:
        table.add_column(str(severity) if severity else "none", justify="right")
    for kind in next(iter(shifts.values())):
        for name, by_kind in shifts.items():
            for key, label in FIGURES.items():
                values = (by_kind[kind][severity].calibration[key] for severity in severities)
                table.add_row(kind, terminal_text(name), label, *map(percent, values))
            table.add_section()
    return table


def shift_figure(shifts: dict[str, Shifts]) -> Figure:
    """Draw ECE, OE and accuracy over the severity: one column per kind, one line per method.

    Args:
        shifts: What ``shift_evaluations`` returns, by name of the method.
    """
    kinds = list(next(iter(shifts.values())))
    figure = Figure(figsize=(2.2 * len(kinds) + 0.8, 5.6), layout="constrained")
    axes = figure.subplots(len(FIGURES), len(kinds), squeeze=False, sharex=True, sharey="row")
    for row, (key, label) in zip(axes, FIGURES.items(), strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            for i, (name, by_kind) in enumerate(shifts.items()):
                values = {s: 100 * record.calibration[key] for s, record in by_kind[kind].items()}
                style = {"color": CYCLE[i % len(CYCLE)], "linestyle": ("-", "--", ":", "-.")[i % 4]}
                axis.plot(
                    list(values), list(values.values()), marker="o", markersize=3, label=plain_text(name), **style
                )
            axis.set_xticks(list(values))
        row[0].set_ylabel(f"{label} (%)")
    for axis, kind in zip(axes[0], kinds, strict=True):
        axis.set_title(kind, fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("severity")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure
