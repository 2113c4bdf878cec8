"""The items as data: what each shows, which rows of which matrix it takes, and the settings of the three scales."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field

from densecal.benchmark.matrix import REFERENCE, MethodEntry
from densecal.benchmark.plan import PLAIN
from densecal.errors import InputError
from densecal.io.documents import parse_yaml
from densecal.training.sections import Section

MAPS = "maps"
"""The source of rows that are published maps, in place of a matrix."""


class Scale(StrEnum):
    """How much of the paper's setting is run."""

    full = "full"
    cpu = "cpu"
    smoke = "smoke"


class Item(Section):
    """A table or figure of the paper.

    Attributes:
        title: What it shows.
        paper: Labels in the paper's LaTeX.
        kind: ``table``; ``ranges`` for the effective alpha; or the figure that is drawn besides the table.
        data: Data sets of its columns.
        figures: Figures of each data set; ``KEY@BINS`` for another number of bins.
        rows: Where the numbers of each row come from.
        note: What a reader must know to compare.
    """

    title: str
    paper: list[str]
    kind: Literal["table", "ranges", "joint", "curves", "convergence", "entropy", "textures", "time"] = "table"
    data: list[str]
    figures: list[str] = Field(default=[])
    rows: dict[str, str] = Field(default={})
    note: str = ""

    def sources(self) -> dict[str, Source]:
        """Return the sources of all rows by title; a row with a grid becomes one per value."""
        return {
            title: source
            for row, text in self.rows.items()
            for title, source in _expand(row, parse_source(text)).items()
        }


@dataclass(frozen=True)
class Source:
    """Where the numbers of a row come from.

    Attributes:
        matrix: Name of a matrix, or ``maps``.
        label: Row of the matrix, or the network of the maps.
        calibrator: What is applied to the model's output; ``none`` for nothing.
    """

    matrix: str
    label: str
    calibrator: str = PLAIN

    @property
    def is_published(self) -> bool:
        """Whether the row is evaluated from published maps."""
        return self.matrix == MAPS


class MatrixSettings(Section):
    """A matrix whose data sets are named instead of given as paths, see ``densecal.benchmark.matrix``.

    Attributes:
        recipe: Recipe of the full scale.
        overrides: Settings of the full scale for every method.
        train: Data set of the training.
        tests: Data sets of the evaluation.
        calibrators: Fitted on the validation images.
        bins: Bins; the first are those of the tables.
        starts_from: The row whose training the adaptive rows continue.
        methods: Rows.
        cpu: Further settings of the scale ``cpu``.
        smoke: Further settings of the scale ``smoke``.
    """

    recipe: str
    overrides: list[str] = Field(default=[])
    train: str
    tests: list[str]
    calibrators: list[str] = Field(default=[])
    bins: list[int] = Field(default=[10])
    starts_from: str = REFERENCE
    methods: list[MethodEntry]
    cpu: list[str] = Field(default=[])
    smoke: list[str] = Field(default=[])

    def select(self, labels: set[str]) -> list[MethodEntry]:
        """Return the entries of these rows, and of the row that adaptive methods start from."""
        selected = labels | {self.starts_from}
        entries = []
        for entry in self.methods:
            if not entry.grid and entry.name in selected:
                entries.append(entry)
            for key, values in entry.grid.items():
                kept = [value for value in values if point_label(entry.name, key, value) in selected]
                if kept:
                    entries.append(entry.model_copy(update={"grid": {key: kept}}))
        return entries


class ScaleSettings(Section):
    """What a scale changes in every matrix.

    Attributes:
        overrides: Settings.
        train: Most images to train and validate on; all unless given.
        test: Most images of a test set; all unless given.
        side: Longest side of these copies in pixels.
    """

    overrides: list[str] = Field(default=[])
    train: int | None = None
    test: int | None = None
    side: int | None = None


@cache
def load_items() -> dict[str, Item]:
    """Return the items by name, in the order of the paper."""
    return {name: Item.model_validate(content) for name, content in read_data("items.yaml").items()}


def find_item(name: str) -> Item:
    """Return an item.

    Raises:
        InputError: There is no such item.
    """
    items = load_items()
    if name not in items:
        raise InputError("item", repr(name), f"one of {', '.join(items)}")
    return items[name]


@cache
def load_settings(matrix: str) -> MatrixSettings:
    """Return the settings of a matrix."""
    return MatrixSettings.model_validate(read_data(f"matrices/{matrix}.yaml"))


@cache
def load_scale(scale: Scale) -> ScaleSettings:
    """Return what a scale changes."""
    return ScaleSettings.model_validate(read_data("scales.yaml")[scale])


def read_data(name: str) -> Any:
    """Read a YAML file of this package."""
    file = resources.files("densecal.reproduce").joinpath(name)
    return parse_yaml(file.read_text(encoding="utf-8"), name, "a YAML file of the package")


def parse_source(text: str) -> Source:
    """Read ``MATRIX/LABEL`` or ``MATRIX/LABEL + CALIBRATOR``."""
    row, _, calibrator = text.partition(" + ")
    matrix, _, label = row.partition("/")
    return Source(matrix, label, calibrator or PLAIN)


def point_label(name: str, key: str, value: object) -> str:
    """Return what a benchmark calls a row of a grid over one setting."""
    return f"{name} {key.rpartition('.')[2]}={value}"


def _expand(title: str, source: Source) -> dict[str, Source]:
    """Return one source per value if the row has a grid of which no value is named."""
    if source.is_published:
        return {title: source}
    for entry in load_settings(source.matrix).methods:
        if entry.name == source.label:
            points = [(key, value) for key, values in entry.grid.items() for value in values]
            if points:
                return {
                    f"{title}, {key.rpartition('.')[2]} {value}": Source(
                        source.matrix, point_label(entry.name, key, value), source.calibrator
                    )
                    for key, value in points
                }
    return {title: source}
