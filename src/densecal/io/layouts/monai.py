"""MONAI's SaveImage: NAME/NAME_trans.nii.gz, channels last, with the position of the image in the world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from densecal.errors import InputError
from densecal.io.folders import files_in, folders_in
from densecal.io.layouts.contents import by_stem, class_axis_length
from densecal.io.layouts.protocol import Folders, Layout, Match
from densecal.io.suffixes import MASK_SUFFIXES, VOLUME_SUFFIXES, stem_of
from densecal.io.urls import is_folder


def _find(folders: Folders) -> Match | None:
    if not is_folder(folders.predictions) or files_in(folders.predictions, VOLUME_SUFFIXES):
        return None
    cases = {folder.name: _endings(folder) for folder in folders_in(folders.predictions)}
    if not cases or not all(cases.values()):
        return None
    if not folders.forced and (
        folders.masks is None or not cases.keys() <= by_stem(folders.masks, MASK_SUFFIXES).keys()
    ):
        return None  # folders of methods, not of images
    ending = _choose(folders, set.intersection(*(set(endings) for endings in cases.values())))
    maps = {name: (endings[ending],) for name, endings in cases.items()}
    classes = folders.classes or class_axis_length(next(iter(maps.values()))[0], folders.options)
    channels = f"{classes} channels" if classes > 1 else "one channel"
    hint = "" if classes == 1 else " (softmax; --multilabel for sigmoids)" if not folders.options.multilabel else ""
    note = f"{len(maps)} images NAME/NAME{ending}, {channels}{hint}"
    return Match(note, replace(folders.options, strip_suffix=()), maps, classes=classes if classes > 1 else None)


def _endings(folder: Path) -> dict[str, Path]:
    """Return the volumes NAME_ENDING of the folder NAME by their ending; none if the folder holds anything else."""
    files = {stem_of(path): path for path in files_in(folder, VOLUME_SUFFIXES)}
    if not all(stem.startswith(f"{folder.name}_") for stem in files):
        return {}
    return {stem.removeprefix(folder.name): path for stem, path in files.items()}


def _choose(folders: Folders, endings: set[str]) -> str:
    """Return the ending of the names of maps: the only one, or the one given by --strip-suffix."""
    chosen = endings & set(folders.options.strip_suffix) if folders.options.strip_suffix else endings
    if len(chosen) == 1:
        return chosen.pop()
    actual = f"files NAME{', NAME'.join(sorted(endings))}" if endings else "files whose names end differently"
    raise InputError(folders.predictions, actual, "one volume per folder; --strip-suffix _trans chooses one")


MONAI = Layout("monai", "MONAI", "maps", "NAME/NAME_trans.nii.gz, as SaveImage writes", _find)
