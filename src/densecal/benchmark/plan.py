"""The tasks of a matrix: its cells, where their files are, and whether they are finished."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from densecal import methods, posthoc
from densecal.benchmark.matrix import Dataset, Matrix, MethodEntry, Value
from densecal.errors import InputError
from densecal.evaluation.record import Record
from densecal.io.atomic import round_floats
from densecal.io.documents import read_json
from densecal.metrics.ood import Separation
from densecal.posthoc.registry import find as find_calibrator
from densecal.training.config import Config, load_config
from densecal.training.first_stage import FIRST_STAGE, difference

VERSION = 1
"""Version of the result files; a cell whose result has another version is run again."""
RESULT, ERROR = "result.json", "error.txt"
STABLE_METHODS = ("aslp-mc", "als")
"""Methods whose default lambda was 2000 in version 0.1 and is 500 now."""
PLAIN = "none"
"""The name of the model as it is, without a calibrator."""


@dataclass(frozen=True)
class Cell:
    """One training and its evaluations.

    Attributes:
        label: The row of the table.
        seed: Seed of the training.
        folder: Folder of its files.
        recipe: Name or file of the recipe that it is trained from.
        overrides: Settings that override the recipe's.
        config: Recipe and overrides together.
        datasets: Data sets on which the model is evaluated, besides the validation images.
        calibrators: Calibrators that are fitted on the validation images and evaluated with the model.
        bins: Bins of the calibration errors.
        keep: Whether the checkpoint is kept.
        grid: The values that distinguish this cell from others of its entry.
        trial: The override of a tuned setting that this cell tries out, else empty.
        trial_run: Run folder of the trial with the same training, if there is one.
        start: The cell that trains its first stage, if another cell does.
    """

    label: str
    seed: int
    folder: Path
    recipe: str
    overrides: tuple[str, ...]
    config: Config
    datasets: tuple[Dataset, ...]
    calibrators: tuple[str, ...]
    bins: tuple[int, ...]
    keep: str
    grid: dict[str, Value] = field(default_factory=dict)
    trial: str = ""
    trial_run: Path | None = None
    start: Cell | None = None

    @property
    def key(self) -> str:
        """Its name in progress and messages."""
        return f"{self.label}{' with ' + self.trial if self.trial else ''}, seed {self.seed}"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    @property
    def result(self) -> Path:
        """The result file, which is written last: a cell is finished once this file exists and holds its digest."""
        return self.folder / RESULT

    @cached_property
    def digest(self) -> str:
        """A digest of everything that the result depends on."""
        own, *first = (_settings_of(cell.config) for cell in (self, self.start) if cell)
        return _digest([own, *first] if first else own, self)


@dataclass(frozen=True)
class Reference:
    """Trained models evaluated in another way, for a row to compare with.

    Attributes:
        label: The label of the models.
        kind: ``ensemble``, the mean probability of all seeds, or ``MC dropout``, that of one model's draws.
        folder: Folder of its files.
        members: The cells that train the models.
    """

    label: str
    kind: str
    folder: Path
    members: tuple[Cell, ...]

    @property
    def seed(self) -> str:
        """Seed of its model, or ``all``."""
        return str(self.members[0].seed) if len(self.members) == 1 else "all"

    @property
    def key(self) -> str:
        """Its name in progress and messages."""
        return f"{self.label}, {self.kind}, seed {self.seed}"

    @property
    def result(self) -> Path:
        """The result file, which is written last."""
        return self.folder / RESULT

    @cached_property
    def digest(self) -> str:
        """A digest of the kind and the digests of all members."""
        return _digest([self.kind, *(member.digest for member in self.members)], self.members[0])


Task = Cell | Reference


class Plan:
    """The tasks of a matrix in a folder.

    Args:
        matrix: The benchmark.
        out: Its folder.

    Raises:
        InputError: A method's settings are wrong.
    """

    def __init__(self, matrix: Matrix, out: Path) -> None:
        self.matrix = matrix
        self.out = out
        self._first_stages: list[Cell] = []
        self._first_stages = [
            cell for entry in matrix.methods if entry.name == matrix.starts_from for cell in self._cells(entry)
        ]
        _check_first_stages(self._first_stages)
        self.trials = list(self._trials())
        """Cells that try out values of the tuned strengths."""
        self.untuned = [
            cell for entry in matrix.methods if entry.name not in matrix.tune for cell in self._cells(entry)
        ]
        for name in matrix.calibrators:
            _check_calibrator(name, self.untuned or self.trials)
        _check_informationless(matrix.datasets, self.untuned or self.trials)
        labels = [label for entry in matrix.methods for label in _labels(entry)]
        _check_folders([(label, out / "cells" / folder_name(label)) for label in labels])
        _check_folders([(cell.key, cell.folder) for cell in self.trials])

    def tuned_cells(self, chosen: dict[str, str]) -> list[Cell]:
        """Return the cells of tuned methods whose overrides (``key=value``) are chosen."""
        return [
            cell
            for entry in self.matrix.methods
            if entry.name in chosen
            for cell in self._cells(entry, chosen[entry.name])
        ]

    def cells(self, chosen: dict[str, str]) -> list[Cell]:
        """Return the cells of the table, in its order."""
        by_label: dict[str, list[Cell]] = {}
        for cell in [*self.untuned, *self.tuned_cells(chosen)]:
            by_label.setdefault(cell.label, []).append(cell)
        order = [label for entry in self.matrix.methods for label in _labels(entry)]
        return [cell for label in order for cell in by_label.get(label, [])]

    def references(self, cells: list[Cell]) -> list[Reference]:
        """Return the ensembles and the MC-dropout evaluations of the models of these cells."""
        references = []
        for label in self.matrix.ensembles:
            members = tuple(cell for cell in cells if cell.label == label)
            if members:
                references.append(Reference(label, "ensemble", self._reference_folder(label, "ensemble"), members))
        for cell in cells:
            if cell.label in self.matrix.mc_dropout:
                folder = self._reference_folder(cell.label, "mc-dropout") / f"seed-{cell.seed}"
                references.append(Reference(cell.label, "MC dropout", folder, (cell,)))
        return references

    def _reference_folder(self, label: str, kind: str) -> Path:
        return self.out / "references" / folder_name(label) / kind

    def _trials(self) -> Iterator[Cell]:
        for entry in self.matrix.methods:
            tuning = self.matrix.tune.get(entry.name)
            for value in tuning.values if tuning else ():
                assert tuning is not None
                override = f"{tuning.key}={value}"
                folder = self.out / "tuning" / folder_name(entry.name) / folder_name(override)
                # the choice is made on the validation images, so nothing else is evaluated
                yield self._cell(entry, self.matrix.seeds[0], folder, [override], (), (), trial=override)

    def _cells(self, entry: MethodEntry, chosen: str | None = None) -> Iterator[Cell]:
        matrix = self.matrix
        for label, grid in zip(_labels(entry), _points(entry), strict=True):
            extra = [f"{key}={value}" for key, value in grid.items()] + ([chosen] if chosen else [])
            for seed in matrix.seeds:
                folder = self.out / "cells" / folder_name(label) / f"seed-{seed}"
                trial_run = None
                if chosen and seed == matrix.seeds[0]:
                    trial_run = self.out / "tuning" / folder_name(label) / folder_name(chosen) / "run"
                yield self._cell(
                    entry, seed, folder, extra, tuple(matrix.datasets), tuple(matrix.calibrators),
                    label=label, grid=grid, trial_run=trial_run,
                )  # fmt: skip

    def _cell(
        self,
        entry: MethodEntry,
        seed: int,
        folder: Path,
        extra: list[str],
        datasets: tuple[Dataset, ...],
        calibrators: tuple[str, ...],
        *,
        label: str | None = None,
        grid: dict[str, Value] | None = None,
        trial: str = "",
        trial_run: Path | None = None,
    ) -> Cell:
        matrix = self.matrix
        overrides = (*matrix.overrides, *entry.overrides, *extra, f"engine.seed={seed}")
        try:
            config = load_config(matrix.recipe, list(overrides))
            if self._first_stages and _could_start(config):
                overrides = (*overrides, "method.schedule=two-stage")
                config = load_config(matrix.recipe, list(overrides))
            start = self._first_stage(config, seed) if self._first_stages and config.two_stage else None
        except InputError as error:
            raise InputError(
                f"method {(label or entry.name)[:200]}: {error.where}", error.found, error.expected
            ) from None
        if config.engine.devices * config.engine.nodes > 1:
            raise InputError("engine.devices", "several", "1: a benchmark runs one process per device")
        return Cell(
            label or entry.name, seed, folder, matrix.recipe, overrides, config, datasets, calibrators,
            tuple(matrix.bins), matrix.keep, _parsed_values(config, grid or {}), trial, trial_run, start,
        )  # fmt: skip

    def _first_stage(self, config: Config, seed: int) -> Cell:
        """Return the cell that trains the first stage of a run."""
        cells = [cell for cell in self._first_stages if cell.seed == seed]
        for cell in cells:
            if difference(cell.config, config) is None:
                return cell
        raise InputError(
            f"starts_from {self.matrix.starts_from}", f"a run with {difference(cells[0].config, config)}",
            "a run with the same network, data and split",
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The content of the result file of a task.

    Attributes:
        digest: Digest of the settings it was made with.
        method: The method's settings; empty for a reference.
        grid: The values that distinguish a cell from others of its entry.
        warnings: Warnings of the training and the evaluations.
        records: One per calibrator and data set, the validation images first.
        separations: By calibrator and data set, where the records no longer have the entropy of every image.
    """

    digest: str
    method: dict[str, Any]
    grid: dict[str, Any]
    warnings: list[str]
    records: list[Record]
    separations: dict[tuple[str, str], Separation]


