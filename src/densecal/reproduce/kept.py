"""Finished cells in one small file per matrix and scale: tables are made from it without data, training or weights.

`keep` adds the cells of a folder to a file, `read_kept` reads a file for the tables, and `lay_out` puts its cells into
the folder of a scale, where ``densecal reproduce`` then runs the others alone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from densecal.benchmark.matrix import Matrix, MethodEntry
from densecal.benchmark.packed import pack, unpack
from densecal.benchmark.plan import RESULT, Cell, Plan
from densecal.benchmark.summary import Summary, summarise
from densecal.io.atomic import round_floats, write_json
from densecal.io.documents import read_json
from densecal.reproduce.datasets import SetFiles
from densecal.reproduce.items import Item, MatrixSettings, Scale, load_settings, point_label
from densecal.reproduce.results import Results
from densecal.reproduce.scaled import PLACES, scaled_matrix

_WEIGHTS = "model.weights="


def keep(folder: Path, file: Path) -> None:
    """Add the finished cells of a matrix to a file, without the paths of this machine.

    Args:
        folder: ``OUT/SCALE/runs/MATRIX`` of ``densecal reproduce``.
        file: Made or added to; a cell that it holds already is replaced.
    """
    pack(folder, file, portable)


def portable(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what belongs to one machine: folders, and the name of a GPU."""
    return {**light(result), "overrides": _portable(result["overrides"])}


def light(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with seven significant digits, of which tables show five, and without the name of its GPU."""
    device = "cpu" if result["device"] == "cpu" else "a CUDA GPU"
    rounded: dict[str, Any] = round_floats({**result, "device": device}, 7)
    return rounded


@cache
def read_kept(name: str, scale: Scale, file: Path) -> Summary:
    """Return what a file holds of a matrix, like a benchmark read from its folder.

    Args:
        name: Name of the matrix.
        scale: The scale that its cells were run at.
        file: What `keep` wrote.

    Raises:
        InputError: The file cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        unpack(file, Path(folder))
        results = [read_json(path, "a result") for path in Path(folder).rglob(RESULT)]
        matrix = _matrix(load_settings(name), scale)
        weights = _weights(results) - set(matrix.overrides)
        matrix = matrix.model_copy(update={"overrides": [*matrix.overrides, *sorted(weights)]})
        return summarise(matrix, Path(folder), "")


def file_of(name: str, scale: Scale, folder: Path) -> Path:
    """Return where the cells of a matrix are kept."""
    return folder / f"paper-{scale}-{name}.jsonl"


def read_results(item: Item, scale: Scale, folder: Path) -> Results:
    """Return the kept results of an item, for its tables.

    Args:
        item: The item.
        scale: The scale that its cells were run at.
        folder: Folder of the files.

    Raises:
        InputError: A file cannot be read.
    """
    results = Results(folder)
    for name in dict.fromkeys(source.matrix for source in item.sources().values() if not source.is_published):
        file = file_of(name, scale, folder)
        if file.is_file():
            results.summaries[name] = read_kept(name, scale, file)
    return results


def lay_out(file: Path, matrix: Matrix, folder: Path) -> list[str]:
    """Put the cells of a file that have the settings of a matrix into its folder, as finished cells.

    Args:
        file: What `keep` wrote.
        matrix: The matrix as it is run, with the paths of this machine.
        folder: ``OUT/SCALE/runs/MATRIX``; cells that have a result there are left alone.

    Returns:
        The labels of the cells.

    Raises:
        InputError: The file cannot be read.
    """
    labels = []
    with tempfile.TemporaryDirectory() as temporary:
        unpack(file, Path(temporary))
        for cell in Plan(matrix, folder).untuned:
            source = Path(temporary) / cell.folder.relative_to(folder)
            if (source / RESULT).is_file() and not cell.result.exists():
                result = read_json(source / RESULT, "a result")
                if _has_settings(result, cell):
                    shutil.copytree(source, cell.folder, dirs_exist_ok=True)
                    write_json(cell.result, {**result, "digest": cell.digest})
                    labels.append(cell.label)
    return labels


def _has_settings(result: dict[str, Any], cell: Cell) -> bool:
    """Return whether a kept result is that of a cell: its settings but for paths, and every evaluation."""
    evaluated = {(record.get("calibrator"), record["dataset"]) for record in result["evaluations"]}
    evaluations = {(name, dataset.name) for name in cell.calibrators for dataset in cell.datasets}
    return _portable(cell.overrides) == result["overrides"] and evaluations <= evaluated


def _portable(overrides: Collection[str]) -> list[str]:
    """Return settings without the folders of data, and with the name of a file of weights in place of its path."""
    kept = [override for override in overrides if override.partition("=")[0] not in PLACES]
    return [_with_name(override) if override.startswith(_WEIGHTS) else override for override in kept]


def _with_name(override: str) -> str:
    return _WEIGHTS + Path(override.removeprefix(_WEIGHTS).strip('"')).name


def _weights(results: list[dict[str, Any]]) -> set[str]:
    """Return the settings of weights that cells were run with."""
    return {override for result in results for override in result["overrides"] if override.startswith(_WEIGHTS)}


def _matrix(settings: MatrixSettings, scale: Scale) -> Matrix:
    """Return all rows of a matrix, on data that need not exist."""
    tests = {dataset: SetFiles(dataset) for dataset in settings.tests}
    return scaled_matrix(settings, scale, labels_of(settings), SetFiles(settings.train), tests)


def labels_of(settings: MatrixSettings) -> set[str]:
    """Return all rows of a matrix."""
    return {label for entry in settings.methods for label in _labels(entry)}


def _labels(entry: MethodEntry) -> list[str]:
    points = [(key, value) for key, values in entry.grid.items() for value in values]
    return [point_label(entry.name, key, value) for key, value in points] or [entry.name]
