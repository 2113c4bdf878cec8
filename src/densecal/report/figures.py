"""Figures of evaluation records (matplotlib): reliability, joint density, curves, confidence histogram."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from densecal.evaluation.record import Curve, Record
from densecal.io.atomic import write_atomically
from densecal.io.outputs import software
from densecal.names import printable
from densecal.report.tables import by_dataset

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
_STEMS = ("reliability", "joint", "confidence", "curves", "histograms", "sweep-", "convergence")
"""How the names of the figures of evaluations and benchmarks begin."""
CYCLE = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#F0E442", "#000000")

_DENSITY_CELLS = 200
_LEAST_WIDTH = 2e-3
"""Least standard deviation of the kernel of the density over bins."""


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
            "joint-bins": joint_bins_figure(group),
            "confidence": confidence_figure(group),
        }
        if any(record.reliability.foreground is not None for record in group):
            drawn["reliability-foreground"] = foreground_figure(group)
        if any(record.reliability.smooth is not None for record in group):
            drawn["reliability-smooth"] = smooth_figure(group)
        if all(record.curves is not None for record in group):
            drawn["curves"] = curve_figure(group)
        written += save_figures(drawn, subfolder, "evaluate")
    return written


def by_folder(records: list[Record], folder: Path) -> Iterator[tuple[Path, list[Record]]]:
    """Yield the folder and the records of every data set: a folder of its own when there are several."""
    groups = by_dataset(records)
    for dataset, group in groups.items():
        yield folder / file_name(dataset) if len(groups) > 1 else folder, group


def save_figures(figures: Mapping[str, Figure], folder: Path, command: str) -> list[Path]:
    """Write the figures of a command by name as ``NAME.png``, each whole or not at all, and return the files."""
    paths = [folder / f"{name}.png" for name in figures]
    about = {"Software": software(command)}
    for figure, path in zip(figures.values(), paths, strict=True):
        figure.set_dpi(150)
        # not savefig, which draws everything a first time for the layout alone
        write_atomically(path, partial(FigureCanvasAgg(figure).print_png, metadata=about))
    return paths


def figure_targets(folder: Path | None) -> list[tuple[Path, str]]:
    """Return the PNG files in a folder that new figures may replace: those with the name of a figure."""
    if folder is None or not folder.is_dir():
        return []
    files = (file for pattern in ("*.png", "*/*.png", "ood/*/*.png") for file in folder.glob(pattern))
    return [(file, "png") for file in files if file.stem.startswith(_STEMS)]


def reliability_figure(records: list[Record]) -> Figure:
    """Draw accuracy over confidence of the winning class, with the number of pixels in each bin below."""
    return _reliability(records, lambda r: r.reliability.curve, "confidence", "accuracy", "ece_ew")


def foreground_figure(records: list[Record]) -> Figure:
    """Draw the share of foreground over the foreground probability, which the background does not dominate."""
    return _reliability(
        records, lambda r: r.reliability.foreground, "foreground probability", "share of foreground",
        "ece_foreground",
    )  # fmt: skip


def smooth_figure(records: list[Record]) -> Figure:
    """Draw the smooth reliability diagram: accuracy around every confidence, thicker where there are more pixels."""
    kinds = {
        "confidence": ("smooth", "accuracy"),
        "foreground probability": ("smooth_foreground", "share of foreground"),
    }
    kinds = {x: names for x, names in kinds.items() if any(getattr(r.reliability, names[0]) for r in records)}
    size = (3.2 * len(records) + 0.4, 3.4 * len(kinds))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(kinds), len(records), squeeze=False)
    for row, (x_label, (name, y_label)) in zip(axes, kinds.items(), strict=True):
        row[0].set_ylabel(y_label)
        for axis, record in zip(row, records, strict=True):
            diagram = getattr(record.reliability, name)
            if diagram is None:
                axis.set_axis_off()
                continue
            y, density = np.array(diagram.accuracy), np.array(diagram.density)
            x = np.linspace(0, 1, len(y))
            seen = np.flatnonzero(~np.isnan(y))
            axis.plot([0, 1], [0, 1], ":", color=GREY)
            axis.fill_between(x, x, y, where=~np.isnan(y), color=RED, alpha=0.2, linewidth=0)
            widths = 1 + 5 * np.sqrt(density / density.max())
            points = np.stack([x, y], axis=1)
            parts = np.stack([points[:-1], points[1:]], axis=1)
            axis.add_collection(
                LineCollection(list(parts), linewidths=list(widths[:-1]), colors=BLUE, capstyle="round")
            )
            first = max(0.0, x[seen[0]] - 0.02) if len(seen) else 0.0
            axis.set(xlim=(first, 1), ylim=(0, 1), xlabel=x_label)
            axis.set_title(f"{_title(record)}\nsmECE {100 * diagram.error:.2f} %", fontsize=9)
    return figure


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
    figure.suptitle("Density of images", fontsize=10)
    return figure


def joint_bins_figure(records: list[Record]) -> Figure:
    """Draw the joint density as the authors of the paper do: of pixels, over the means of the bins.

    Every pixel counts as a point at the mean confidence and the accuracy of its bin, so there are as many distinct
    points as non-empty bins. The smoothing is that of a kernel estimate from as many points as there are images.
    """
    figure, axes = _panels(records, 3.2)
    ticks = (np.arange(_DENSITY_CELLS) + 0.5) / _DENSITY_CELLS
    for axis, record in zip(axes, records, strict=True):
        density = bin_density(record.reliability.curve, record.images, ticks)
        density[density < 1e-3 * density.max()] = np.nan
        axis.imshow(density, origin="lower", extent=(0, 1, 0, 1), cmap="YlGnBu", aspect="auto")
        axis.plot([0, 1], [0, 1], "--", color=RED, linewidth=1.0)
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="mean confidence of a bin")
        axis.set_title(_title(record), fontsize=9)
    axes[0].set_ylabel("accuracy of the bin")
    figure.suptitle("Density of pixels over the means of their bins, as the paper's authors draw it", fontsize=10)
    return figure


def bin_density(curve: Curve, images: int, ticks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density of pixels over the means (C_b, A_b) of their bins at every pair of ticks, accuracy first.

    Args:
        curve: Pixels, mean confidence and accuracy of each bin.
        images: Number of points of the kernel estimate; Scott's rule makes its bandwidth from it.
        ticks: Positions of the density, on both axes.
    """
    count = np.array(curve.count, dtype=float)
    weights = count / count.sum()
    points = np.stack([curve.confidence, curve.accuracy])
    centred = points - points @ weights[:, None]
    # the floor keeps bins on a line, or a single bin, visible
    scale = images ** (-1 / 3) * images / max(images - 1, 1)
    covariance = scale * (centred * weights) @ centred.T + _LEAST_WIDTH**2 * np.eye(2)
    x, y = np.meshgrid(ticks, ticks)
    heights = np.zeros(x.shape)
    for point, weight in zip(points.T, weights, strict=True):  # one bin at a time: a thousand at once take gigabytes
        if weight > 0:
            offsets = np.stack([x - point[0], y - point[1]])
            distance = np.einsum("iyx,ij,jyx->yx", offsets, np.linalg.inv(covariance), offsets)
            heights += weight * np.exp(-distance / 2)
    return heights / (2 * np.pi * math.sqrt(np.linalg.det(covariance)))


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
        consistency = record.reliability.consistency
        if error == "ece_ew" and consistency is not None:
            low, high = np.array(consistency.low), np.array(consistency.high)
            upper.vlines(
                (left + width / 2)[filled], low[filled], high[filled], color="black", linewidth=1.5,
                label="a calibrated model (95 %)",
            )  # fmt: skip
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
    """Escape the dollar signs of a name, so that they start no formula, and its control characters."""
    return printable(text).replace("$", r"\$")


def file_name(text: str) -> str:
    """Return the name of a data set as the name of a file."""
    return re.sub(r"[^\w.-]+", "_", text).strip(".") or "dataset"
