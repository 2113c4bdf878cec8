"""Matching maps with masks: by file stem, in folders, in data sets and in lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from string import ascii_letters
from typing import TypeVar

from densecal.data.layouts import MASK_FOLDERS, find_layout, plain
from densecal.data.sources import find_files
from densecal.errors import InputError
from densecal.io.folders import files_in, folders_in, is_image_name, listed_once, subfolder_hint
from densecal.io.layouts.protocol import Folders, Match, Region
from densecal.io.layouts.registry import find_layouts
from densecal.io.map_files import map_suffixes
from densecal.io.map_options import AS_STORED, Channel, MapOptions
from densecal.io.pairs import Pair, pair_files
from densecal.io.suffixes import MASK_SUFFIXES, stem_of
from densecal.io.urls import exists, is_folder

Files = TypeVar("Files", Path, tuple[Path, ...])

_MASKS = "a folder of masks, a data set, or a list of lines IMAGE MASK"


@dataclass(frozen=True)
class Plan:
    """The pairs of maps and masks, and how both are read.

    Attributes:
        pairs: The pairs, sorted by stem.
        unpaired: An error for each file that has no partner.
        options: How maps and masks are stored.
        classes: K; ``None`` for foreground maps.
        ignore_index: Label of void pixels.
        class_names: Names of the classes.
        regions: Regions of multi-label maps; empty for other maps, and once one is chosen.
        notes: What the layouts recognised, one line each.
        reads: Files that the layouts read.
    """

    pairs: list[Pair]
    unpaired: list[InputError]
    options: MapOptions
    classes: int | None = None
    ignore_index: int | None = None
    class_names: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    notes: tuple[str, ...] = ()
    reads: tuple[Path, ...] = ()

    def files(self) -> Iterator[Path]:
        """Yield all files that are read."""
        yield from self.reads
        yield from pair_files(self.pairs)


def find_plan(
    predictions: Path,
    masks: Path | None,
    options: MapOptions = AS_STORED,
    classes: int | None = None,
    ignore_index: int | None = None,
    class_names: tuple[str, ...] = (),
    skip_bad: bool = False,
) -> Plan:
    """Find which maps belong to which masks, and what the folders tell about how to read them.

    Args:
        predictions: Folder of maps.
        masks: Masks, as for `find_masks`; ``None`` for maps without masks.
        options: How maps are stored, and which layouts to look for.
        classes: K, if given.
        ignore_index: Label of void pixels, if given.
        class_names: Names of the classes, if given.
        skip_bad: List files without a partner instead of refusing them.

    Raises:
        InputError: Files have no partner, or their layout is ambiguous.
    """
    check_folder(predictions, "a folder of prediction maps")
    with listed_once():
        matches = find_layouts(Folders(predictions, masks, options, classes, ignore_index))
        pairs, unpaired = _match(predictions, masks, matches, options.strip_suffix, skip_bad)
    plan = Plan(pairs, unpaired, options, classes, ignore_index, class_names)
    for match in matches:
        plan = replace(
            plan,
            options=match.options,
            classes=match.classes or plan.classes,
            ignore_index=match.ignore_index if plan.ignore_index is None else plan.ignore_index,
            class_names=plan.class_names or match.class_names,
            regions=plan.regions or match.regions,
            notes=(*plan.notes, match.note),
            reads=(*plan.reads, *match.reads),
        )
    return _choose_region(_with_regions(plan, predictions), predictions)


def _with_regions(plan: Plan, predictions: Path) -> Plan:
    """Return a plan with a region for every channel of multi-label maps whose layout does not name them."""
    if plan.regions or not plan.options.multilabel:
        if plan.options.region is not None and not plan.regions:
            raise InputError("--region", plan.options.region, "maps of several regions, or --multilabel as well")
        return plan
    if not plan.classes:
        raise InputError(predictions, "--multilabel", "--classes K as well, the number of probabilities per pixel")
    names = plan.class_names or tuple(str(index) for index in range(plan.classes))
    return replace(plan, regions=tuple(Region(name) for name in names))


def _choose_region(plan: Plan, predictions: Path) -> Plan:
    """Return the plan of the requested region, whose maps are foreground maps, if one is requested."""
    name, names = plan.options.region, [region.name for region in plan.regions]
    if name is None or not plan.regions:
        return plan
    if name not in names:
        raise InputError("--region", name, f"one of {', '.join(names)}, the regions of {predictions}")
    region = plan.regions[names.index(name)]
    channel = Channel(names.index(name), len(names))
    options = replace(plan.options, channel=channel, relabel=region.relabel)
    return replace(plan, options=options, classes=None, class_names=(), regions=())


def find_pairs(
    predictions: Path, masks: Path, skip_bad: bool = False, strip: tuple[str, ...] = ()
) -> tuple[list[Pair], list[InputError]]:
    """Match maps and masks of plain folders by stem.

    Args:
        predictions: Folder of maps.
        masks: Masks, as for `find_masks`.
        skip_bad: Return files without a partner instead of refusing them.
        strip: Endings that are removed from stems, such as ``_pred`` or ``_mask``.

    Returns:
        The pairs sorted by stem, and an error for each file that has no partner (empty unless
        ``skip_bad``).
    """
    return _match(predictions, masks, [], strip, skip_bad)


def find_maps(predictions: Path, strip: tuple[str, ...] = ()) -> list[Pair]:
    """List the maps of a plain folder, for images without foreground, by their stems without the endings to strip."""
    return _match(predictions, None, [], strip, False)[0]


def _match(
    predictions: Path, masks: Path | None, matches: list[Match], strip: tuple[str, ...], skip_bad: bool
) -> tuple[list[Pair], list[InputError]]:
    """Match maps and masks by what layouts recognise, and otherwise by the stems of files."""
    maps = next((match.maps for match in matches if match.maps is not None), None)
    if maps is None:
        stored = _by_stem(predictions, map_suffixes(), "prediction map", strip)
        maps = {stem: (path,) for stem, path in stored.items()}
    else:
        maps = _unique(((_strip(stem, strip), files) for stem, files in maps.items()), "prediction map")
    name_of = next((match.name_of for match in matches if match.name_of is not None), None)
    if name_of is not None:
        maps = _unique(((name_of(stem), files) for stem, files in maps.items()), "prediction map")
    if masks is None:
        return [_pair(stem, maps[stem], None) for stem in sorted(maps)], []
    truths = next((match.masks for match in matches if match.masks is not None), None)
    if truths is None:
        truths = find_masks(masks, strip)
    unpaired = [
        InputError(maps[stem][0], "no mask of that name", f"a mask of the same name in {masks}")
        for stem in sorted(maps.keys() - truths.keys())
    ]
    if not any(match.subset for match in matches):
        unpaired += [
            InputError(
                truths[stem], "no prediction map of that name", f"{predictions / stem} with an image or array suffix"
            )
            for stem in sorted(truths.keys() - maps.keys())
        ]
    if unpaired and not skip_bad:
        more = f" ({len(unpaired)} files have no partner)" if len(unpaired) > 1 else ""
        hint = "" if maps.keys() & truths.keys() else _ends_hint(sorted(maps), sorted(truths))
        raise InputError(unpaired[0].where, unpaired[0].found + more, unpaired[0].expected + hint)
    return [_pair(stem, maps[stem], truths[stem]) for stem in sorted(maps.keys() & truths.keys())], unpaired


def _ends_hint(maps: list[str], truths: list[str]) -> str:
    """Name the options that make the names of maps and masks equal, if these differ only in their endings."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(maps[0], truths[0], strict=False))
    common = "".join(letter for letter, _ in same)
    if common not in (maps[0], truths[0]):  # do not split a word
        common = common.rstrip(ascii_letters).rstrip("_-. ")
    ends = tuple(end for end in (maps[0][len(common) :], truths[0][len(common) :]) if end)
    if not common or [_strip(stem, ends) for stem in maps] != [_strip(stem, ends) for stem in truths]:
        return ""
    return ", or " + " ".join(f"--strip-suffix {end}" for end in ends)


