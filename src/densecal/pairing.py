"""Which map belongs to which mask: folders matched by file stem, and the comparisons that a tree of folders holds."""

from __future__ import annotations

from pathlib import Path

from densecal.data.images import IMAGE_SUFFIXES, MAP_SUFFIXES
from densecal.data.layouts import named_subfolders
from densecal.errors import InputError
from densecal.remote import entries, exists, is_folder
from densecal.scoring import Pair


def find_pairs(predictions: Path, masks: Path, skip_bad: bool = False) -> tuple[list[Pair], list[dict[str, str]]]:
    """Match maps and masks by stem.

    Returns:
        The pairs in order of their stems, and what was skipped (empty unless ``skip_bad``).
    """
    maps = _by_stem(predictions, MAP_SUFFIXES, "prediction map")
    truths = _by_stem(masks, IMAGE_SUFFIXES, "mask")
    lonely = [
        InputError(maps[stem], "no mask of that name", f"{masks / stem} with an image suffix")
        for stem in sorted(maps.keys() - truths.keys())
    ]
    lonely += [
        InputError(
            truths[stem],
            "no prediction map of that name",
            f"{predictions / stem} with an image or array suffix",
        )
        for stem in sorted(truths.keys() - maps.keys())
    ]
    if lonely and not skip_bad:
        more = f" ({len(lonely)} files have no partner)" if len(lonely) > 1 else ""
        raise InputError(lonely[0].where, lonely[0].found + more, lonely[0].expected)
    pairs = [Pair(stem, maps[stem], truths[stem]) for stem in sorted(maps.keys() & truths.keys())]
    return pairs, [skipped_entry(error) for error in lonely]


def find_maps(predictions: Path) -> list[Pair]:
    """The maps of a folder, for images without foreground."""
    maps = _by_stem(predictions, MAP_SUFFIXES, "prediction map")
    return [Pair(stem, maps[stem], None) for stem in sorted(maps)]


def find_comparisons(predictions: Path, masks: Path) -> list[tuple[str, str, Path, Path]]:
    """The evaluations that a folder holds: (method, data set, maps, masks).

    ``predictions`` holds maps, or METHOD folders of maps, or METHOD/DATASET folders of maps; in the last case
    ``masks`` holds a folder for every DATASET.
    """
    check_folder(predictions, "a folder of prediction maps")
    check_folder(masks, "a folder of masks")
    if _files(predictions, MAP_SUFFIXES) or not _folders(predictions):
        return [(predictions.resolve().name, dataset_name(masks), predictions, masks)]
    found = []
    for method in _folders(predictions):
        if _files(method, MAP_SUFFIXES):
            found.append((method.name, dataset_name(masks), method, masks))
            continue
        for dataset in _folders(method):
            truth = masks / dataset.name
            if not is_folder(truth):
                found_there = f"no folder {dataset.name}{named_subfolders(masks)}"
                expected = f"the masks for {dataset}, as folders of two levels are METHOD/DATASET/"
                raise InputError(masks, found_there, expected)
            found.append((method.name, dataset.name, dataset, truth))
    if not found:
        raise InputError(predictions, "no prediction maps", "maps, METHOD/ folders or METHOD/DATASET/ folders")
    return found


def check_folder(folder: Path, expected: str) -> None:
    """Refuse what is missing, and a file in place of a folder."""
    if exists(folder) and not is_folder(folder):
        raise InputError(folder, "a file", f"{expected}: unpack an archive, put a single file into a folder")
    if not is_folder(folder):
        raise InputError(folder, "no such folder", expected)


def dataset_name(masks: Path) -> str:
    """The mask folder's name, or its parent's where that only says what it holds."""
    folder = masks.resolve()
    generic = {"masks", "mask", "gt", "gts", "labels", "ground_truth", "groundtruth", "annotations"}
    return folder.parent.name if folder.name.lower() in generic and folder.parent.name else folder.name


def skipped_entry(error: InputError) -> dict[str, str]:
    """How a record names a file that was left out."""
    return {"file": error.where, "reason": f"{error.found}; expected {error.expected}"}


def _by_stem(folder: Path, suffixes: tuple[str, ...], what: str) -> dict[str, Path]:
    check_folder(folder, f"a folder of {what}s")
    found: dict[str, Path] = {}
    for path in _files(folder, suffixes):
        if path.stem in found:
            raise InputError(path, f"the same stem as {found[path.stem].name}", f"one {what} a stem")
        found[path.stem] = path
    if not found:
        raise InputError(folder, f"no {what}{named_subfolders(folder)}", f"files ending in {' '.join(suffixes)}")
    return found


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [path for path in _visible(folder, of_folders=False) if path.suffix.lower() in suffixes]


def _folders(folder: Path) -> list[Path]:
    return _visible(folder, of_folders=True)


def _visible(folder: Path, of_folders: bool) -> list[Path]:
    try:
        found = entries(folder)
    except OSError as error:
        raise InputError(folder, error.strerror or "unreadable", "a readable folder") from None
    return [path for path, is_dir in found if is_dir == of_folders and not path.name.startswith(".")]
