"""Figures of evaluation records (matplotlib): reliability, joint density, curves, confidence histogram."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from densecal.evaluation.record import Curve, Record
from densecal.io.atomic import write_atomically
from densecal.report.tables import by_dataset

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
CYCLE = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def write_figures(records: list[Record], folder: Path) -> list[Path]:
    """Draw everything that the records hold, in one folder per data set when there are several.

    Args:
        records: Evaluation records, as ``densecal evaluate --json`` writes them.
        folder: Where the PNG files go.

    Returns:
        The files written.
    """
    written = []
    for subfolder, group in by_folder(records, folder):
        drawn = {
            "reliability": reliability_figure(group),
            "joint": joint_figure(group),
            "confidence": confidence_figure(group),
        }
        if any(record.reliability.foreground is not None for record in group):
            drawn["reliability-foreground"] = foreground_figure(group)
        if all(record.curves is not None for record in group):
            drawn["curves"] = curve_figure(group)
        written += save_figures(drawn, subfolder)
    return written


def by_folder(records: list[Record], folder: Path) -> Iterator[tuple[Path, list[Record]]]:
    """Yield the folder and the records of every data set: a folder of its own when there are several."""
    groups = by_dataset(records)
    for dataset, group in groups.items():
        yield folder / file_name(dataset) if len(groups) > 1 else folder, group


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    write_atomically(path, lambda stream: figure.savefig(stream, format="png", dpi=150))


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures by name as ``NAME.png``, and return the files."""
    paths = [folder / f"{name}.png" for name in figures]
    for figure, path in zip(figures.values(), paths, strict=True):
        save(figure, path)
    return paths


def reliability_figure(records: list[Record]) -> Figure:
    """Draw accuracy over confidence of the winning class, with the number of pixels in each bin below."""
    return _reliability(records, lambda r: r.reliability.curve, "confidence", "accuracy", "ece_ew")


def foreground_figure(records: list[Record]) -> Figure:
    """Draw the share of foreground over the foreground probability, which the background does not dominate."""
    return _reliability(
        records, lambda r: r.reliability.foreground, "foreground probability", "share of foreground",
        "ece_foreground",
    )  # fmt: skip


def joint_figure(records: list[Record]) -> Figure:
    """Draw the density of images over mean confidence and accuracy, with the diagonal of a calibrated model."""
    low = min(_joint_low(record) for record in records)
    figure, axes = _panels(records, 3.2)
    for axis, record in zip(axes, records, strict=True):
        joint = record.joint
        cells = joint.cells
        grid = np.zeros((cells, cells))
        for x, y, n in joint.counts:
            grid[y, x] = n
        density = gaussian_filter(grid, 1.0)
        density[density < 1e-3 * density.max()] = np.nan
        axis.imshow(
            density, origin="lower", extent=(0, 1, 0, 1), cmap="viridis",
            interpolation="bilinear", aspect="auto",
        )  # fmt: skip
        axis.plot([0, 1], [0, 1], ":", color=RED, linewidth=1.5)
        axis.set(xlim=(max(low, 0.0), 1.0), ylim=(low, 1.0), xlabel="mean confidence of an image")
        axis.set_title(_title(record), fontsize=9)
    axes[0].set_ylabel("accuracy of the image")
    return figure


def confidence_figure(records: list[Record]) -> Figure:
    """Draw histograms of the confidence of right and of wrong pixels."""
    figure, axes = _panels(records, 2.8)
    for axis, record in zip(axes, records, strict=True):
        histogram = record.reliability.histogram
        count, correct = np.array(histogram.count), np.array(histogram.correct)
        edges = np.linspace(0, 1, len(count) + 1)
        axis.stairs(correct, edges, color=BLUE, label="right", linewidth=1.5)
        axis.stairs(count - correct, edges, color=RED, label="wrong", linewidth=1.5, linestyle="--")
        first = edges[np.flatnonzero(count)[0]] if count.any() else 0.0
        axis.set(yscale="log", xlim=(min(first, 0.5), 1.0), xlabel="confidence")
        axis.set_title(_title(record), fontsize=9)
    axes[0].set_ylabel("pixels")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def curve_figure(records: list[Record]) -> Figure:
    """Draw F over the threshold and precision over recall, one line per method."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, record in enumerate(records):
        curves = record.curves
        assert curves is not None
        style = {"color": CYCLE[i % len(CYCLE)], "linestyle": ("-", "--", ":", "-.")[i // len(CYCLE) % 4]}
        f = np.array(curves.f_curve)
        left.plot(np.arange(len(f)) / (len(f) - 1), f, label=f"{plain_text(record.name)} ({f.max():.3f})", **style)
        right.plot(curves.recall, curves.precision, **style)
    left.set(xlabel="threshold (map min-maxed)", ylabel="F", xlim=(0, 1), ylim=(0, 1))
    right.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
    left.legend(frameon=False, fontsize=8, loc="lower center", title="F max", title_fontsize=8)
    return figure


def _reliability(
    records: list[Record],
    curve_of: Callable[[Record], Curve | None],
    x_label: str,
    y_label: str,
    error: str,
) -> Figure:
    curves = [(record, curve) for record in records if (curve := curve_of(record)) is not None]
    figure = Figure(figsize=(3.2 * len(curves) + 0.4, 4.0), layout="constrained")
    axes = figure.subplots(2, len(curves), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 1))
    for column, (record, curve) in zip(axes.T, curves, strict=True):
        count = np.array(curve.count, dtype=float)
        x, y = np.array(curve.confidence), np.array(curve.accuracy)
        width = 1.0 / len(count)
        left = np.arange(len(count)) * width
        filled = count > 0
        upper, lower = column
        upper.bar(left[filled], y[filled], width, align="edge", color=BLUE, edgecolor="white", label=y_label)
        upper.bar(
            left[filled], (x - y)[filled], width, bottom=y[filled], align="edge", color=RED, alpha=0.35, hatch="//",
            edgecolor=RED, linewidth=0, label="gap",
        )  # fmt: skip
        upper.plot([0, 1], [0, 1], ":", color=GREY)
        first = 0.5 if not count[: len(count) // 2].any() else 0.0
        upper.set(xlim=(first, 1.0), ylim=(0, 1))
        upper.set_title(f"{_title(record)}\nECE {100 * record.calibration[error]:.2f} %", fontsize=9)
        lower.bar(left[filled], count[filled], width, align="edge", color=GREY, edgecolor="white")
        lower.set(yscale="log", xlabel=x_label)
    axes[0, 0].set_ylabel(y_label)
    axes[1, 0].set_ylabel("pixels")
    axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _panels(records: list[Record], size: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel per record, six in a row."""
    columns = min(6, len(records))
    rows = math.ceil(len(records) / columns)
    figure = Figure(figsize=(size * columns + 0.6, size * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for spare in axes[len(records) :]:
        spare.set_axis_off()
    return figure, list(axes[: len(records)])


def _joint_low(record: Record) -> float:
    """Return where the axes begin: a little below the least accurate or least confident image."""
    joint = record.joint
    lowest = float(min(min(x, y) for x, y, _ in joint.counts) / joint.cells)
    return max(0.0, math.floor(10 * lowest - 0.5) / 10)


def _title(record: Record) -> str:
    return textwrap.fill(plain_text(f"{record.name} on {record.dataset}"), 38)


def plain_text(text: str) -> str:
    """Escape the dollar signs of a name, so that they start no formula."""
    return text.replace("$", r"\$")


def file_name(text: str) -> str:
    """Return the name of a data set as the name of a file."""
    return re.sub(r"[^\w.-]+", "_", text).strip(".") or "dataset"
