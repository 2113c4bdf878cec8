"""Figures of a benchmark: joint densities side by side, figures over a swept setting, convergence of the rule."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from densecal.benchmark.studies import TECHNIQUES, AlphaPath, Sweep, convergence, reference_value, sweeps
from densecal.benchmark.summary import Row, Summary, spread
from densecal.evaluation.record import Record
from densecal.report.figures import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    file_name,
    joint_bins_figure,
    joint_figure,
    plain_text,
    save_figures,
)

_COLOURS = dict(zip(TECHNIQUES, (RED, ORANGE, BLUE, GREEN), strict=True))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_WIDTHS = {"m": 3.6}
"""A wide line for moderation, because dynamic moderation has the same mean and lies on top of it."""
_STYLES = {"none": ("--", "unnormalised"), "paper": ("-", "normalised"), "confidence": (":", "normalised twice")}
_SYMBOLS = {"alpha": r"$\alpha$", "eta": r"$\eta$", "lam": r"$\lambda$"}
_LOGARITHMIC = 10.0
"""Positive values that span more than this factor go on a logarithmic axis."""


def write_benchmark_figures(summary: Summary, folder: Path) -> list[Path]:
    """Draw every figure that the benchmark has rows for.

    Returns:
        The files written.
    """
    drawn: dict[str, Figure] = {}
    for dataset in summary.datasets:
        rows = [row for row in summary.rows if row.dataset == dataset and not row.grid and _has_joint(row)]
        if rows:
            drawn[f"joint-{file_name(dataset)}"] = joint_figure([_pool(row) for row in rows])
            firsts = [replace(next(iter(row.records.values())), name=row.name) for row in rows]
            drawn[f"joint-bins-{file_name(dataset)}"] = joint_bins_figure(firsts)
    for sweep in sweeps(summary):
        for bins in summary.matrix.bins:
            drawn[f"sweep-{sweep.method}-{sweep.key}-{bins}-bins"] = sweep_figure(summary, sweep, bins)
    paths = convergence(summary)
    if paths:
        drawn["convergence"] = convergence_figure(paths)
    return save_figures(drawn, folder, "benchmark")


def sweep_figure(summary: Summary, sweep: Sweep, bins: int) -> Figure:
    """Draw ECE, OE and F max over a setting, one row per data set; shaded is one standard deviation over seeds."""
    other = None if bins == summary.bins else bins
    datasets = [d for d in summary.datasets if any(sweep.points(line, d) for line in sweep.lines)]
    panels = [
        ("calibration", "ece_ew", f"ECE (%), {bins} bins", 100.0, other),
        ("calibration", "oe_ew_weighted", f"OE weighted (%), {bins} bins", 100.0, other),
        ("segmentation", _score(sweep), "F max" if _score(sweep) == "f_max" else "mIoU", 1.0, None),
    ]
    figure = Figure(figsize=(10.5, 2.7 * len(datasets) + 0.5), layout="constrained")
    axes = figure.subplots(len(datasets), len(panels), squeeze=False, sharex=True)
    for row, dataset in zip(axes, datasets, strict=True):
        for axis, (section, key, label, scale, which) in zip(row, panels, strict=True):
            if section == "segmentation" and _is_ood(summary, dataset):
                axis.set_axis_off()  # such images have no foreground
                continue
            for i, line in enumerate(sweep.lines):
                _draw_line(axis, sweep, line, dataset, section, key, scale, which, i)
            base = reference_value(summary, dataset, section, key, which)
            if base is not None:
                axis.axhline(scale * base, color=GREY, linestyle="--", linewidth=1.2, label="plain cross entropy")
            axis.set(ylabel=label)
            axis.set_title(plain_text(dataset), fontsize=9)
            axis.grid(alpha=0.25, linewidth=0.6)
            _scale_x(axis, sweep)
            if key == "ece_ew":
                _scale_ece(axis)
            elif key == "oe_ew_weighted":
                axis.set_ylim(bottom=0)
    for axis in axes[-1]:
        axis.set_xlabel(_SYMBOLS.get(sweep.key, sweep.key))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def convergence_figure(paths: list[AlphaPath]) -> Figure:
    """Draw mean alpha and expected confidence over epochs, with unnormalised and normalised gradients."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for path in paths:
        dashes, title = _STYLES[path.grad_norm]
        for axis, values in ((left, path.alpha), (right, path.confidence)):
            axis.plot(
                path.epochs, values, color=_COLOURS[path.technique], linestyle=dashes,
                linewidth=_WIDTHS.get(path.technique, 1.8),
                label=f"{path.technique.upper()}, {title}" if axis is left else None,
            )  # fmt: skip
    accuracy = np.mean([path.accuracy[-1] for path in paths])
    right.axhline(float(accuracy), color=GREY, linewidth=1.2, linestyle="-.", label="accuracy at the end")
    left.set(xlabel="epoch", ylabel=r"mean $\alpha$")
    right.set(xlabel="epoch", ylabel=r"expected confidence $1 - \alpha\beta/2$")
    for axis in (left, right):
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_xlim(left=min(path.epochs[0] for path in paths))  # a second stage begins after the first
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def _draw_line(
    axis: Axes, sweep: Sweep, line: str, dataset: str, section: str, key: str, scale: float, bins: int | None, i: int
) -> None:
    x, mean, std = [], [], []
    for value, row in sweep.points(line, dataset):
        values = row.values(section, key, bins)
        if values:
            centre, width = spread(values.values())
            x.append(value)
            mean.append(scale * centre)
            std.append(0.0 if math.isnan(width) else scale * width)
    colour = _COLOURS.get(line, CYCLE[i % len(CYCLE)])
    title = line.upper() if line in TECHNIQUES else line
    axis.plot(x, mean, color=colour, marker=_MARKERS[i % len(_MARKERS)], markersize=4, label=plain_text(title))
    if any(std):
        low, high = np.array(mean) - std, np.array(mean) + std
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _scale_x(axis: Axes, sweep: Sweep) -> None:
    """Draw a wide positive range on a logarithmic axis, and one that includes 0 on a square-root axis."""
    values = sorted({float(row.method[sweep.key]) for rows in sweep.lines.values() for row in rows})
    positive = [value for value in values if value > 0]
    if values[0] < 0 or not positive or positive[-1] / positive[0] < _LOGARITHMIC:
        return
    if values[0] > 0:
        axis.set_xscale("log")
        positions = np.log(values)
    else:
        axis.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        positions = np.sqrt(values)
    least = (positions[-1] - positions[0]) / 8
    ticks = [values[0]]
    for value, position in zip(values, positions, strict=True):
        if position - positions[values.index(ticks[-1])] > least:
            ticks.append(value)
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks], fontsize=8)
    axis.set_xticks([], minor=True)


def _scale_ece(axis: Axes) -> None:
    """Use a logarithmic axis for a wide range, because small errors matter most."""
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()])
    if heights.min() > 0 and heights.max() / heights.min() > _LOGARITHMIC:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(bottom=0)


def _is_ood(summary: Summary, dataset: str) -> bool:
    return any(row.ood for row in summary.rows if row.dataset == dataset)


def _score(sweep: Sweep) -> str:
    row: Row = next(iter(sweep.lines.values()))[0]
    first = next(iter(row.records.values()))
    return "f_max" if "f_max" in first.segmentation else "miou"


def _has_joint(row: Row) -> bool:
    """Return whether every seed has its joint density, which packed results lack."""
    return all(record.joint.counts for record in row.records.values())


def _pool(row: Row) -> Record:
    """Return a record with the joint density of all seeds."""
    counts: Counter[tuple[int, int]] = Counter()
    for record in row.records.values():
        for x, y, n in record.joint.counts:
            counts[x, y] += n
    first = next(iter(row.records.values()))
    joint = replace(first.joint, counts=tuple((x, y, n) for (x, y), n in counts.items()))
    return replace(first, name=row.name, joint=joint)
