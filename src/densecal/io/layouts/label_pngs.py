"""Label PNGs of ADE20K, COCO-Stuff and PASCAL VOC: the number of classes, the void label, and the images of a set."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from densecal.errors import InputError
from densecal.io.documents import read_lines
from densecal.io.folders import files_in
from densecal.io.layouts.contents import by_stem
from densecal.io.layouts.protocol import Folders, Layout, Match
from densecal.io.masks import VOID
from densecal.io.relabel import relabel
from densecal.io.suffixes import MASK_SUFFIXES
from densecal.io.urls import is_folder

VOC_NAMES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_ADE_NAME = re.compile(r"ADE_(train|val|test)_\d{8}")
_ADE = 150
_COCO_NAME = re.compile(r"(\d{12})(_labelTrainIds)?")
_COCO_IDS, _COCO = 182, 171
_COCO_MISSING = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)
"""Labels of COCO-Stuff, from 0, that no image has."""


def _find_ade20k(folders: Folders) -> Match | None:
    """Find masks whose label 0 is void and whose classes are 1 to 150."""
    masks = _masks(folders)
    if not masks or not all(_ADE_NAME.fullmatch(stem) for stem in masks):
        return None
    classes = folders.classes or _ADE
    if classes == _ADE + 1:
        return Match(f"{len(masks)} masks, label 0 is class 0", folders.options, masks=masks, classes=classes)
    if classes != _ADE:
        raise InputError("--classes", str(classes), f"{_ADE} for ADE20K, or {_ADE + 1} where label 0 is a class too")
    void = VOID if folders.ignore_index is None else folders.ignore_index
    table = {0: void} | {label: label - 1 for label in range(1, _ADE + 1)}
    options = replace(folders.options, relabel=relabel(table, "ADE20K"))
    note = f"{len(masks)} masks, labels 1 to {_ADE} are classes 0 to {_ADE - 1}, label 0 is void"
    return Match(note, options, masks=masks, classes=classes)


def _find_coco_stuff(folders: Folders) -> Match | None:
    """Find the masks of stuffthingmaps, or those of mmsegmentation's converter, whose labels have no gaps."""
    masks = _masks(folders)
    matches = {stem: _COCO_NAME.fullmatch(stem) for stem in masks}
    if not masks or folders.masks is None or not all(matches.values()):
        return None
    converted = [stem for stem, match in matches.items() if match is not None and match[2]]
    parents = (folders.masks.resolve().name, folders.masks.resolve().parent.name)
    if not converted and not folders.forced and not any(name.startswith("stuffthingmaps") for name in parents):
        return None
    if converted and len(converted) < len(masks):  # the converter writes beside the masks that it reads
        masks = {stem: masks[stem] for stem in converted}
    classes = folders.classes or _COCO
    expected = (_COCO,) if converted else (_COCO, _COCO_IDS)
    if classes not in expected:
        raise InputError("--classes", str(classes), " or ".join(map(str, expected)) + " for COCO-Stuff")
    options, note = folders.options, f"{len(masks)} masks of {classes} classes"
    if not converted and classes == _COCO:
        kept = [label for label in range(_COCO_IDS) if label not in _COCO_MISSING]
        void = VOID if folders.ignore_index is None else folders.ignore_index
        table = {VOID: void} | {label: index for index, label in enumerate(kept)}
        options = replace(options, relabel=relabel(table, "COCO-Stuff"))
        note += f" (of {_COCO_IDS} labels, {len(_COCO_MISSING)} do not occur)"
    by_image = {stem.removesuffix("_labelTrainIds"): path for stem, path in masks.items()}
    return Match(note, options, masks=by_image, classes=classes)


def _find_voc(folders: Folders) -> Match | None:
    """Find SegmentationClass, which holds the masks of several lists of images, one of which is evaluated."""
    folder = folders.masks
    if folder is None or not is_folder(folder):
        return None
    resolved = folder.resolve()
    is_devkit = resolved.name.startswith("SegmentationClass") and _has_lists(resolved)
    if not is_devkit and not folders.forced:
        return None
    masks = _masks(folders)
    if not masks:
        return None
    classes = folders.classes or len(VOC_NAMES)
    maps = by_stem(folders.predictions, MASK_SUFFIXES).keys()
    lists = files_in(resolved.parent / "ImageSets" / "Segmentation", (".txt",)) if _has_lists(resolved) else []
    chosen = next((path for path in lists if _names(path) == maps), None)
    names = VOC_NAMES if classes == len(VOC_NAMES) else ()
    images = f"the {len(maps)} images of {chosen.name}" if chosen else f"{len(masks)} masks"
    return Match(
        f"{images}, {classes} classes, label {VOID} is void", folders.options, masks=masks, classes=classes,
        class_names=names, subset=chosen is not None, reads=tuple(lists),
    )  # fmt: skip


def _has_lists(folder: Path) -> bool:
    return is_folder(folder.parent / "ImageSets" / "Segmentation")


def _names(path: Path) -> set[str]:
    return {line.split()[0] for line in read_lines(path, "one name per line") if line.strip()}


def _masks(folders: Folders) -> dict[str, Path]:
    return {} if folders.masks is None else by_stem(folders.masks, (".png",))


ADE20K = Layout("ade20k", "ADE20K", "masks", "ADE_val_00000001.png and so on", _find_ade20k)
COCO_STUFF = Layout(
    "coco-stuff", "COCO-Stuff", "masks", "000000000139.png or 000000000139_labelTrainIds.png", _find_coco_stuff
)
VOC = Layout("voc", "PASCAL VOC", "masks", "SegmentationClass/2007_000033.png", _find_voc)
