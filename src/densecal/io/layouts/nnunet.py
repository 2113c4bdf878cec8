"""nnU-Net: CASE.npz with `probabilities` (C, Z, Y, X), labels CASE.nii.gz, and dataset.json, which describes them.

Version 1 calls the array `softmax`. The CASE.pkl beside it is never opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.io.documents import read_json
from densecal.io.layouts.contents import array_names, by_stem, choose_key
from densecal.io.layouts.protocol import Folders, Layout, Match, Region
from densecal.io.masks import VOID
from densecal.io.relabel import Relabel, relabel
from densecal.io.urls import exists

_KEYS = ("probabilities", "softmax")
_DESCRIPTION = "dataset.json"
_REORIENTED = "NibabelIOWithReorient"
_NUMBER = re.compile("[0-9]{1,3}")
_EXPECTED = "names of classes with their labels, as nnU-Net's dataset.json has"


@dataclass(frozen=True)
class _Labels:
    """The labels that dataset.json describes.

    Attributes:
        path: The file.
        groups: Labels of every class or region, by name; background first if it has a channel.
        ignore: The label of void pixels.
        regions: Whether the groups are regions, which may overlap.
    """

    path: Path
    groups: dict[str, tuple[int, ...]]
    ignore: int | None
    regions: bool

    @property
    def known(self) -> set[int]:
        """All labels except that of void pixels."""
        return {0}.union(*self.groups.values())


def _find(folders: Folders) -> Match | None:
    archives = by_stem(folders.predictions, (".npz",))
    if not archives:
        _refuse_labels_alone(folders)
        return None
    first = next(iter(archives.values()))
    key = folders.options.key or choose_key(array_names(first), _KEYS)
    if key is None or (folders.options.key is not None and not folders.forced):
        return None
    labels = _read_labels(folders)
    if labels is None:
        if folders.forced or (first.with_suffix(".pkl")).exists():
            where = f"beside the maps or in the folder above {folders.masks or 'the labels'}"
            expected = f"nnU-Net's dataset.json {where}, or --format plain with --key {key} --classes K"
            raise InputError(folders.predictions, f"{key} without {_DESCRIPTION}", expected)
        return None
    _refuse_reoriented(folders.predictions)
    options = replace(folders.options, key=key, axes=folders.options.axes or "zyx")
    count = f"{len(archives)} case" + "s" * (len(archives) != 1)
    match = Match(
        "", options, maps={stem: (path,) for stem, path in archives.items()},
        subset=_is_validation_of_a_fold(folders.predictions), knows_labels=True,
        reads=(*_descriptions(folders), *_plans(folders.predictions)),
    )  # fmt: skip
    names = tuple(labels.groups)
    void = "" if labels.ignore is None else f", label {labels.ignore} is void"
    note = f"{count}, {len(names)} {'regions' if labels.regions else 'classes'} ({', '.join(names)}){void}"
    if labels.regions:
        regions = tuple(Region(name, _region(labels, name)) for name in names)
        ignore = None if labels.ignore is None else VOID
        return replace(match, note=note, regions=regions, ignore_index=ignore)
    return replace(match, note=note, classes=len(names), class_names=names, ignore_index=labels.ignore)


def _refuse_labels_alone(folders: Folders) -> None:
    """Refuse a folder into which nnU-Net wrote only labels, and say what is missing."""
    if folders.forced or exists(folders.predictions / "predict_from_raw_data_args.json"):
        expected = "CASE.npz, which nnUNetv2_predict writes with --save_probabilities"
        raise InputError(folders.predictions, "no probabilities of nnU-Net", expected)


def _refuse_reoriented(folder: Path) -> None:
    """Refuse volumes that nnU-Net reoriented before prediction: their arrays have other axes than the labels."""
    for path in _plans(folder):
        plans = read_json(path, "nnU-Net's plans")
        if isinstance(plans, dict) and plans.get("image_reader_writer") == _REORIENTED:
            expected = "SimpleITKIO or NibabelIO, whose probabilities have the axes of the labels"
            raise InputError(f"{path}: image_reader_writer", _REORIENTED, expected)


def _plans(folder: Path) -> list[Path]:
    """Return the nearest plans.json, if there is one."""
    paths = [parent / "plans.json" for parent in (folder, folder.parent, folder.parent.parent)]
    return [path for path in paths if exists(path)][:1]


def _is_validation_of_a_fold(folder: Path) -> bool:
    """Return whether these are the cases that a fold held out, a subset of those with labels."""
    resolved = folder.resolve()
    return resolved.name == "validation" and resolved.parent.name.startswith("fold_")


def _read_labels(folders: Folders) -> _Labels | None:
    """Return the labels of the nearest dataset.json, which no other one may contradict."""
    descriptions = [_parse(read_json(path, "nnU-Net's dataset.json"), path) for path in _descriptions(folders)]
    for other in descriptions[1:]:
        first = descriptions[0]
        if (other.groups, other.ignore) != (first.groups, first.ignore):
            raise InputError(other.path, "other labels", f"those of {first.path}, because both describe the maps")
    return descriptions[0] if descriptions else None


def _descriptions(folders: Folders) -> Iterator[Path]:
    """Yield dataset.json beside the maps, in the folder of the trained model above them, and above the labels."""
    parents = [folders.predictions.resolve()]
    if _is_validation_of_a_fold(folders.predictions):
        parents.append(parents[0].parent.parent)
    if folders.masks is not None:
        parents += [folders.masks.resolve(), folders.masks.resolve().parent]
    yield from (path for folder in dict.fromkeys(parents) if exists(path := folder / _DESCRIPTION))


def _parse(content: Any, path: Path) -> _Labels:
    labels_by_name = content.get("labels") if isinstance(content, dict) else None
    where = f"{path}: labels"
    if not isinstance(labels_by_name, dict) or not labels_by_name:
        raise InputError(where, "no labels", _EXPECTED)
    if all(_NUMBER.fullmatch(key) for key in labels_by_name):  # version 1: {"0": "background"}
        labels_by_name = {str(name): int(label) for label, name in labels_by_name.items()}
    groups = {str(name): _as_labels(labels, f"{where}.{name}") for name, labels in labels_by_name.items()}
    ignore = groups.pop("ignore", None)
    if ignore is not None and len(ignore) != 1:
        raise InputError(f"{where}.ignore", f"{len(ignore)} labels", "one label")
    regions = any(len(labels) > 1 for labels in groups.values())
    if regions:
        groups = {name: labels for name, labels in groups.items() if set(labels) != {0}}
    else:
        groups = dict(sorted(groups.items(), key=lambda item: item[1]))
        if [labels[0] for labels in groups.values()] != list(range(len(groups))):
            raise InputError(where, str([labels[0] for labels in groups.values()]), "labels from 0 on, without gaps")
    return _Labels(path, groups, None if ignore is None else ignore[0], regions)


def _as_labels(labels: Any, where: str) -> tuple[int, ...]:
    values = labels if isinstance(labels, list) else [labels]
    if not values or not all(type(label) is int and 0 <= label <= VOID for label in values):
        raise InputError(where, repr(labels)[:60], f"a label from 0 to {VOID}, or a list of them")
    return tuple(dict.fromkeys(values))


def _region(labels: _Labels, name: str) -> Relabel:
    table = {label: int(label in labels.groups[name]) for label in labels.known}
    if labels.ignore is not None:
        table[labels.ignore] = VOID
    return relabel(table, str(labels.path))


NNUNET = Layout(
    "nnunet",
    "nnU-Net",
    "maps",
    "CASE.npz with probabilities (C, Z, Y, X), as nnUNetv2_predict --save_probabilities",
    _find,
)
