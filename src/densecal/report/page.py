"""One self-contained HTML page from evaluation records: what was found, a table, the figures, some examples."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from densecal.files import write_text
from densecal.report.figures import CYCLE, confidence_figure, curve_figure, joint_figure, reliability_figure
from densecal.report.tables import Record, best_values, by_dataset, used_columns

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ccc; --best: #0072B2; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #161616; --line: #444; --best: #56B4E9; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
td.best { font-weight: 700; color: var(--best); }
.scroll { overflow-x: auto; }
img { max-width: 100%; height: auto; background: #fff; }
.examples td { border: 0; padding: .15rem; text-align: center; font-size: .85rem; }
.examples img { width: 96px; image-rendering: pixelated; }
figcaption, .note { font-size: .9rem; opacity: .85; }
"""


@dataclass
class Page:
    """What goes on the page.

    Attributes:
        title: Heading.
        lead: First paragraphs, plain text.
        records: Evaluation records, as ``densecal evaluate --json`` writes them.
        logs: Training logs by method name, lists of the lines of ``log.jsonl``.
        examples: Rows of (name, pictures by heading), pictures as uint8 arrays.
        commands: How to make this again.
    """

    title: str
    lead: list[str]
    records: list[Record]
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    examples: list[tuple[str, dict[str, NDArray[np.uint8]]]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def write_page(page: Page, path: Path) -> None:
    """Write the page as one HTML file that needs no network."""
    parts = [f"<h1>{html.escape(page.title)}</h1>"]
    parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in page.lead]
    parts.append(_table(page.records))
    for dataset, records in by_dataset(page.records).items():
        parts.append(f"<h2>{html.escape(dataset)}</h2>")
        parts.append(
            _figure(
                reliability_figure(records),
                "Reliability. A bar is the accuracy of the pixels with that confidence; on the dotted line confidence "
                "equals accuracy. Hatched: the gap. Below: how many pixels each bin holds.",
            )
        )
        parts.append(
            _figure(
                joint_figure(records),
                "Every image by its mean confidence and its accuracy. A calibrated model lies on the dotted diagonal; "
                "below it the model is more confident than right.",
            )
        )
        parts.append(_figure(confidence_figure(records), "How confident right and wrong pixels are."))
        if all("curves" in record for record in records):
            parts.append(_figure(curve_figure(records), "F over the threshold, and precision over recall."))
    if page.logs:
        parts.append("<h2>Training</h2>")
        parts.append(_figure(training_figure(page.logs), "Loss, validation ECE and accuracy after every epoch."))
    if page.examples:
        parts.append("<h2>Examples</h2>" + _examples(page.examples))
    if page.commands:
        commands = html.escape("\n".join(page.commands))
        parts.append(f"<h2>Make it again</h2><pre><code>{commands}</code></pre>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(page.title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    write_text(path, f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>{body}</main></body></html>\n')


def training_figure(logs: dict[str, list[dict[str, Any]]]) -> Figure:
    """Curves of the runs over their epochs."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for i, (name, lines) in enumerate(logs.items()):
        epochs = [line["epoch"] for line in lines]
        series = (
            [line["loss"] for line in lines],
            [100 * line["validation"]["ece_ew"] for line in lines],
            [100 * line["validation"]["accuracy"] for line in lines],
        )
        for axis, values in zip(axes, series, strict=True):
            axis.plot(epochs, values, color=CYCLE[i % len(CYCLE)], linestyle=("-", "--")[i % 2], label=name)
    for axis, label in zip(axes, ("training loss", "validation ECE (%)", "validation accuracy (%)"), strict=True):
        axis.set(xlabel="epoch", ylabel=label)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _table(records: list[Record]) -> str:
    columns = used_columns(records)
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in ("data set", "method"))
    head += "".join(f'<th scope="col">{html.escape(column.heading)}</th>' for column in columns)
    rows = []
    for dataset, group in by_dataset(records).items():
        best = best_values(group, columns)
        for record in group:
            cells = f"<td>{html.escape(dataset)}</td><td>{html.escape(record['name'])}</td>"
            for column in columns:
                text = column.text(column.value(record))
                mark = ' class="best"' if text != "-" and text == column.text(best[column.key]) else ""
                cells += f"<td{mark}>{text}</td>"
            rows.append(f"<tr>{cells}</tr>")
    note = "Calibration in per cent, lower is better but for accuracy; F, E and S as fractions. Best in bold."
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{table}</div><p class="note">{note}</p>'


def _figure(figure: Figure, caption: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    text = html.escape(caption)
    return f'<figure><img alt="{text}" src="{_data_url(stream.getvalue())}"><figcaption>{text}</figcaption></figure>'


def _examples(examples: list[tuple[str, dict[str, NDArray[np.uint8]]]]) -> str:
    headings = "".join(f"<td>{html.escape(name)}</td>" for name in examples[0][1])
    rows = [f"<tr>{headings}</tr>"]
    for name, pictures in examples:
        cells = ""
        for heading, picture in pictures.items():
            stream = io.BytesIO()
            Image.fromarray(picture).save(stream, format="png")
            alt = html.escape(f"{heading} of {name}")
            cells += f'<td><img alt="{alt}" src="{_data_url(stream.getvalue())}"></td>'
        rows.append(f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table class="examples">{"".join(rows)}</table></div>'


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