def _pair(stem: str, files: tuple[Path, ...], mask: Path | None) -> Pair:
    return Pair(stem, files[0], mask, files if len(files) > 1 else ())


def find_masks(masks: Path, strip: tuple[str, ...] = ()) -> dict[str, Path]:
    """Return masks by stem.

    Args:
        masks: A folder of masks; the folder of a data set, with its masks under one of the usual names or as it was
            published; or a list file with lines ``IMAGE MASK``, whose masks are named by their images.
        strip: Endings that are removed from stems.

    Raises:
        InputError: There are no masks.
    """
    if not exists(masks):
        raise InputError(masks, "no such folder", _MASKS)
    if masks.suffix.lower() == ".zip" or (is_image_name(masks.name) and not is_folder(masks)):
        raise InputError(masks, "a file", f"{_MASKS}: unpack an archive, put a single file into a folder")
    if is_folder(masks) and find_layout(masks) is None:
        return _by_stem(_folder_of_masks(masks), MASK_SUFFIXES, "mask", strip)
    files = find_files(masks)
    if not files.masks:
        raise InputError(masks, "images without masks", _MASKS)
    return _unique(((_strip(name, strip), location.path) for name, location in files.masks.items()), "mask")


def _folder_of_masks(folder: Path) -> Path:
    """Return the only inner folder with a usual name, such as `Mask`, if a folder itself holds no masks."""
    inner = [path for path in folders_in(folder) if plain(path.name) in MASK_FOLDERS]
    return inner[0] if len(inner) == 1 and not files_in(folder, MASK_SUFFIXES) else folder


