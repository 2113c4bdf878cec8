"""One self-contained HTML page from evaluations and runs; it needs no network and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from densecal import __version__
from densecal.evaluation.record import PairedDifference, Record
from densecal.io.atomic import write_text
from densecal.report import sections
from densecal.report.chart_data import page_data
from densecal.report.gallery import Example
from densecal.report.pictures import Album
from densecal.report.runs import Run

MOST_BYTES = 5_000_000
"""No page is larger, whatever the number of images."""
_SCRIPTS = ("charts.js", "diagrams.js", "page.js", "gallery.js")


@dataclass
class Page:
    """What goes on the page.

    Attributes:
        title: Heading.
        lead: First paragraphs, plain text.
        records: Evaluation records, as ``densecal evaluate --json`` writes them.
        paired: Differences between methods, as in evaluation files.
        runs: Training runs.
        examples: Images of the gallery.
        notes: What the reader should know, plain text.
        commands: How to make this again.
    """

    title: str
    lead: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    paired: list[PairedDifference] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def write_page(page: Page, path: Path) -> int:
    """Write the page as one HTML file that needs no network.

    Args:
        page: What goes on it.
        path: The file.

    Returns:
        Its size in bytes.

    Raises:
        InputError: There are more pictures than fit.
    """
    text = page_text(page)
    write_text(path, text)
    return len(text.encode("utf-8"))


def page_text(page: Page) -> str:
    """The page as HTML."""
    style = _web("page.css")
    script = "\n".join(_web(name) for name in _SCRIPTS)
    body = _body(page)
    room = MOST_BYTES - len(body.encode("utf-8", "replace")) - len(style) - len(script) - 10_000
    data = page_data(page.records, page.runs, page.examples, Album(), room)
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(page.title)}</title><style>{style}</style>"
    )
    text = (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}\n'
        f'<div id="tip" role="status" hidden></div><script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">{script}</script></body></html>\n'
    )
    # file names need not be Unicode
    return text.encode("utf-8", "replace").decode("utf-8")


def _body(page: Page) -> str:
    made = _sections(page)
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in made.items())
    lead = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in page.lead)
    return (
        '<a class="skip" href="#main">To the content</a>'
        f'<div class="page"><header class="top"><h1>{html.escape(page.title)}</h1>{lead}</header></div>'
        f'<nav aria-label="Sections"><div class="page"><ul>{links}</ul>'
        f"{sections.choices_bar(page.records) if page.records else ''}"
        '<button id="theme" type="button" aria-label="Change between dark and light">Dark</button></div></nav>'
        '<div class="page"><noscript><p class="warning">The tables are complete; the diagrams and the gallery need '
        "JavaScript.</p></noscript>"
        f'<main id="main">{"".join(content for _, content in made.values())}</main>'
        f"<footer>Made by densecal {html.escape(__version__)}. This file holds all it shows.</footer></div>"
    )


def _sections(page: Page) -> dict[str, tuple[str, str]]:
    """The sections that there is something for: title in the menu and content, by anchor."""
    records, runs = page.records, [run for run in page.runs if run.log]
    made: dict[str, tuple[str, str]] = {}
    if records:
        made["summary"] = ("Summary", sections.summary_section(records, page.paired))
        made["methods"] = ("Methods", sections.methods_section(records))
        made["reliability"] = ("Reliability", sections.reliability_section(records))
        made["joint"] = ("Images", sections.image_section())
    if any(record.thresholds or record.curves for record in records):
        made["threshold"] = ("Threshold", sections.threshold_section())
    if runs:
        made["training"] = ("Training", sections.training_section(runs))
    if any(run.alpha for run in runs):
        made["alpha"] = ("Alpha", sections.alpha_section())
    if page.examples:
        made["gallery"] = ("Gallery", sections.gallery_section())
    if any(record.ood for record in records):
        made["ood"] = ("Out of distribution", sections.outside_section(records))
    if page.notes or page.commands or _has_notes(records):
        made["notes"] = ("Notes", sections.notes_section(records, page.notes, page.commands))
    return made


def _has_notes(records: Sequence[Record]) -> bool:
    return any(record.warnings or record.skipped for record in records)


def _web(name: str) -> str:
    return (resources.files("densecal.report") / "web" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a content security policy names a script or style that may be used."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
