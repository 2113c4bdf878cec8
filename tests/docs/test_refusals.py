"""Every row of the table of refused files in docs/formats.md: the command ends with one line that says what helps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from PIL import Image
from zarr.codecs import ShardingCodec

from tests.adversarial.common import densecal
from tests.docs.test_formats import (
    PAGE,
    label_png,
    nifti,
    pictures,
    raster,
    softmax,
    volumes,
    write_mask2former,
    write_monai,
    write_monai_regions,
    write_nnunet,
)

CUBE = np.random.default_rng(0).random((4, 4, 4))
FLAT = np.random.default_rng(0).random((4, 5))
MASK = (FLAT > 0.5) * np.uint8(255)
FOREGROUND = ("maps", "masks")
CLASSES = ("maps", "masks", "--classes", "3")
Refusal = tuple[Callable[[Path], object], tuple[str, ...], str]


def pair(save: Callable[[Path], object], mask: np.ndarray = MASK) -> Callable[[Path], None]:
    """Return a writer of one map, by its path without suffix, and its mask."""

    def write(root: Path) -> None:
        (root / "maps").mkdir()
        save(root / "maps" / "a")
        label_png(root / "masks" / "a.png", mask)

    return write


def npy(values: np.ndarray) -> Callable[[Path], None]:
    return pair(lambda stem: np.save(f"{stem}.npy", values), (FLAT * 3).astype(np.uint8) if values.ndim == 3 else MASK)


def tiff(values: np.ndarray, **options: object) -> Callable[[Path], None]:
    return pair(lambda stem: tifffile.imwrite(f"{stem}.tif", values, photometric="minisblack", **options))


def two_frames(root: Path) -> None:
    pair(lambda stem: Image.fromarray(MASK).save(f"{stem}.png"))(root)
    first, second = Image.fromarray(MASK), Image.fromarray(255 - MASK)
    first.save(root / "masks" / "a.png", save_all=True, append_images=[second])


def levels(top: int) -> Callable[[Path], None]:
    return pair(lambda stem: Image.fromarray((FLAT / FLAT.max() * top).astype(np.uint8)).save(f"{stem}.png"))


def turned(stem: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(MASK).save(f"{stem}.png", exif=exif)


def lzw_pages(stem: Path) -> None:
    Image.fromarray(MASK).save(
        f"{stem}.tif", save_all=True, append_images=[Image.fromarray(MASK)], compression="tiff_lzw"
    )


def filtered(stem: Path) -> None:
    with h5py.File(f"{stem}.h5", "w") as file:
        file.create_dataset("p", data=FLAT, chunks=(2, 5), scaleoffset=4)


def scaled(stem: Path) -> None:
    with h5py.File(f"{stem}.h5", "w") as file:
        file.create_dataset("p", data=(FLAT * 10000).astype(np.uint16)).attrs["scale_factor"] = 0.0001


def damaged_fill(stem: Path) -> None:
    with h5py.File(f"{stem}.h5", "w") as file:
        file.create_dataset("p", data=(FLAT * 255).astype(np.uint8)).attrs["_FillValue"] = -1


def nested_shards(stem: Path) -> None:
    codec = ShardingCodec(chunk_shape=(2, 5), codecs=[ShardingCodec(chunk_shape=(1, 5))])
    options = {"shape": FLAT.shape, "chunks": FLAT.shape, "dtype": FLAT.dtype, "compressors": None}
    zarr.create_array(f"{stem}.zarr", serializer=codec, **options)[:] = FLAT


def volume_pair(save: Callable[[Path], object], mask: np.ndarray = CUBE) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / "maps").mkdir()
        save(root / "maps" / "a")
        nifti(root / "masks" / "a.nii.gz", (mask > 0.5).astype(np.uint8))

    return write


def moved(stem: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(CUBE.T, np.diag([0.8, 0.9, 3.0, 1.0])), f"{stem}.nii.gz")


def archive(**arrays: np.ndarray) -> Callable[[Path], None]:
    return pair(lambda stem: np.savez(f"{stem}.npz", **arrays), (FLAT * 3).astype(np.uint8))


def nnunet(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a writer of nnU-Net's folders in which something was changed."""

    def write(root: Path) -> None:
        write_nnunet(root)
        change(root / "nnunet-out")

    return write


def without_archives(out: Path) -> None:
    for path in out.glob("*.npz"):
        path.unlink()
    (out / "predict_from_raw_data_args.json").write_text("{}")


def rounded(root: Path) -> None:
    raster(root / "maps" / "a_probabilities.tif", np.ones((3, 4, 5), np.int16))
    raster(root / "masks" / "a.tif", np.zeros((1, 4, 5), np.uint8))


def class_files(root: Path) -> None:
    for k in (0, 2):
        raster(root / "maps" / f"a_class_{k}.tif", np.ones((1, 4, 5), np.float32))
    raster(root / "masks" / "a.tif", np.zeros((1, 4, 5), np.uint8))


