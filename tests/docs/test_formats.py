"""Every row of docs/formats.md runs as printed, on files of that kind, and gives the figures of the probabilities."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image
from safetensors.numpy import save_file

from tests.adversarial.common import densecal

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
K = 3
RNG = np.random.default_rng(0)
Z = {stem: RNG.normal(0, 2, (K, 10, 14)) for stem in ("x", "y")}
LABELS = {stem: RNG.integers(0, K, (10, 14)).astype(np.uint8) for stem in Z}
Writer = Callable[[Path, str, np.ndarray], object]


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(axis=0)


def png(path: Path, p: np.ndarray, levels: int, kind: type) -> None:
    Image.fromarray(np.rint(p * levels).astype(kind)).save(path)


def tiff(path: Path, p: np.ndarray, **layout: object) -> None:
    tifffile.imwrite(path, p, photometric="minisblack", **layout)


FOREGROUND: list[Writer] = [
    lambda f, s, z: png(f / f"{s}.png", sigmoid(z), 255, np.uint8),
    lambda f, s, z: tiff(f / f"{s}.tif", sigmoid(z)),
    lambda f, s, z: np.save(f / f"{s}.npy", 100 * sigmoid(z)),
    lambda f, s, z: png(f / f"{s}.png", sigmoid(z), 255, np.uint16),
    lambda f, s, z: np.save(f / f"{s}.npy", z[:1]),
]
CLASSES: list[Writer] = [
    lambda f, s, z: np.save(f / f"{s}.npy", softmax(z)),
    lambda f, s, z: np.save(f / f"{s}.npy", softmax(z).transpose(1, 2, 0)),
    lambda f, s, z: np.save(f / f"{s}.npy", z),
    lambda f, s, z: np.savez(f / f"{s}.npz", probabilities=softmax(z), other=np.zeros(2)),
    lambda f, s, z: tiff(f / f"{s}.tif", softmax(z), planarconfig="separate"),
    lambda f, s, z: tiff(f / f"{s}.tif", softmax(z)),
    lambda f, s, z: tiff(f / f"{s}.tif", np.rint(255 * softmax(z)).astype(np.uint8), planarconfig="separate"),
]
NAMED: list[Writer] = [lambda f, s, z: png(f / f"{s}_pred.png", sigmoid(z), 255, np.uint8)]


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z[0]))


def rows(section: int) -> list[str]:
    """Return the commands of a table: of the first section, or of that of other tools."""
    table = PAGE.read_text(encoding="utf-8").split("\n## ")[section]
    return re.findall(r"\| `(densecal [^`]+)` \|$", table, flags=re.MULTILINE)


@pytest.mark.parametrize(("command", "write"), list(zip(rows(0), FOREGROUND + CLASSES + NAMED, strict=True)))
def test_a_row_gives_the_figures_of_the_probabilities(tmp_path, command, write):
    for folder in ("maps", "masks", "labels"):
        (tmp_path / folder).mkdir()
    for stem, z in Z.items():
        write(tmp_path / "maps", stem, z)
        Image.fromarray(LABELS[stem]).save(tmp_path / "labels" / f"{stem}.png")
        name = f"{stem}_gt.png" if write in NAMED else f"{stem}.png"
        Image.fromarray((LABELS[stem] == 0) * np.uint8(255)).save(tmp_path / "masks" / name)
    code, _, errors = densecal(tmp_path, *shlex.split(command)[1:], "--json", "scores.json", "--workers", "1")
    assert code == 0, errors
    if write in CLASSES:
        brier = [((softmax(z) - (np.arange(K)[:, None, None] == LABELS[s])) ** 2).sum(axis=0) for s, z in Z.items()]
    else:
        brier = [(sigmoid(z) - (LABELS[s] == 0)) ** 2 for s, z in Z.items()]
    measured = json.loads((tmp_path / "scores.json").read_text())["calibration"]["brier"]
    assert measured == pytest.approx(np.mean(brier), abs=0.002)  # 8 bits round


# ------------------------------------------------------------------ folders of other tools
# A writer makes the folders of the command, and returns the Brier score of every evaluation.


def volumes(k: int = K) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return logits (K, Z, Y, X) and labels (Z, Y, X) by name."""
    rng = np.random.default_rng(1)
    return {s: (rng.normal(0, 2, (k, 3, 4, 5)), rng.integers(0, k, (3, 4, 5)).astype(np.uint8)) for s in ("x", "y")}