def read_result(task: Task) -> Result | None:
    """Return the result of a task, whatever settings it was made with; ``None`` if there is none, or a damaged one."""
    try:
        content = read_json(task.result, "a result")
        if not isinstance(content, dict) or content.get("version") != VERSION:
            return None
        records = [Record.from_json(record, task.result) for record in content["evaluations"]]
        notes = content["warnings"]
        separations = {
            (calibrator, dataset): Separation(float(figures["auroc"]), float(figures["fpr95"]))
            for calibrator, by_dataset in content.get("separations", {}).items()
            for dataset, figures in by_dataset.items()
        }
        return Result(
            str(content["digest"]), dict(content.get("method", {})), dict(content.get("grid", {})),
            [str(note) for note in notes], records, separations,
        )  # fmt: skip
    except (InputError, LookupError, TypeError, ValueError, AttributeError):
        return None


def is_finished(task: Task) -> bool:
    """Return whether a task has a result that was made with its settings."""
    result = read_result(task)
    return result is not None and result.digest == task.digest


def has_failed(task: Task) -> bool:
    """Return whether a task has failed during this call of the benchmark."""
    return (task.folder / ERROR).exists()


def folder_name(text: str) -> str:
    """Return a folder name for a label."""
    return re.sub(r"[^\w.,=+-]+", "_", text).strip(".") or "_"


