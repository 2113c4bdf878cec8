"""Small copies of the published data sets, laid out as they are distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from . import samples


def labels(seed: int, classes: int, void: int, height: int = 30, width: int = 40) -> np.ndarray:
    """A label map with several classes and some void pixels."""
    coarse = np.random.default_rng(seed).integers(0, classes, (5, 5), dtype=np.uint8)
    whole = np.kron(coarse, np.ones((height // 5, width // 5), np.uint8))
    whole[:2] = void
    return whole


def write_pairs(
    images: Path, masks: Path, names: Iterable[str], suffix: str = ".jpg", make_mask: Callable = samples.mask
):
    for i, name in enumerate(names):
        samples.save(samples.image(i), images / f"{name}{suffix}")
        samples.save(make_mask(i), masks / f"{name}.png")


def plain(images: str, masks: str, suffix: str = ".jpg") -> Callable[[Path, list[str]], Path]:
    """A set of two folders."""

    def write(root: Path, names: list[str]) -> Path:
        write_pairs(root / images, root / masks, names, suffix)
        return root

    return write


def camo(part: str) -> Callable[[Path, list[str]], Path]:
    """Both parts' images in folders of their own, their masks in one."""

    def write(root: Path, names: list[str]) -> Path:
        other = {"Train": "Test", "Test": "Train"}[part]
        write_pairs(root / "Images" / part, root / "GT", names)
        write_pairs(root / "Images" / other, root / "GT", [f"other-{name}" for name in names])
        return root / "Images" / part

    return write


def camvid(part: str) -> Callable[[Path, list[str]], Path]:
    def write(root: Path, names: list[str]) -> Path:
        for own in ("train", "val", "test"):
            own_names = names if own == part else [f"{own}-{name}" for name in names]
            write_pairs(root / own, root / f"{own}annot", own_names, ".png", lambda i: labels(i, 11, 11))
        return root / part

    return write


def voc(root: Path, names: list[str]) -> Path:
    """JPEGImages also holds unlabelled images, SegmentationClassAug also the official validation set."""
    held_out = [f"val-{name}" for name in names]
    make_mask = lambda i: labels(i, 21, 255)  # noqa: E731
    write_pairs(root / "JPEGImages", root / "SegmentationClassAug", [*names, *held_out], make_mask=make_mask)
    write_pairs(root / "JPEGImages", root / "SegmentationClass", [*names[:1], *held_out], make_mask=make_mask)
    samples.save(samples.image(99), root / "JPEGImages" / "unlabelled.jpg")
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(names[:1]))
    (lists / "val.txt").write_text("\n".join(held_out) + "\n")
    return root


def dtd(root: Path, names: list[str]) -> Path:
    """Images in a folder for each class, lists of them in labels/, no masks."""
    for i, name in enumerate(names):
        samples.save(samples.image(i), root / "images" / name.split("_")[0] / f"{name}.jpg")
    (root / "labels").mkdir()
    (root / "labels" / "test1.txt").write_text("".join(f"{n.split('_')[0]}/{n}.jpg\n" for n in names[:2]))
    return root


SETS: dict[str, tuple[str, Callable[[Path, list[str]], Path]]] = {
    "DUTS-TR": ("DUTS-TR", plain("DUTS-TR-Image", "DUTS-TR-Mask")),
    "DUTS-TE": ("DUTS-TE", plain("DUTS-TE-Image", "DUTS-TE-Mask")),
    "DUT-OMRON": ("DUT-OMRON", plain("DUT-OMRON-image", "pixelwiseGT-new-PNG")),
    "PASCAL-S": ("PASCAL-S", plain("datasets/imgs/pascal", "datasets/masks/pascal")),
    "SOD": ("SOD", plain("Imgs", "GT")),
    "ECSSD": ("ECSSD", plain("images", "ground_truth_mask")),
    "HKU-IS": ("HKU-IS", plain("imgs", "gt", ".png")),
    "DTD": ("dtd", dtd),
    "DTD without objects": ("DTD_Texture_500", plain("Image", "GT")),
    "COD10K train": ("COD10K-v3/Train", plain("Image", "GT_Object")),
    "COD10K test": ("COD10K-v3/Test", plain("Image", "GT_Object")),
    "CAMO train": ("CAMO-V.1.0-CVIU2019", camo("Train")),
    "CAMO test": ("CAMO-V.1.0-CVIU2019", camo("Test")),
    "CHAMELEON": ("CHAMELEON", plain("Imgs", "GT")),
    "NC4K": ("NC4K", plain("Imgs", "GT")),
    "SMOKE5K train": ("SMOKE5K/train", plain("img", "gt_")),
    "SMOKE5K test": ("SMOKE5K/test", plain("img", "gt_")),
    "PASCAL VOC 2012 augmented": ("VOC2012", voc),
    "CamVid train": ("CamVid", camvid("train")),
    "CamVid val": ("CamVid", camvid("val")),
    "CamVid test": ("CamVid", camvid("test")),
}
"""Folder and writer of each set; a writer returns the path that opens the set."""


def write_set(name: str, base: Path, names: list[str]) -> Path:
    """Write a set below a folder and return the path that opens it."""
    folder, write = SETS[name]
    return write(base / folder, names)
