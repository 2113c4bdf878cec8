"""nnU-Net: CASE.npz with `probabilities` (C, Z, Y, X), labels CASE.nii.gz, and dataset.json, which says what they mean.

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
from densecal.io.layouts.protocol import Folders, Found, Layout, Region
from densecal.io.masks import VOID
from densecal.io.relabel import Relabel, relabel
from densecal.io.urls import exists

_KEYS = ("probabilities", "softmax")
_DESCRIPTION = "dataset.json"
_TURNED = "NibabelIOWithReorient"
_NUMBER = re.compile("[0-9]{1,3}")
_EXPECTED = "names of classes with their labels, as nnU-Net's dataset.json has"


@dataclass(frozen=True)
class _Labels:
    """What dataset.json says of labels.

    Attributes:
        path: The file.
        groups: Labels of every class or region by its name, background first where it has a channel.
        ignore: The label of void pixels.
        regions: Whether the groups are regions, which may overlap.
    """

    path: Path
    groups: dict[str, tuple[int, ...]]
    ignore: int | None
    regions: bool

    @property
    def known(self) -> set[int]:
        """All labels but that of void pixels."""
        return {0}.union(*self.groups.values())


def _find(given: Folders) -> Found | None:
    archives = by_stem(given.predictions, (".npz",))
    if not archives:
        _refuse_labels_alone(given)
        return None
    first = next(iter(archives.values()))
    key = given.options.key or choose_key(array_names(first), _KEYS)
    if key is None or (given.options.key is not None and not given.forced):
        return None
    labels = _read_labels(given)
    if labels is None:
        if given.forced or (first.with_suffix(".pkl")).exists():
            where = f"beside the maps or in the folder above {given.masks or 'the labels'}"
            expected = f"nnU-Net's dataset.json {where}, or --format plain with --key {key} --classes K"
            raise InputError(given.predictions, f"{key} without {_DESCRIPTION}", expected)
        return None
    _refuse_turned(given.predictions)
    options = replace(given.options, key=key, axes=given.options.axes or "zyx")
    count = f"{len(archives)} case" + "s" * (len(archives) != 1)
    found = Found(
        "", options, maps={stem: (path,) for stem, path in archives.items()},
        subset=_is_validation_of_a_fold(given.predictions), knows_labels=True,
        reads=(*_descriptions(given), *_plans(given.predictions)),
    )  # fmt: skip
    names = tuple(labels.groups)
    void = "" if labels.ignore is None else f", label {labels.ignore} is void"
    said = f"{count}, {len(names)} {'regions' if labels.regions else 'classes'} ({', '.join(names)}){void}"
    if labels.regions:
        regions = tuple(Region(name, _region(labels, name)) for name in names)
        ignore = None if labels.ignore is None else VOID
        return replace(found, said=said, regions=regions, ignore_index=ignore)
    return replace(found, said=said, classes=len(names), class_names=names, ignore_index=labels.ignore)


def _refuse_labels_alone(given: Folders) -> None:
    """Say what is missing from a folder into which nnU-Net wrote labels alone."""
    if given.forced or exists(given.predictions / "predict_from_raw_data_args.json"):
        expected = "CASE.npz, which nnUNetv2_predict writes with --save_probabilities"
        raise InputError(given.predictions, "no probabilities of nnU-Net", expected)


def _refuse_turned(folder: Path) -> None:
    """Refuse volumes that nnU-Net turned before it predicted: their arrays lie in other directions than the labels."""
    for path in _plans(folder):
        plans = read_json(path, "nnU-Net's plans")
        if isinstance(plans, dict) and plans.get("image_reader_writer") == _TURNED:
            expected = "SimpleITKIO or NibabelIO, whose probabilities lie as the labels do"
            raise InputError(f"{path}: image_reader_writer", _TURNED, expected)


def _plans(folder: Path) -> list[Path]:
    """Return the nearest plans.json, if there is one."""
    paths = [parent / "plans.json" for parent in (folder, folder.parent, folder.parent.parent)]
    return [path for path in paths if exists(path)][:1]


def _is_validation_of_a_fold(folder: Path) -> bool:
    """Return whether these are the cases that a fold held out, of all that have labels."""
    resolved = folder.resolve()
    return resolved.name == "validation" and resolved.parent.name.startswith("fold_")


def _read_labels(given: Folders) -> _Labels | None:
    """Return what the nearest dataset.json says, which no other one must contradict."""
    found = [_parse(read_json(path, "nnU-Net's dataset.json"), path) for path in _descriptions(given)]
    for other in found[1:]:
        if (other.groups, other.ignore) != (found[0].groups, found[0].ignore):
            raise InputError(other.path, "other labels", f"those of {found[0].path}, because both describe the maps")
    return found[0] if found else None


def _descriptions(given: Folders) -> Iterator[Path]:
    """Yield dataset.json beside the maps, in the folder of the trained model above them, and above the labels."""
    folders = [given.predictions.resolve()]
    if _is_validation_of_a_fold(given.predictions):
        folders.append(folders[0].parent.parent)
    if given.masks is not None:
        folders += [given.masks.resolve(), given.masks.resolve().parent]
    yield from (path for folder in dict.fromkeys(folders) if exists(path := folder / _DESCRIPTION))


def _parse(content: Any, path: Path) -> _Labels:
    given = content.get("labels") if isinstance(content, dict) else None
    where = f"{path}: labels"
    if not isinstance(given, dict) or not given:
        raise InputError(where, "no labels", _EXPECTED)
    if all(_NUMBER.fullmatch(key) for key in given):  # version 1: {"0": "background"}
        given = {str(name): int(label) for label, name in given.items()}
    groups = {str(name): _as_labels(labels, f"{where}.{name}") for name, labels in given.items()}
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
    listed = labels if isinstance(labels, list) else [labels]
    if not listed or not all(type(label) is int and 0 <= label <= VOID for label in listed):
        raise InputError(where, repr(labels)[:60], f"a label from 0 to {VOID}, or a list of them")
    return tuple(dict.fromkeys(listed))


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
