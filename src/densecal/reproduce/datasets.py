"""The paper's data sets: where they belong, whether they are present, and smaller copies of them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from densecal.data import open_source
from densecal.data.layouts import LAYOUTS, Layout, plain
from densecal.data.published_lists import TEXTURES as TEXTURE_LIST
from densecal.data.published_lists import published_list
from densecal.data.sources import Source
from densecal.errors import InputError
from densecal.io.atomic import write_text
from densecal.io.images import save_png
from densecal.io.outputs import software

TEXTURES = "textures"


@dataclass(frozen=True)
class PaperSet:
    """A data set of the paper.

    Attributes:
        name: Its name in tables.
        layout: The published set that it is or belongs to.
        inside: The part of the set's folder that is opened, if not all of it.
        classes: 1 for foreground masks, else the number of classes.
        ood: Whether no image shows an object.
    """

    name: str
    layout: Layout
    inside: str = ""
    classes: int = 1
    ood: bool = False

    @property
    def folder(self) -> str:
        """Where it belongs, relative to the folder of all data sets."""
        return str(Path(_FOLDERS.get(self.layout.name, self.layout.name), self.inside))


@dataclass(frozen=True)
class SetFiles:
    """The files of a data set: images (a folder, list or zips), and the folder of masks if it is another one."""

    images: str | list[str]
    masks: str | None = None


_FOLDERS = {
    "DTD": "dtd", "COD10K train": "COD10K-v3", "COD10K test": "COD10K-v3", "CAMO test": "CAMO",
    "SMOKE5K train": "SMOKE5K", "SMOKE5K test": "SMOKE5K", "PASCAL VOC 2012 augmented": "VOC2012",
}  # fmt: skip
_LAYOUTS = {layout.name: layout for layout in LAYOUTS}
_SETS = (
    *(
        PaperSet(name, _LAYOUTS[name])
        for name in ("DUTS-TR", "DUTS-TE", "DUT-OMRON", "PASCAL-S", "SOD", "ECSSD", "HKU-IS", "NC4K", "CHAMELEON")
    ),
    PaperSet(TEXTURES, _LAYOUTS["DTD"], ood=True),
    PaperSet("COD10K train", _LAYOUTS["COD10K train"], "Train"),
    PaperSet("COD10K", _LAYOUTS["COD10K test"], "Test"),
    PaperSet("CAMO", _LAYOUTS["CAMO test"], "Images/Test"),
    PaperSet("SMOKE5K train", _LAYOUTS["SMOKE5K train"], "train"),
    PaperSet("SMOKE5K", _LAYOUTS["SMOKE5K test"], "test"),
    PaperSet("PASCAL VOC 2012 train", _LAYOUTS["PASCAL VOC 2012 augmented"], classes=21),
    PaperSet(
        "PASCAL VOC 2012", _LAYOUTS["PASCAL VOC 2012 augmented"], "ImageSets/Segmentation/val.txt", classes=21
    ),
)  # fmt: skip
SETS = {dataset.name: dataset for dataset in _SETS}


def find(name: str, data: Path, lists: Path) -> SetFiles | None:
    """Return a data set if it is in the folder of all data sets: as a folder, a zip or numbered zips.

    Args:
        name: Its name in tables.
        data: The folder.
        lists: Folder for a list of the paper's textures, chosen from a folder of all textures.
    """
    dataset = SETS[name]
    for known in dict.fromkeys(map(plain, (dataset.name, dataset.folder.split("/")[0], *dataset.layout.known_names))):
        entries = sorted(entry for entry in (data.iterdir() if data.is_dir() else ()) if known in _names(entry))
        zips = [str(entry) for entry in entries if entry.suffix.lower() == ".zip"]
        if zips and not dataset.inside:
            return SetFiles(zips)
        for entry in entries:
            path = entry / dataset.inside
            if path.exists():
                return _textures(path, lists) if dataset.ood else SetFiles(str(path))
    return None


def missing(name: str, data: Path) -> InputError:
    """Return an error of one line that says where to obtain a data set and where it belongs."""
    dataset = SETS[name]
    return InputError(name, f"not in {data}", f"{data / dataset.folder}, available at {dataset.layout.home}")


def missing_textures(files: SetFiles, data: Path) -> list[str]:
    """Return a line if some of the paper's textures are missing."""
    chosen, names = published_list(TEXTURE_LIST), set(open_source(files.images).names)
    present = sum(name in names for name in chosen)
    if present == len(chosen) == len(names):
        return []
    problem = f"{present} of the paper's {len(chosen)} images"
    if len(names) == present:
        return [str(InputError(TEXTURES, f"{problem} in {data}", "all of them"))]
    problem += f" and {len(names) - present} others in {data}"
    return [str(InputError(TEXTURES, problem, "the paper's alone: a folder is searched for them, a zip is not"))]


def thin(files: SetFiles, name: str, folder: Path, count: int, side: int) -> SetFiles:
    """Copy evenly chosen images, none longer than ``side``, into a folder; an earlier copy is used again.

    Args:
        files: The files of the data set.
        name: Its name in tables.
        folder: Where the copies of all data sets are.
        count: Most images to copy.
        side: Longest side in pixels.
    """
    dataset, target = SETS[name], folder / name.replace(" ", "-")
    if not target.exists():
        source = open_source(files.images, files.masks)
        build = target.with_name(f".{target.name}.writing-{os.getpid()}")
        shutil.rmtree(build, ignore_errors=True)
        names = source.names
        for i in np.unique(np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)):
            _copy(source, names[i], dataset, build, side)
        os.rename(build, target)
    return SetFiles(str(target / "images"), None if dataset.ood else str(target / "masks"))


def _copy(source: Source, name: str, dataset: PaperSet, folder: Path, side: int) -> None:
    image = Image.fromarray(source.image(name))
    width, height = (max(1, round(length * min(1.0, side / max(image.size)))) for length in image.size)
    shape = (width, height)
    _save(folder / "images" / f"{name}.png", np.asarray(image.resize(shape, Image.Resampling.BILINEAR)))
    if not dataset.ood:
        mask = source.mask(name, dataset.classes if dataset.classes > 1 else None)
        levels = mask if dataset.classes > 1 else np.where(mask > 127, 255, 0).astype(np.uint8)
        _save(
            folder / "masks" / f"{name}.png",
            np.asarray(Image.fromarray(levels).resize(shape, Image.Resampling.NEAREST)),
        )


def _save(path: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_png(path, pixels, software("reproduce"))


def _names(entry: Path) -> tuple[str, ...]:
    """Return the name of a folder or zip without case and punctuation; of a zip also without the number of a part."""
    if entry.suffix.lower() == ".zip":
        return plain(entry.stem), plain(entry.stem.rstrip("0123456789"))
    return (plain(entry.name),)


def _textures(folder: Path, lists: Path) -> SetFiles:
    """Return the paper's textures of a folder that holds more of them; one without any of them is taken as it is."""
    source = open_source(folder)
    chosen = [name for name in published_list(TEXTURE_LIST) if name in set(source.names)]
    if len(chosen) in (0, len(source.names)):
        return SetFiles(str(folder))
    file = lists / "textures.txt"
    write_text(file, "\n".join(str(source.image_location(name).path) for name in chosen) + "\n")
    return SetFiles(str(file))