def two_volumes(root: Path) -> None:
    write_monai(root)
    for name, (z, _) in volumes().items():
        nifti(root / "monai-out" / name / f"{name}_pre.nii.gz", softmax(z))


def other_labels(root: Path) -> None:
    (root / "maps").mkdir()
    np.save(root / "maps" / "ADE_val_00000001.npy", np.full((150, 4, 5), 1 / 150))
    label_png(root / "masks" / "ADE_val_00000001.png", MASK)


def sigmoids(root: Path) -> None:
    write_monai_regions(root)
    for name, (_, y) in volumes().items():
        nifti(root / "masks" / f"{name}.nii.gz", y)


Z = pictures(3)["x"][0]
P = softmax(Z)
NNUNET = ("nnunet-out", "labelsTr")
REFUSALS: list[Refusal] = [
    (tiff(P.astype(np.float32), planarconfig="separate"), FOREGROUND, "--classes 3 for one band per class"),
    (two_frames, FOREGROUND, "a mask of one page and one band"),
    (npy(Z[0]), FOREGROUND, "--logits for logits"),
    (npy((FLAT * 90).astype(np.int64)), FOREGROUND, "class labels (argmax) hold no probabilities"),
    (levels(100), FOREGROUND, "no level above 100 in any 8-bit map; expected levels up to 255; --max-value 100"),
    (npy(P), (*CLASSES, "--logits"), "probabilities, which sum to 1 in every pixel; expected logits, or no --logits"),
    (npy(P * 0.7), CLASSES, "class probabilities that miss a sum of 1"),
    (archive(p=P, other=P), CLASSES, "2 arrays (p, other)"),
    (pair(turned), FOREGROUND, "rientation"),
    (pair(filtered), FOREGROUND, "a.h5: the filter 6; expected values compressed by gzip or lzf"),
    (pair(scaled), FOREGROUND, "a.h5: numbers to be multiplied by 0.0001 and increased by 0; expected the results"),
    (pair(damaged_fill), FOREGROUND, "a.h5: the attribute _FillValue = -1; expected a single number of type uint8"),
    (pair(nested_shards), FOREGROUND, "a.zarr: shards within shards; expected one level of shards"),
    (pair(lzw_pages), ("maps", "masks", "--classes", "2"), "LZW"),
    (volume_pair(moved), FOREGROUND, "a spacing of (3, 0.9, 0.8); expected (2.5, 0.9, 0.8), as its mask has"),
    (volume_pair(lambda stem: nifti(Path(f"{stem}.nii"), CUBE[:3])), FOREGROUND, "(4, 4, 4), as its mask has"),
    (volume_pair(lambda stem: np.save(f"{stem}.npy", CUBE)), FOREGROUND, "--axes zyx"),
    (write_mask2former, ("mask2former", "labels"), "--logits if they are logits, --normalise"),
    (archive(class_queries_logits=Z, masks_queries_logits=Z), FOREGROUND, "return_segmentation_scores=True"),
    (nnunet(lambda out: (out / "dataset.json").unlink()), (*NNUNET, "--format", "nnunet"), "--key probabilities"),
    (nnunet(without_archives), NNUNET, "nnUNetv2_predict writes with --save_probabilities"),
    (nnunet(lambda out: (out / "plans.json").write_text(json.dumps({"image_reader_writer": "NibabelIOWithReorient"}))),
     NNUNET, "plans.json: image_reader_writer"),
    (rounded, FOREGROUND, "--out_dtype float32"),
    (class_files, FOREGROUND, "files of the classes 0, 2"),
    (two_volumes, ("monai-out", "labelsTr"), "--strip-suffix _trans"),
    (archive(logits=Z, seg_logits=Z), FOREGROUND, "--format transformers or --format mmseg"),
    (other_labels, FOREGROUND, "--format plain reads labels as they are"),
    (sigmoids, ("monai-out", "masks"), "--multilabel for sigmoids"),
    (npy(P * 0.7), CLASSES, "--normalise for scores"),
]  # fmt: skip


def rows() -> list[str]:
    """Return the first cells of the table."""
    section = PAGE.read_text(encoding="utf-8").split("\n## What is refused")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \|", section, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(("row", "refusal"), list(zip(rows(), REFUSALS, strict=True)))
def test_what_is_refused_is_refused_in_one_line_that_helps(tmp_path, row, refusal):
    write, arguments, words = refusal
    write(tmp_path)
    code, _, errors = densecal(tmp_path, "evaluate", *arguments, "--workers", "1", "--metrics", "fast")
    lines = [line for line in errors.splitlines() if not line.startswith("note:")]
    assert code == 2, f"{row}: {errors}"
    assert len(lines) == 1, f"{row}: {errors}"
    assert words in lines[0], f"{row}: {errors}"
