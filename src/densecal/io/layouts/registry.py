"""All layouts, and the choice of those that two folders have: recognised, or named by `--format`."""

from __future__ import annotations

from dataclasses import replace

from densecal.errors import InputError
from densecal.io.layouts.label_pngs import ADE20K, COCO_STUFF, VOC
from densecal.io.layouts.monai import MONAI
from densecal.io.layouts.nnunet import NNUNET
from densecal.io.layouts.protocol import Folders, Layout, Match
from densecal.io.layouts.rasters import CLASS_FILES, TERRATORCH
from densecal.io.layouts.road_scenes import CITYSCAPES
from densecal.io.layouts.scores import MMSEG, TRANSFORMERS

LAYOUTS: tuple[Layout, ...] = (
    NNUNET, MONAI, TRANSFORMERS, MMSEG, TERRATORCH, CLASS_FILES, CITYSCAPES, ADE20K, COCO_STUFF, VOC,
)  # fmt: skip
AUTO, PLAIN = "auto", "plain"


def layout_names() -> list[str]:
    """List the values of `--format`."""
    return [AUTO, PLAIN, *(layout.name for layout in LAYOUTS)]


def find_layouts(folders: Folders) -> list[Match]:
    """Return the matching layouts: none for plain folders, else at most one for the maps and one for the masks.

    Raises:
        InputError: Two layouts of one side match, or one that was named does not.
    """
    if folders.options.layout == PLAIN:
        return []
    names = _parse_names(folders.options.layout)
    results: list[Match] = []
    for side in ("maps", "masks"):
        if any(match.knows_labels for match in results):
            break
        match = _find_one([layout for layout in LAYOUTS if layout.side == side], names, folders)
        if match is not None:
            results.append(match)
            classes = folders.classes if match.classes is None else match.classes
            folders = replace(folders, options=match.options, classes=classes)
    return results


def _parse_names(text: str) -> tuple[str, ...]:
    """Return the layouts that `--format` names, none for auto."""
    names = tuple(name.strip() for name in text.split(","))
    known = layout_names()
    if names == (AUTO,):
        return ()
    for name in names:
        if name not in known[2:]:
            raise InputError("--format", repr(name), f"{', '.join(known)}, or one for maps and one for masks: a,b")
    for side in ("maps", "masks"):
        same = [layout.name for layout in LAYOUTS if layout.side == side and layout.name in names]
        if len(same) > 1:
            raise InputError("--format", ",".join(same), f"one of them, because both lay out {side}")
    return names


def _find_one(layouts: list[Layout], names: tuple[str, ...], folders: Folders) -> Match | None:
    forced = next((layout for layout in layouts if layout.name in names), None)
    if forced is not None and forced.side == "masks" and folders.masks is None:
        return None  # there are no masks to lay out
    if forced is not None:
        match = forced.find(replace(folders, forced=True))
        if match is None:
            where = folders.predictions if forced.side == "maps" else folders.masks or folders.predictions
            raise InputError(where, f"no files of {forced.title}", forced.expected)
        return _with_title(forced, match, folders)
    candidates = [(layout, match) for layout in layouts if (match := layout.find(folders)) is not None]
    if len(candidates) > 1:
        titles = " and ".join(layout.title for layout, _ in candidates)
        options = " or ".join(f"--format {layout.name}" for layout, _ in candidates)
        raise InputError(folders.predictions, f"files that may be those of {titles}", options)
    return _with_title(*candidates[0], folders) if candidates else None


def _with_title(layout: Layout, match: Match, folders: Folders) -> Match:
    """Return a match with the name of the tool in its note; refuse a number of classes that disagrees with it."""
    if folders.classes is not None and match.classes is not None and folders.classes != match.classes:
        expected = f"{match.classes}, as {layout.title} has, or --format plain"
        raise InputError("--classes", str(folders.classes), expected)
    return replace(match, note=f"{layout.title}: {match.note}")
