"""One self-contained HTML page of evaluations and runs. It needs no network and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from densecal import __version__
from densecal.evaluation.record import PairedDifference, Record
from densecal.io.atomic import write_text
from densecal.names import printable
from densecal.report import advice, cases, measure_sections, measure_tables, sections
from densecal.report.chart_data import page_data
from densecal.report.gallery import Example
from densecal.report.pictures import Album
from densecal.report.runs import Run
from densecal.report.tables import by_dataset, used_columns

MOST_BYTES = 5_000_000
"""Largest size of a page, whatever the number of images."""
_SCRIPTS = ("charts.js", "diagrams.js", "page.js", "whatif.js", "gallery.js")


@dataclass
class Page:
    """The content of the page.

    Attributes:
        title: Heading.
        lead: First paragraphs, plain text.
        records: Evaluation records, as ``densecal evaluate --json`` writes them.
        paired: Differences between methods, as in evaluation files.
        runs: Training runs.
        examples: Images of the gallery.
        notes: What the reader should know, plain text.
        commands: Commands that make the page again.
    """

    title: str
    lead: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    paired: list[PairedDifference] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Section:
    name: str
    link: str
    content: Markup


def write_page(page: Page, path: Path) -> int:
    """Write the page as one HTML file that needs no network.

    Args:
        page: The content.
        path: The file.

    Returns:
        Its size in bytes.

    Raises:
        InputError: The pictures do not fit at any size.
    """
    text = page_text(page)
    write_text(path, text)
    return len(text.encode("utf-8"))


def page_text(page: Page) -> str:
    """Return the page as HTML."""
    values = {
        "page": page,
        "sections": _sections(page),
        "datasets": list(by_dataset(page.records)),
        "version": __version__,
        "style": _web_file("page.css"),
        "script": Markup("\n").join(_web_file(name) for name in _SCRIPTS),
    }
    frame = _render("page.html", data="", **values)
    budget = MOST_BYTES - len(frame.encode("utf-8"))
    data = page_data(page.records, page.runs, page.examples, Album(), budget)
    return str(_render("page.html", data=data, **values))


def _sections(page: Page) -> list[_Section]:
    """Return the sections that have something to show."""
    records, runs = page.records, [run for run in page.runs if run.log]
    parts = []

    def add(name: str, link: str, **values: Any) -> None:
        parts.append(_Section(name, link, _render(f"{name}.html", **values)))

    said, compared = advice.all_advice(records), advice.comparisons(page.paired)
    if said or compared:
        add("advice", "In words", all_advice=said, comparisons=compared)
    if records:
        columns = used_columns(records)
        best_first = {column.key: "ascending" if column.best is min else "descending" for column in columns}
        rows = sections.method_rows(records, columns)
        cards, differences = sections.summary_cards(records), sections.difference_rows(page.paired)
        add("summary", "Summary", cards=cards, differences=differences)
        if page.examples:
            add("gallery", "Worst images")
        add("methods", "Methods", columns=columns, best_first=best_first, titles=sections.TITLES, rows=rows)
        add(
            "reliability",
            "Reliability",
            kinds=measure_sections.diagram_kinds(records),
            bands=any(record.reliability.consistency is not None for record in records),
            calibrated=measure_sections.calibrated_lines(records),
            classes=sections.class_names(records),
        )
        if any(record.logits for record in records):
            add("whatif", "What if")
        if class_rows := measure_sections.class_rows(records):
            add(
                "classes",
                "Classes",
                heads=measure_sections.CLASS_HEADS,
                rows=class_rows,
                top_k_heads=measure_tables.TOP_K_HEADS[1:],
                top_k_rows=measure_sections.top_k_rows(records),
            )
        if region_rows := measure_sections.region_rows(records):
            add("regions", "Regions", heads=measure_sections.REGION_HEADS, rows=region_rows)
        if cost_rows := measure_sections.cost_rows(records):
            prices = measure_tables.prices_line(records)
            add("cost", "Cost", heads=measure_tables.COST_HEADS, rows=cost_rows, prices=prices)
        if trust_rows := cases.trust_rows(records):
            add("cases", "Cases", heads=cases.TRUST_HEADS, rows=trust_rows)
        add("joint", "Images")
    if any(record.thresholds or record.curves for record in records):
        add("threshold", "Threshold")
    if runs:
        add("training", "Training", rows=sections.training_rows(runs))
    if any(run.alpha for run in runs):
        add("alpha", "Alpha")
    if any(record.ood for record in records):
        add("ood", "Out of distribution", rows=sections.ood_rows(records))
    notes = [*page.notes, *sections.record_notes(records)]
    if notes or page.commands:
        add("notes", "Notes", notes=notes, commands=page.commands)
    return parts


def _render(template: str, **values: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(template).render(**values))


def _web_file(name: str) -> Markup:
    return Markup((resources.files("densecal.report") / "web" / name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _text_of(value: Any) -> Any:
    """Return text as the page shows it; markup was built from such text."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEMPLATES = Environment(
    loader=PackageLoader("densecal.report"),
    autoescape=True,
    finalize=_text_of,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["digest"] = _digest
