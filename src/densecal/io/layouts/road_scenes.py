"""Cityscapes: masks CITY_000000_000019_gtFine_labelTrainIds.png or ..._labelIds.png, in folders of cities or in one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from densecal.errors import InputError
from densecal.io.folders import files_in, folders_in
from densecal.io.layouts.protocol import Folders, Layout, Match
from densecal.io.masks import VOID
from densecal.io.relabel import relabel
from densecal.io.suffixes import MASK_SUFFIXES, stem_of
from densecal.io.urls import is_folder

NAMES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The labelIds of the classes that are evaluated, in the order of their trainIds; the other ids of 0 to 33 are void."""
_ALL_IDS = 34
_FRAME = re.compile(r"([A-Za-z][A-Za-z-]*_\d{6}_\d{6})(_.*)?")


def _find(folders: Folders) -> Match | None:
    masks = folders.masks
    if masks is None or not is_folder(masks):
        return None
    cities = folders_in(masks)
    pngs = [path for folder in (masks, *cities) for path in files_in(folder, (".png",))]
    train_ids, ids = (_by_frame(pngs, f"{kind}.png") for kind in ("_labelTrainIds", "_labelIds"))
    if not train_ids and not ids:
        return None
    classes = folders.classes or len(NAMES)
    if classes not in (len(NAMES), _ALL_IDS):
        raise InputError(
            "--classes", str(classes), f"{len(NAMES)} for trainIds or {_ALL_IDS} for labelIds of Cityscapes"
        )
    options, chosen, kind = folders.options, train_ids, "labelTrainIds"
    if classes == _ALL_IDS:
        if not ids:
            raise InputError(masks, "no _labelIds.png", f"the masks of {_ALL_IDS} classes, or --classes {len(NAMES)}")
        chosen, kind = ids, "labelIds"
    elif len(train_ids) < len(ids):
        chosen, kind = ids, "labelIds as trainIds"
        void = VOID if folders.ignore_index is None else folders.ignore_index
        table = dict.fromkeys((*range(_ALL_IDS), VOID), void) | {label: index for index, label in enumerate(IDS)}
        options = replace(options, relabel=relabel(table, "Cityscapes"))
    names = NAMES if classes == len(NAMES) else ()
    match = Match(
        f"{len(chosen)} masks of {classes} classes, {kind}", options, masks=chosen, name_of=_frame,
        classes=classes, class_names=names,
    )  # fmt: skip
    maps = _maps_in_cities(folders, {city.name for city in cities})
    return replace(match, maps=maps) if maps else match


def _by_frame(files: list[Path], end: str) -> dict[str, Path]:
    return {_frame(stem_of(path)): path for path in files if path.name.endswith(end) and _FRAME.fullmatch(path.stem)}


def _frame(stem: str) -> str:
    """Return the part of a name with city, sequence and frame, which all files of an image share."""
    match = _FRAME.fullmatch(stem)
    return stem if match is None else match[1]


def _maps_in_cities(folders: Folders, cities: set[str]) -> dict[str, tuple[Path, ...]]:
    """Return maps that lie in folders of cities, as the masks do; none where they lie side by side."""
    if files_in(folders.predictions, MASK_SUFFIXES):
        return {}
    city_folders = [folder for folder in folders_in(folders.predictions) if folder.name in cities]
    return {stem_of(path): (path,) for folder in city_folders for path in files_in(folder, MASK_SUFFIXES)}


CITYSCAPES = Layout(
    "cityscapes", "Cityscapes", "masks", "CITY_000000_000019_gtFine_labelTrainIds.png or ..._labelIds.png", _find
)
