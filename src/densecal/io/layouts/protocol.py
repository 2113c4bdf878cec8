"""What a layout is: it looks at two folders, and says which files belong together and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from densecal.io.map_options import MapOptions
from densecal.io.relabel import Relabel


@dataclass(frozen=True)
class Folders:
    """What a command was given.

    Attributes:
        predictions: Folder of maps.
        masks: Masks; ``None`` where a command needs none.
        options: How maps are stored, as far as it was said.
        classes: K, if it was said.
        ignore_index: Label of void pixels, if it was said.
        forced: Whether the layout was named, so that it may look less closely.
    """

    predictions: Path
    masks: Path | None
    options: MapOptions
    classes: int | None = None
    ignore_index: int | None = None
    forced: bool = False


@dataclass(frozen=True)
class Region:
    """What one of several sigmoids per pixel stands for.

    Attributes:
        name: Of the region.
        relabel: Turns labels into 0 and 1; ``None`` where masks have a channel per region.
    """

    name: str
    relabel: Relabel | None = None


@dataclass(frozen=True)
class Found:
    """What a layout found.

    Attributes:
        said: What the user is told, after the name of the tool.
        options: Those given, completed.
        maps: Files of the map of every image, by its name; ``None`` where the layout does not say it.
        masks: Mask of every image; ``None`` where the layout does not say it.
        name_of: From the stem of a map to the name of its image, where ``maps`` is ``None``.
        classes: K, if it is known.
        ignore_index: Label of void pixels, if it is known.
        class_names: Names of the classes, if they are known.
        regions: What the sigmoids of multi-label maps stand for; empty for other maps.
        subset: Whether masks without a map are as they should be.
        knows_labels: Whether a layout of maps also says what the labels in masks mean.
        reads: Files that were read for that.
    """

    said: str
    options: MapOptions
    maps: Mapping[str, tuple[Path, ...]] | None = None
    masks: Mapping[str, Path] | None = None
    name_of: Callable[[str], str] | None = None
    classes: int | None = None
    ignore_index: int | None = None
    class_names: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    subset: bool = False
    knows_labels: bool = False
    reads: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How a tool lays out its files.

    Attributes:
        name: For ``--format``.
        title: What the user calls the tool.
        side: Whether it knows maps or masks; one of each may be found.
        expected: What its folders hold, for the error when ``--format`` names it and they do not.
        find: Looks at the folders; ``None`` where they are not laid out so.
    """

    name: str
    title: str
    side: Literal["maps", "masks"]
    expected: str
    find: Callable[[Folders], Found | None]