def pictures(k: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return logits (K, H, W) and labels (H, W) by name."""
    return {s: (z[:, 0], y[0]) for s, (z, y) in volumes(k).items()}


def class_brier(data: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the Brier score of the softmax over all pixels whose label is not 255."""
    errors = []
    for z, y in data:
        truth = np.arange(len(z)).reshape(-1, *(1,) * y.ndim) == y
        errors.append(((softmax(z) - truth) ** 2).sum(axis=0)[y != 255])
    return float(np.concatenate([error.reshape(-1) for error in errors]).mean())


def nifti(path: Path, array: np.ndarray) -> None:
    """Save (Z, Y, X) or (K, Z, Y, X) as (X, Y, Z) or (X, Y, Z, K)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.T, np.diag([0.8, 0.9, 2.5, 1.0])), path)


def raster(path: Path, bands: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = {"driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 500000, 0, -10, 5000000)}
    with rasterio.open(path, "w", dtype=bands.dtype, **profile, **place) as file:
        file.write(bands)


def label_png(path: Path, labels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels).save(path)


def write_nnunet(root: Path) -> list[float]:
    data = volumes()
    (root / "nnunet-out").mkdir()
    for name, (z, y) in data.items():
        np.savez_compressed(root / "nnunet-out" / f"{name}.npz", probabilities=softmax(z).astype(np.float32))
        nifti(root / "nnunet-out" / f"{name}.nii.gz", z.argmax(axis=0).astype(np.uint8))
        nifti(root / "labelsTr" / f"{name}.nii.gz", y)
    labels = {"background": 0, "liver": 1, "tumour": 2}
    (root / "nnunet-out" / "dataset.json").write_text(json.dumps({"labels": labels, "file_ending": ".nii.gz"}))
    return [class_brier(data.values())]


def write_monai(root: Path) -> list[float]:
    data = volumes()
    for name, (z, y) in data.items():
        nifti(root / "monai-out" / name / f"{name}_trans.nii.gz", softmax(z).astype(np.float32))
        nifti(root / "labelsTr" / f"{name}.nii.gz", y)
    return [class_brier(data.values())]


def write_monai_regions(root: Path) -> list[float]:
    data = volumes()
    for name, (z, _) in data.items():
        nifti(root / "monai-out" / name / f"{name}_trans.nii.gz", (1 / (1 + np.exp(-z))).astype(np.float32))
        nifti(root / "masks" / f"{name}.nii.gz", (z > 1).astype(np.uint8))
    return region_briers(data)


def region_briers(data: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[float]:
    return [float(np.mean([(1 / (1 + np.exp(-z[k])) - (z[k] > 1)) ** 2 for z, _ in data.values()])) for k in range(K)]


def write_logits(folder: str, suffix: str, save: Callable[[Path, np.ndarray], object]) -> Callable[[Path], list[float]]:
    """Return a writer of logits of the same size as the labels."""

    def write(root: Path) -> list[float]:
        data = pictures(K)
        (root / folder).mkdir()
        for name, (z, y) in data.items():
            save(root / folder / f"{name}{suffix}", z.astype(np.float32))
            label_png(root / "labels" / f"{name}.png", y)
        return [class_brier(data.values())]

    return write


def write_mask2former(root: Path) -> list[float]:
    data = pictures(K)
    (root / "mask2former").mkdir()
    for name, (z, y) in data.items():
        np.savez(root / "mask2former" / f"{name}.npz", segmentation_scores=3.7 * softmax(z))
        label_png(root / "labels" / f"{name}.png", y)
    return [class_brier(data.values())]


def write_rasters(
    names: Callable[[str, np.ndarray], dict[str, np.ndarray]], folder: str
) -> Callable[[Path], list[float]]:
    """Return a writer of rasters, given the files of a map."""

    def write(root: Path) -> list[float]:
        data = pictures(K)
        for name, (z, y) in data.items():
            for file, bands in names(name, softmax(z).astype(np.float32)).items():
                raster(root / folder / file, bands)
            raster(root / "labels" / f"{name}.tif", y[None])
        return [class_brier(data.values())]

    return write


def write_sigmoids(root: Path) -> list[float]:
    data = pictures(K)
    for folder in ("maps", "masks"):
        (root / folder).mkdir()
    for name, (z, _) in data.items():
        np.save(root / "maps" / f"{name}.npy", 1 / (1 + np.exp(-z)))
        np.save(root / "masks" / f"{name}.npy", z > 1)
    return region_briers(data)


def write_data_set(
    k: int, names: tuple[str, str], mask: str, stored: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Path], list[float]]:
    """Return a writer of `.npy` maps of K classes, and of masks as a data set stores them."""

    def write(root: Path) -> list[float]:
        data = pictures(k)
        (root / "maps").mkdir()
        for name, (z, y) in zip(names, data.values(), strict=True):
            np.save(root / "maps" / f"{name}.npy", softmax(z))
            y[0, 0] = 255
            label_png(root / mask.format(name.removesuffix("_leftImg8bit")), stored(y))
        return [class_brier(data.values())]

    return write


def write_voc(root: Path) -> list[float]:
    write = write_data_set(
        21, ("2007_000033", "2007_000042"), "VOCdevkit/VOC2012/SegmentationClass/{}.png", lambda y: y
    )
    briers = write(root)
    lists = root / "VOCdevkit" / "VOC2012" / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("2007_000033\n2007_000042\n")
    (lists / "trainval.txt").write_text("2007_000032\n2007_000033\n2007_000042\n")
    label_png(root / "VOCdevkit" / "VOC2012" / "SegmentationClass" / "2007_000032.png", np.zeros((4, 5), np.uint8))
    return briers


def write_toolkit(root: Path) -> list[float]:
    briers = []
    for method in ("BASNet", "U2Net"):
        for dataset in ("DUTS-TE", "ECSSD"):
            rng = np.random.default_rng(len(briers))
            p, y = rng.integers(0, 256, (4, 5)).astype(np.uint8), rng.integers(0, 2, (4, 5)).astype(np.uint8)
            if method == "U2Net":
                y = np.asarray(Image.open(root / "datasets" / dataset / "Mask" / "a.png")) // 255
            label_png(root / "methods" / method / dataset / "a.png", p)
            label_png(root / "datasets" / dataset / "Mask" / "a.png", y * np.uint8(255))
            briers.append(float(((p / 255 - y) ** 2).mean()))
    return briers


def ade20k_labels(y: np.ndarray) -> np.ndarray:
    return np.where(y == 255, 0, y + 1).astype(np.uint8)


def coco_labels(y: np.ndarray) -> np.ndarray:
    """Return COCO-Stuff's 182 labels, of which 11 do not occur."""
    missing = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)
    table = np.array([label for label in range(182) if label not in missing], np.uint8)
    return np.where(y == 255, 255, table[np.minimum(y, 170)]).astype(np.uint8)


