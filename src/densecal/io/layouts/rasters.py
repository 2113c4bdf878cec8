"""Rasters of earth observation: those of terratorch, and one file per class, as geoai writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from densecal.errors import InputError
from densecal.io.layouts.contents import by_stem, class_axis_length, dtype_of
from densecal.io.layouts.protocol import Folders, Layout, Match

_SUFFIXES = (".tif", ".tiff")
_KINDS = ("_probabilities", "_logits")
_CLASS = re.compile(r"(.+)_class_(\d+)")


def _find_terratorch(folders: Folders) -> Match | None:
    files = by_stem(folders.predictions, _SUFFIXES)
    for kind in _KINDS:
        maps = {stem.removesuffix(kind): (path,) for stem, path in files.items() if stem.endswith(kind)}
        if maps:
            break
    else:
        return None
    first = next(iter(maps.values()))[0]
    classes = folders.classes or class_axis_length(first, folders.options)
    if not np.issubdtype(dtype_of(first), np.floating):
        expected = "floats, which terratorch predict writes with --out_dtype float32"
        raise InputError(first, f"{kind[1:]} rounded to {dtype_of(first)}", expected)
    options = replace(folders.options, logits=True) if kind == "_logits" else folders.options
    note = f"{len(maps)} rasters NAME{kind}.tif, {classes} band{'s' * (classes > 1)}"
    return Match(note, options, maps, classes=classes if classes > 1 else None)


def _find_class_files(folders: Folders) -> Match | None:
    files = by_stem(folders.predictions, (*_SUFFIXES, ".npy"))
    maps: dict[str, dict[int, Path]] = {}
    for stem, path in files.items():
        if match := _CLASS.fullmatch(stem):
            maps.setdefault(match[1], {})[int(match[2])] = path
    if not maps:
        return None
    classes = len(next(iter(maps.values())))
    for name, parts in maps.items():
        if sorted(parts) != list(range(classes)) or classes < 2:
            have = ", ".join(str(index) for index in sorted(parts))
            expected = f"NAME_class_0 to NAME_class_{max(classes, 2) - 1}, a file for every class"
            raise InputError(next(iter(parts.values())), f"files of the classes {have} for {name}", expected)
    note = f"{len(maps)} maps of {classes} files each, NAME_class_0 to NAME_class_{classes - 1}"
    return Match(note, folders.options, _in_order(maps), classes=classes)


def _in_order(maps: Mapping[str, Mapping[int, Path]]) -> dict[str, tuple[Path, ...]]:
    return {name: tuple(parts[index] for index in sorted(parts)) for name, parts in maps.items()}


TERRATORCH = Layout(
    "terratorch",
    "terratorch",
    "maps",
    "NAME_probabilities.tif or NAME_logits.tif, one band per class",
    _find_terratorch,
)
CLASS_FILES = Layout(
    "class-files", "a file per class", "maps", "NAME_class_0.tif, NAME_class_1.tif and so on, as geoai writes",
    _find_class_files,
)  # fmt: skip
