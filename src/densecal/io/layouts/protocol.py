"""The protocol of layouts: each examines two folders, and tells which files belong together and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from densecal.io.map_options import MapOptions
from densecal.io.relabel import Relabel


@dataclass(frozen=True)
class Folders:
    """The folders and options that a command was given.

    Attributes:
        predictions: Folder of maps.
        masks: Masks; ``None`` where a command needs none.
        options: How maps are stored, as far as it was given.
        classes: K, if given.
        ignore_index: Label of void pixels, if given.
        forced: Whether the user named the layout, so that it may be less strict.
    """

    predictions: Path
    masks: Path | None
    options: MapOptions
    classes: int | None = None
    ignore_index: int | None = None
    forced: bool = False


@dataclass(frozen=True)
class Region:
    """The region that one of several sigmoids per pixel stands for.

    Attributes:
        name: Name of the region.
        relabel: Turns labels into 0 and 1; ``None`` where masks have a channel per region.
    """

    name: str
    relabel: Relabel | None = None


@dataclass(frozen=True)
class Match:
    """The files that a layout recognised, and how they are read.

    Attributes:
        note: A line for the user, which follows the name of the tool.
        options: The given options, completed.
        maps: Files of the map of every image, by its name; ``None`` where the layout does not determine them.
        masks: Mask of every image; ``None`` where the layout does not determine them.
        name_of: Returns the name of an image, given the stem of its map, where ``maps`` is ``None``.
        classes: K, if it is known.
        ignore_index: Label of void pixels, if it is known.
        class_names: Names of the classes, if they are known.
        regions: Regions of multi-label maps; empty for other maps.
        subset: Whether masks without a map are allowed.
        knows_labels: Whether a layout of maps also determines the meaning of the labels in masks.
        reads: Files that the layout read.
    """

    note: str
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
    """The way in which a tool lays out its files.

    Attributes:
        name: Its name for ``--format``.
        title: Name of the tool in messages.
        side: Whether it recognises maps or masks. One layout of each may match.
        expected: Content of its folders, for the error when ``--format`` names it and they hold something else.
        find: Examines the folders; returns ``None`` where they do not have this layout.
    """

    name: str
    title: str
    side: Literal["maps", "masks"]
    expected: str
    find: Callable[[Folders], Match | None]
