"""Generated data laid out like the paper's sets, for the scale ``smoke``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from densecal.data.published_lists import TEXTURES as TEXTURE_LIST
from densecal.data.published_lists import published_list
from densecal.data.scenes import generate
from densecal.io.images import save_png
from densecal.io.outputs import software
from densecal.reproduce.datasets import SETS, PaperSet
from densecal.reproduce.items import MAPS, ScaleSettings

NETWORKS = ("MSRNet", "EGNet", "EDN")
"""Published networks with generated maps; the others are missing, as they are for most users."""
_LABELS = 20
_USUAL = {"COD10K": ("Image", "GT_Object"), "COD10K train": ("Image", "GT_Object"), "SMOKE5K": ("img", "gt")}
_VOC = "ImageSets/Segmentation"


def write_data(data: Path, scale: ScaleSettings) -> None:
    """Write every data set of the paper, with a few scenes each, unless that was done before."""
    if data.exists():
        return
    build = data.with_name(f".{data.name}.writing-{os.getpid()}")
    shutil.rmtree(build, ignore_errors=True)
    for seed, dataset in enumerate(SETS.values()):
        is_training = dataset.name.endswith("train") or dataset.name == "DUTS-TR"
        count = (scale.train if is_training else scale.test) or 1
        _write_set(build, dataset, count, scale.side or 48, seed)
    os.rename(build, data)


def _write_set(data: Path, dataset: PaperSet, count: int, side: int, seed: int) -> None:
    scenes = generate(count, side, seed)
    images, masks = _folders(data, dataset)
    names = [f"{dataset.name.replace(' ', '-')}-{i}" for i in range(count)]
    for i, (name, image, mask) in enumerate(zip(names, scenes.images, scenes.masks, strict=True)):
        if dataset.ood:
            # an image without objects: one patch, repeated
            texture = np.tile(image[: side // 4, : side // 4], (4, 4, 1))
            name = published_list(TEXTURE_LIST)[i]
            _save(images / name.partition("_")[0] / f"{name}.png", texture)
            _save(images / "unlisted" / f"unlisted_{i:04}.png", texture)
            continue
        _save(images / f"{name}.png", image)
        _save(masks / f"{name}.png", mask if dataset.classes == 1 else np.where(mask > 0, i % _LABELS + 1, 0))
        for number, network in enumerate(NETWORKS if dataset.classes == 1 else ()):
            sharp = 255 * scenes.probability[i] ** (number + 1)
            _save(data / MAPS / network / dataset.name / f"{name}.png", sharp)
    if dataset.classes > 1:
        listed = data / dataset.folder if dataset.inside else data / dataset.folder / _VOC / "trainaug.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(names) + "\n", encoding="utf-8")


def _folders(data: Path, dataset: PaperSet) -> tuple[Path, Path]:
    """Return where the set has its images and masks."""
    root = data / dataset.folder
    if dataset.ood:
        return root / "images", root
    if dataset.classes > 1:
        root = data / Path(dataset.folder).parts[0]
    if dataset.layout.part == "test" and dataset.layout.folders:  # CAMO: the folder of images is what is opened
        return root, root.parents[1] / dataset.layout.folders[0][1]
    images, masks = (*dataset.layout.folders, _USUAL.get(dataset.name, ("images", "masks")))[0]
    return root / images, root / masks


def _save(path: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_png(path, pixels.astype(np.uint8), software("reproduce"))
