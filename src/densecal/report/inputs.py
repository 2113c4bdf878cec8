"""Reading what a report is made of: evaluation files, run folders, benchmark folders, told apart by what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.evaluation.ood import compare_ood
from densecal.evaluation.record import VALIDATION, PairedDifference, Record, from_file
from densecal.io.documents import read_json
from densecal.report.page import Page, page_text
from densecal.report.runs import Run, is_run, read_run

_KINDS = "a run folder, a file that densecal evaluate --json wrote, or a benchmark folder"


@dataclass
class Inputs:
    """What was found.

    Attributes:
        records: Records with names that tell them apart.
        paired: Differences between methods.
        runs: Runs given by themselves, which may be evaluated.
        logs: Runs of benchmarks, whose evaluations are among the records already.
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
        InputError: One of them is nothing of that kind.
    """
    found = Inputs()
    names = Counter(path.resolve().name for path in paths)
    for path in paths:
        folder = path.resolve()
        name = folder.name if names[folder.name] == 1 else f"{folder.parent.name}/{folder.name}"
        part = _drawable(path, name)
        taken = {(record.name, record.dataset) for record in found.records}
        for record in part.records:
            if (record.name, record.dataset) in taken:
                record = replace(record, name=f"{record.name} ({path.stem})")
            found.records.append(record)
        found.paired += part.paired
        found.runs += part.runs
        found.logs += part.logs
    return found


def _drawable(path: Path, name: str) -> Inputs:
    """What a path holds, tried out while it is known which file to blame."""
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
        return _evaluations(path)
    if is_run(path):
        return Inputs(runs=[read_run(path, name)])
    if (path / "results.json").is_file() and (path / "cells").is_dir():
        return _benchmark(path)
    raise InputError(path, "nothing that can be reported" if path.exists() else "no such file", _KINDS)


def _evaluations(path: Path) -> Inputs:
    return Inputs(*from_file(_read_json(path), path))


def _benchmark(folder: Path) -> Inputs:
    """The evaluations of every cell: images without foreground beside the validation images, the others as they are."""
    found = Inputs()
    matrix = _read_json(folder / "results.json").get("matrix", {})
    datasets = matrix.get("datasets", [])
    outside = {dataset["name"] for dataset in datasets if dataset.get("ood") or dataset.get("informationless")}
    several = len(matrix.get("seeds", [])) > 1
    for path in sorted([*folder.glob("cells/*/*/result.json"), *folder.glob("references/**/result.json")]):
        result = _read_json(path)
        name = str(result.get("label", path.parent.name))
        name += f" {result['kind']}" if "kind" in result else ""
        name += f", seed {result['seed']}" if several and "seed" in result else ""
        records = [_named(Record.from_json(record, path), name) for record in result.get("evaluations", [])]
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
            found.records.append(record)
        if is_run(path.parent / "run"):
            found.logs.append(read_run(path.parent / "run", name))
    return found


def _named(record: Record, name: str) -> Record:
    plain = record.calibrator in (None, "none")
    return replace(record, name=name if plain else f"{name} + {record.calibrator}")


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path, _KINDS)
    if not isinstance(content, dict):
        raise InputError(path, "no JSON object", _KINDS)
    return content