CITY = ("aachen_000000_000019_leftImg8bit", "aachen_000001_000019_leftImg8bit")
TOOLS: list[Callable[[Path], list[float]]] = [
    write_nnunet,
    write_monai,
    write_monai_regions,
    write_logits("segformer", ".safetensors", lambda path, z: save_file({"logits": z[None]}, path)),
    write_mask2former,
    write_logits("segformer", ".npy", np.save),
    write_logits("mmseg-out", ".npz", lambda path, z: np.savez(path, seg_logits=z)),
    write_rasters(lambda name, p: {f"{name}_probabilities.tif": p, f"{name}_prediction.tif": p[:1]}, "terratorch-out"),
    write_rasters(lambda name, p: {f"{name}.tif": p}, "rasters"),
    write_rasters(lambda name, p: {f"{name}.tif": 100 * p}, "rasters"),
    write_rasters(lambda name, p: {f"{name}_class_{k}.tif": p[k : k + 1] for k in range(K)}, "geoai-out"),
    write_sigmoids,
    write_data_set(19, CITY, "gtFine/val/aachen/{}_gtFine_labelTrainIds.png", lambda y: y),
    write_data_set(150, ("ADE_val_00000001", "ADE_val_00000002"), "annotations/validation/{}.png", ade20k_labels),
    write_voc,
    write_data_set(171, ("000000000139", "000000000285"), "stuffthingmaps/val2017/{}.png", coco_labels),
    write_toolkit,
]


@pytest.mark.parametrize(("command", "write"), list(zip(rows(1), TOOLS, strict=True)))
def test_folders_of_a_tool_give_the_figures_of_its_probabilities(tmp_path, command, write):
    expected = write(tmp_path)
    code, _, errors = densecal(
        tmp_path, *shlex.split(command)[1:], "--json", "s.json", "--workers", "1", "--metrics", "fast"
    )
    assert code == 0, errors
    content = json.loads((tmp_path / "s.json").read_text())
    measured = [record["calibration"]["brier"] for record in content.get("evaluations", [content])]
    assert measured == pytest.approx(expected, abs=1e-6)