def find_comparisons(
    predictions: Path, masks: Path, options: MapOptions = AS_STORED
) -> list[tuple[str, str, Path, Path]]:
    """List the evaluations that a folder holds, each as (method, data set, maps, masks).

    ``predictions`` holds maps, or METHOD folders of maps, or METHOD/DATASET folders of maps; in the last case
    ``masks`` holds a folder for every DATASET. A layout with a folder per image counts as maps.
    """
    check_folder(predictions, "a folder of prediction maps")
    if not exists(masks):
        raise InputError(masks, "no such folder", _MASKS)
    if not folders_in(predictions) or _holds_maps(predictions, masks, options):
        return [(predictions.resolve().name, dataset_name(masks), predictions, masks)]
    comparisons = []
    for method in folders_in(predictions):
        if _holds_maps(method, masks, options):
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


def _holds_maps(folder: Path, masks: Path, options: MapOptions) -> bool:
    """Return whether a folder holds maps, side by side or in folders of a layout."""
    if files_in(folder, map_suffixes()):
        return True
    try:
        with listed_once():
            return any(match.maps is not None for match in find_layouts(Folders(folder, masks, options)))
    except InputError:
        if options.layout == "auto":
            raise
        return False  # the layout that --format names may be that of the inner folders


def check_folder(folder: Path, expected: str) -> None:
    """Raise an InputError if a folder is missing, or is a file."""
    if exists(folder) and not is_folder(folder):
        raise InputError(folder, "a file", f"{expected}: unpack an archive, put a single file into a folder")
    if not is_folder(folder):
        raise InputError(folder, "no such folder", expected)


def dataset_name(masks: Path) -> str:
    """Return the name of the mask folder, or that of its parent if the folder has a generic name such as `masks`.

    A list has the name of its file.
    """
    folder = masks.resolve()
    if masks.is_file():
        return folder.stem
    generic = {"masks", "mask", "gt", "gts", "labels", "ground_truth", "groundtruth", "annotations"}
    return folder.parent.name if folder.name.lower() in generic and folder.parent.name else folder.name


def _by_stem(folder: Path, suffixes: tuple[str, ...], kind: str, strip: tuple[str, ...] = ()) -> dict[str, Path]:
    check_folder(folder, f"a folder of {kind}s")
    paths = _unique(((_strip(stem_of(path), strip), path) for path in files_in(folder, suffixes)), kind)
    if not paths:
        raise InputError(folder, f"no {kind}{subfolder_hint(folder)}", f"files ending in {' '.join(suffixes)}")
    return paths


def _unique(files_by_name: Iterable[tuple[str, Files]], kind: str) -> dict[str, Files]:
    """Return files by name; each is a path, or the paths of a map with several files."""
    paths: dict[str, Files] = {}
    for stem, files in files_by_name:
        if stem in paths:
            first, second = (entry if isinstance(entry, Path) else entry[0] for entry in (paths[stem], files))
            raise InputError(second, f"the same stem as {first.name}", f"one {kind} per stem")
        paths[stem] = files
    return paths


def _strip(stem: str, ends: tuple[str, ...]) -> str:
    """Return a stem without the first of the endings that it has. A stem that equals an ending stays."""
    end = next((end for end in ends if stem.endswith(end) and stem != end), "")
    return stem.removesuffix(end)
