"""The figures of the paper, drawn from the results of an item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from densecal.benchmark.studies import convergence, sweeps
from densecal.benchmark.summary import Summary
from densecal.data import open_source
from densecal.report.benchmark_figures import convergence_figure, sweep_figure
from densecal.report.figures import file_name, joint_bins_figure, joint_figure, save_figures
from densecal.reproduce.items import Item
from densecal.reproduce.results import Results

_EXAMPLES = 5
_MOST_TEXTURES = 500
_RULE = {"method.eta": "eta", "method.lam": "lam"}


def draw(item: Item, results: Results, folder: Path) -> list[Path]:
    """Draw the figures of an item and return the files; none for a table."""
    return save_figures(figures_of(item, results), folder, "reproduce")


def figures_of(item: Item, results: Results) -> dict[str, Figure]:
    """Return the figures of an item by name; none for a table."""
    drawn: dict[str, Callable[[Item, Results], dict[str, Figure]]] = {
        "joint": _joint, "curves": _curves, "convergence": _convergence, "entropy": _entropy, "textures": _textures,
    }  # fmt: skip
    return drawn[item.kind](item, results) if item.kind in drawn else {}


def _joint(item: Item, results: Results) -> dict[str, Figure]:
    """Draw both joint densities of every data set: ours over images, the authors' over bins."""
    figures = {}
    for dataset in results.data:
        records = [results.record(title, source, dataset) for title, source in item.sources().items()]
        present = [record for record in records if record is not None and record.joint.counts]
        if present:
            figures[f"joint-{file_name(dataset)}"] = joint_figure(present)
            figures[f"joint-bins-{file_name(dataset)}"] = joint_bins_figure(present)
    return figures


def _curves(item: Item, results: Results) -> dict[str, Figure]:
    (summary,) = results.summaries.values()
    summary = rows_of(summary, item)
    return {
        f"{sweep.method}-{sweep.key}-{bins}-bins": sweep_figure(summary, sweep, bins)
        for sweep in sweeps(summary)
        for bins in summary.matrix.bins
    }


def rows_of(summary: Summary, item: Item) -> Summary:
    """Return the rows of an item, and among the curves its row with the paper's own eta and lambda, part of no grid."""
    labels = {source.label for source in item.sources().values()}
    rows = [row for row in summary.rows if row.label in labels]
    plain = [row for row in rows if not row.grid and "eta" in row.method]
    rows += [replace(row, grid={key: row.method[name]}) for row in plain for key, name in _RULE.items()]
    return replace(summary, rows=rows)


def with_norms(summary: Summary, labels: set[str]) -> Summary:
    """Return some adaptive rows as if a grid over the normalisation of the gradient had made them."""
    rows = [
        replace(row, grid={"method.grad_norm": row.method["grad_norm"]})
        for row in summary.rows
        if row.label in labels and "grad_norm" in row.method
    ]
    return replace(summary, rows=rows)


def _convergence(item: Item, results: Results) -> dict[str, Figure]:
    (summary,) = results.summaries.values()
    paths = convergence(with_norms(summary, {source.label for source in item.sources().values()}))
    return {"convergence": convergence_figure(paths)} if paths else {}


def _entropy(item: Item, results: Results) -> dict[str, Figure]:
    """Draw a few test images with the prediction of every row and its entropy."""
    trained = {title: results.predictor(source) for title, source in item.sources().items()}
    models = {title: model for title, model in trained.items() if model is not None}
    files = next(iter(results.data.values()))
    images = open_source(files.images, files.masks)
    names = [images.names[i] for i in np.unique(np.linspace(0, len(images.names) - 1, _EXAMPLES).round().astype(int))]
    titles = ["image", "mask", *(text for title in models for text in (title, f"entropy of {title}"))]
    figure = Figure(figsize=(2.2 * len(titles), 1.8 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), len(titles), squeeze=False)
    for row, name in zip(axes, names, strict=True):
        picture = images.image(name)
        panels = [(picture, "grey"), (images.mask(name) > 127, "grey")]
        for model in models.values():
            z = model.logits([picture])[0][0].float().cpu()
            p = z.sigmoid().numpy().astype(float)
            entropy = -(p * np.log2(np.maximum(p, 1e-12)) + (1 - p) * np.log2(np.maximum(1 - p, 1e-12)))
            panels += [(p, "grey"), (entropy, "jet")]
        for axis, (panel, colours) in zip(row, panels, strict=True):
            axis.imshow(panel, cmap=colours, vmin=0, vmax=255 if panel is picture else 1)
            axis.set_axis_off()
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=8)
    return {"entropy": figure}


def _textures(item: Item, results: Results) -> dict[str, Figure]:
    """Draw the textures that there are."""
    (files,) = results.data.values()
    images = open_source(files.images, files.masks)
    names = images.names[:_MOST_TEXTURES]
    across = min(20, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(0.6 * across, 0.6 * down + 0.4), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, name in zip(axes, names, strict=False):
        axis.imshow(images.image(name)[::4, ::4])
    figure.suptitle(f"{len(names)} textures", fontsize=9)
    return {"textures": figure}
