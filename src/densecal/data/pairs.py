"""Which maps belong to which masks: by file stem, in folders, in data sets and in lists."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from densecal.data.layouts import find_layout
from densecal.data.sources import find_files
from densecal.errors import InputError
from densecal.io.folders import files_in, folders_in, is_image_name, subfolder_hint
from densecal.io.map_files import map_suffixes
from densecal.io.pairs import Pair
from densecal.io.suffixes import MASK_SUFFIXES, stem_of
from densecal.io.urls import exists, is_folder

_MASKS = "a folder of masks, a data set, or a list of lines IMAGE MASK"


def find_pairs(
    predictions: Path, masks: Path, skip_bad: bool = False, strip: tuple[str, ...] = ()
) -> tuple[list[Pair], list[InputError]]:
    """Match maps and masks by stem.

    Args:
        predictions: Folder of maps.
        masks: Masks, as for `find_masks`.
        skip_bad: Return files without a partner in place of refusing them.
        strip: Ends of stems that are left out, such as ``_pred`` or ``_mask``.

    Returns:
        The pairs sorted by stem, and an error for each file that has no partner (empty unless
        ``skip_bad``).
    """
    maps = _by_stem(predictions, map_suffixes(), "prediction map", strip)
    truths = find_masks(masks, strip)
    unpaired = [
        InputError(maps[stem], "no mask of that name", f"a mask of the same name in {masks}")
        for stem in sorted(maps.keys() - truths.keys())
    ]
    unpaired += [
        InputError(
            truths[stem],
            "no prediction map of that name",
            f"{predictions / stem} with an image or array suffix",
        )
        for stem in sorted(truths.keys() - maps.keys())
    ]
    if unpaired and not skip_bad:
        more = f" ({len(unpaired)} files have no partner)" if len(unpaired) > 1 else ""
        raise InputError(unpaired[0].where, unpaired[0].found + more, unpaired[0].expected)
    return [Pair(stem, maps[stem], truths[stem]) for stem in sorted(maps.keys() & truths.keys())], unpaired


def find_masks(masks: Path, strip: tuple[str, ...] = ()) -> dict[str, Path]:
    """Return masks by stem.

    Args:
        masks: A folder of masks; the folder of a data set, with its masks under one of the usual names or as it was
            published; or a list file with lines ``IMAGE MASK``, whose masks are named by their images.
        strip: Ends of stems that are left out.

    Raises:
        InputError: There are no masks.
    """
    if not exists(masks):
        raise InputError(masks, "no such folder", _MASKS)
    if masks.suffix.lower() == ".zip" or (is_image_name(masks.name) and not is_folder(masks)):
        raise InputError(masks, "a file", f"{_MASKS}: unpack an archive, put a single file into a folder")
    if is_folder(masks) and find_layout(masks) is None:
        return _by_stem(masks, MASK_SUFFIXES, "mask", strip)
    files = find_files(masks)
    if not files.masks:
        raise InputError(masks, "images without masks", _MASKS)
    return _unique(((_strip(name, strip), location.path) for name, location in files.masks.items()), "mask")


def find_maps(predictions: Path, strip: tuple[str, ...] = ()) -> list[Pair]:
    """List the maps of a folder, for images without foreground; ends of stems to strip are left out."""
    maps = _by_stem(predictions, map_suffixes(), "prediction map", strip)
    return [Pair(stem, maps[stem], None) for stem in sorted(maps)]


def find_comparisons(predictions: Path, masks: Path) -> list[tuple[str, str, Path, Path]]:
    """List the evaluations that a folder holds, each as (method, data set, maps, masks).

    ``predictions`` holds maps, or METHOD folders of maps, or METHOD/DATASET folders of maps; in the last case
    ``masks`` holds a folder for every DATASET.
    """
    check_folder(predictions, "a folder of prediction maps")
    if not exists(masks):
        raise InputError(masks, "no such folder", _MASKS)
    if files_in(predictions, map_suffixes()) or not folders_in(predictions):
        return [(predictions.resolve().name, dataset_name(masks), predictions, masks)]
    comparisons = []
    for method in folders_in(predictions):
        if files_in(method, map_suffixes()):
            comparisons.append((method.name, dataset_name(masks), method, masks))
            continue
        for dataset in folders_in(method):
            truth = masks / dataset.name
            if not is_folder(truth):
                missing = f"no folder {dataset.name}{subfolder_hint(masks)}"
                expected = f"the masks for {dataset}, because two levels of folders are read as METHOD/DATASET/"
                raise InputError(masks, missing, expected)
            comparisons.append((method.name, dataset.name, dataset, truth))
    if not comparisons:
        raise InputError(predictions, "no prediction maps", "maps, METHOD/ folders or METHOD/DATASET/ folders")
    return comparisons


def check_folder(folder: Path, expected: str) -> None:
    """Raise an InputError if a folder is missing, or is a file."""
    if exists(folder) and not is_folder(folder):
        raise InputError(folder, "a file", f"{expected}: unpack an archive, put a single file into a folder")
    if not is_folder(folder):
        raise InputError(folder, "no such folder", expected)


def dataset_name(masks: Path) -> str:
    """Return the name of the mask folder, or that of its parent if the folder has a generic name such as `masks`.

    A list is called what its file is called.
    """
    folder = masks.resolve()
    if masks.is_file():
        return folder.stem
    generic = {"masks", "mask", "gt", "gts", "labels", "ground_truth", "groundtruth", "annotations"}
    return folder.parent.name if folder.name.lower() in generic and folder.parent.name else folder.name


def _by_stem(folder: Path, suffixes: tuple[str, ...], what: str, strip: tuple[str, ...] = ()) -> dict[str, Path]:
    check_folder(folder, f"a folder of {what}s")
    paths = _unique(((_strip(stem_of(path), strip), path) for path in files_in(folder, suffixes)), what)
    if not paths:
        raise InputError(folder, f"no {what}{subfolder_hint(folder)}", f"files ending in {' '.join(suffixes)}")
    return paths


def _unique(named: Iterable[tuple[str, Path]], what: str) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for stem, path in named:
        if stem in paths:
            raise InputError(path, f"the same stem as {paths[stem].name}", f"one {what} per stem")
        paths[stem] = path
    return paths


def _strip(stem: str, ends: tuple[str, ...]) -> str:
    """Return a stem without the first of the ends that it has and is not itself."""
    end = next((end for end in ends if stem.endswith(end) and stem != end), "")
    return stem.removesuffix(end)
