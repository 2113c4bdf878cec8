"""The inputs of a report: evaluation files, run folders and benchmark folders, recognised by what they hold."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from densecal.data.pairs import find_comparisons, find_masks
from densecal.errors import InputError
from densecal.evaluation.ood import compare_ood
from densecal.evaluation.record import VALIDATION, PairedDifference, Record, from_file
from densecal.io.documents import read_json
from densecal.io.folders import files_in
from densecal.io.map_files import map_suffixes
from densecal.io.run_files import run_files
from densecal.report.gallery import Folders
from densecal.report.page import Page, page_text
from densecal.report.runs import Run, data_files, is_run, read_run

_KINDS = "a run folder, a file that densecal evaluate --json wrote, or a benchmark folder"


@dataclass
class Inputs:
    """What the paths of a report hold.

    Attributes:
        records: Records with distinct names.
        paired: Differences between methods.
        runs: Runs that were given directly and may be evaluated.
        logs: Runs of benchmarks, whose evaluations are already among the records.
    """

    records: list[Record] = field(default_factory=list)
    paired: list[PairedDifference] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    logs: list[Run] = field(default_factory=list)


def read_inputs(paths: Sequence[Path]) -> Inputs:
    """Read runs, evaluations and benchmarks.

    Args:
        paths: Files and folders, in the order of the report.

    Raises:
        InputError: One of them is none of these, or is damaged.
    """
    inputs = Inputs()
    # resolve() would raise on a loop of links
    folders = [Path(os.path.realpath(path)) for path in paths]
    names = Counter(folder.name for folder in folders)
    for path, folder in zip(paths, folders, strict=True):
        name = folder.name if names[folder.name] == 1 else f"{folder.parent.name}/{folder.name}"
        part = _read_checked(path, name)
        used = {(record.name, record.dataset) for record in inputs.records}
        for record in part.records:
            if (record.name, record.dataset) in used:
                record = replace(record, name=f"{record.name} ({path.stem})")
            inputs.records.append(record)
        inputs.paired += part.paired
        inputs.runs += part.runs
        inputs.logs += part.logs
    return inputs


def files_read(paths: Sequence[Path], folders: Folders | None) -> Iterator[Path]:
    """Yield the files that a report of these paths reads, so that it is not written over one of them."""
    for path in paths:
        cells = [*path.glob("cells/*/*"), *path.glob("references/**")]
        yield from (path, path / "results.json", *(cell / "result.json" for cell in cells))
        for run in (path, *(cell / "run" for cell in cells)):
            yield from run_files(run)
            if is_run(run):
                yield from data_files(run)
    if folders is not None:
        for _, _, maps, masks in find_comparisons(folders.predictions, folders.masks):
            yield from (*files_in(maps, map_suffixes()), *find_masks(masks).values())
        if folders.images is not None:
            yield from (file for inner in ("*", "*/*") for file in folders.images.glob(inner))


def _read_checked(path: Path, name: str) -> Inputs:
    """Read a path and render a page of it alone, so that an error can name the path."""
    try:
        part = _read(path, name)
        page_text(Page("", records=part.records, paired=part.paired, runs=part.runs + part.logs))
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(path, f"damaged figures ({type(error).__name__}: {error})", _KINDS) from None
    return part


def _read(path: Path, name: str) -> Inputs:
    if path.is_file():
        return Inputs(*from_file(_read_json(path), path))
    if is_run(path):
        return Inputs(runs=[read_run(path, name)])
    if (path / "results.json").is_file() and (path / "cells").is_dir():
        return _read_benchmark(path)
    raise InputError(path, "nothing that can be reported" if path.exists() else "no such file", _KINDS)


def _read_benchmark(folder: Path) -> Inputs:
    """Read the evaluations of every cell, and attach those out of distribution to those on the validation images."""
    inputs = Inputs()
    matrix = _read_json(folder / "results.json").get("matrix", {})
    datasets = matrix.get("datasets", [])
    outside = {dataset["name"] for dataset in datasets if dataset.get("ood") or dataset.get("informationless")}
    several_seeds = len(matrix.get("seeds", [])) > 1
    for path in sorted([*folder.glob("cells/*/*/result.json"), *folder.glob("references/**/result.json")]):
        result = _read_json(path)
        name = str(result.get("label", path.parent.name))
        name += f" {result['kind']}" if "kind" in result else ""
        name += f", seed {result['seed']}" if several_seeds and "seed" in result else ""
        records = [_rename(Record.from_json(record, path), name) for record in result.get("evaluations", [])]
        if not all(record.reliability.bins for record in records):
            raise InputError(
                path, "an unpacked result without curves", "a benchmark folder as densecal benchmark left it"
            )
        for record in records:
            if record.dataset in outside:
                continue
            others = [other for other in records if other.name == record.name and other.dataset in outside]
            if record.dataset == VALIDATION:
                record = replace(record, ood=tuple(compare_ood(record, other) for other in others))
            inputs.records.append(record)
        if is_run(path.parent / "run"):
            inputs.logs.append(read_run(path.parent / "run", name))
    return inputs


def _rename(record: Record, name: str) -> Record:
    plain = record.calibrator in (None, "none")
    return replace(record, name=name if plain else f"{name} + {record.calibrator}")


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path, _KINDS)
    if not isinstance(content, dict):
        raise InputError(path, "no JSON object", _KINDS)
    return content