def _labels(entry: MethodEntry) -> list[str]:
    """Return the name of an entry for each point of its grid, with the values of that point."""
    return [
        " ".join([entry.name, *(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())])
        for point in _points(entry)
    ]


def _points(entry: MethodEntry) -> list[dict[str, Value]]:
    """Return the points of an entry's grid; without a grid, one point without coordinates."""
    return [dict(zip(entry.grid, values, strict=True)) for values in itertools.product(*entry.grid.values())]


def _parsed_values(config: Config, grid: dict[str, Value]) -> dict[str, Value]:
    """Return the values of a grid as the configuration parses them: YAML reads 1e-4, which has no dot, as text."""
    settings = config.model_dump(mode="json")
    values = {}
    for key in grid:
        value: Any = settings
        for part in key.split("."):
            value = value[part]
        values[key] = value
    return values


def _settings_of(config: Config) -> dict[str, Any]:
    """Return the settings that are not the default, and a rule's default strength where version 0.1 had another."""
    settings = config.model_dump(mode="json", exclude_defaults=True)
    options = config.method.options
    uses_lambda = config.method.name in STABLE_METHODS and options.get("constraint") != "exact"
    if uses_lambda and not {"lam", "preset"} & options.keys():
        settings.setdefault("method", {})["preset"] = "stable"
    return settings


def _digest(training: Any, cell: Cell) -> str:
    """Hash what is trained and how it is evaluated."""
    datasets = [dataset.model_dump(mode="json", exclude_defaults=True) for dataset in cell.datasets]
    parts = [VERSION, training, datasets, cell.calibrators, cell.bins]
    return hashlib.sha256(json.dumps(round_floats(parts), sort_keys=True).encode()).hexdigest()


def _could_start(config: Config) -> bool:
    """Return whether a method has two stages and the settings do not say which schedule it follows."""
    return "schedule" in methods.options(config.method.name) and config.method.options.get("schedule") is None


def _check_first_stages(cells: list[Cell]) -> None:
    """Check that the runs that others start from are plain cross entropy."""
    for cell in cells:
        if cell.config.method.name != FIRST_STAGE:
            problem = f"{cell.label}, which trains {cell.config.method.name}"
            raise InputError("starts_from", problem, f"a method of {FIRST_STAGE}, which is the first stage")


def _check_calibrator(name: str, cells: list[Cell]) -> None:
    """Check that a calibrator exists and supports the number of classes of the models."""
    find_calibrator(name, "calibrators")
    for classes in {cell.config.data.classes for cell in cells}:
        try:
            posthoc.create(name, **({"num_classes": classes} if classes > 1 else {}))
        except TypeError:
            raise InputError(
                "calibrators", f"{name} for {classes} classes", "a calibrator for as many classes"
            ) from None


def _check_informationless(datasets: list[Dataset], cells: list[Cell]) -> None:
    """Refuse informationless images for several classes, because only foreground masks can be empty."""
    for dataset in datasets:
        classes = max(cell.config.data.classes for cell in cells)
        if dataset.informationless and classes > 1:
            problem = f"informationless images for {classes} classes"
            raise InputError(f"datasets: {dataset.name}", problem, "foreground masks, which can be empty")


def _check_folders(folders: list[tuple[str, Path]]) -> None:
    """Check that no two labels share a folder."""
    owners: dict[Path, str] = {}
    for name, folder in folders:
        if folder in owners:
            raise InputError(
                "methods",
                f"{owners[folder]!r} and {name!r}, which need the same folder",
                "names that differ in more than punctuation",
            )
        owners[folder] = name
