"""Which layouts there are, and which of them two folders have: found, or named by `--format`."""

from __future__ import annotations

from dataclasses import replace

from densecal.errors import InputError
from densecal.io.layouts.label_pngs import ADE20K, COCO_STUFF, VOC
from densecal.io.layouts.monai import MONAI
from densecal.io.layouts.nnunet import NNUNET
from densecal.io.layouts.protocol import Folders, Found, Layout
from densecal.io.layouts.rasters import CLASS_FILES, TERRATORCH
from densecal.io.layouts.road_scenes import CITYSCAPES
from densecal.io.layouts.scores import MMSEG, TRANSFORMERS

LAYOUTS: tuple[Layout, ...] = (
    NNUNET, MONAI, TRANSFORMERS, MMSEG, TERRATORCH, CLASS_FILES, CITYSCAPES, ADE20K, COCO_STUFF, VOC,
)  # fmt: skip
AUTO, PLAIN = "auto", "plain"


def layout_names() -> list[str]:
    """List what `--format` may name."""
    return [AUTO, PLAIN, *(layout.name for layout in LAYOUTS)]


def find_layouts(given: Folders) -> list[Found]:
    """Return what layouts find: nothing for plain folders, or one for the maps and one for the masks at most.

    Raises:
        InputError: Two layouts of a side fit, or one that was named does not.
    """
    if given.options.layout == PLAIN:
        return []
    named = _named(given.options.layout)
    results: list[Found] = []
    for side in ("maps", "masks"):
        if any(found.knows_labels for found in results):
            break
        found = _find_one([layout for layout in LAYOUTS if layout.side == side], named, given)
        if found is not None:
            results.append(found)
            classes = given.classes if found.classes is None else found.classes
            given = replace(given, options=found.options, classes=classes)
    return results


def _named(text: str) -> tuple[str, ...]:
    """Return the layouts that `--format` names; none for auto."""
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


def _find_one(layouts: list[Layout], named: tuple[str, ...], given: Folders) -> Found | None:
    forced = next((layout for layout in layouts if layout.name in named), None)
    if forced is not None and forced.side == "masks" and given.masks is None:
        return None  # there are no masks to lay out
    if forced is not None:
        found = forced.find(replace(given, forced=True))
        if found is None:
            where = given.predictions if forced.side == "maps" else given.masks or given.predictions
            raise InputError(where, f"no files of {forced.title}", forced.expected)
        return _titled(forced, found, given)
    fitting = [(layout, found) for layout in layouts if (found := layout.find(given)) is not None]
    if len(fitting) > 1:
        titles = " and ".join(layout.title for layout, _ in fitting)
        options = " or ".join(f"--format {layout.name}" for layout, _ in fitting)
        raise InputError(given.predictions, f"files that may be those of {titles}", options)
    return _titled(*fitting[0], given) if fitting else None


def _titled(layout: Layout, found: Found, given: Folders) -> Found:
    """Return what was found with the name of the tool; what the user said of classes must agree with it."""
    if given.classes is not None and found.classes is not None and given.classes != found.classes:
        expected = f"{found.classes}, as {layout.title} has, or --format plain"
        raise InputError("--classes", str(given.classes), expected)
    return replace(found, said=f"{layout.title}: {found.said}")
