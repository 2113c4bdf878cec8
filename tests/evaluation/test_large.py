"""Maps that are read slab by slab give the record of maps that are read at once, in bounded memory."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.io import slabs
from densecal.io.map_options import MapOptions
from tests.running import run

FAST = Settings(full=False)
K = 3


def save(folder: Path, name: str, array: np.ndarray, nodata: float | None = None) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, array)
    elif name.endswith(".tif"):
        bands = array if array.ndim == 3 else array[None]
        about = {"crs": "EPSG:32632", "transform": from_origin(0, 0, 10, 10), "nodata": nodata}
        about |= dict(zip(("count", "height", "width"), bands.shape, strict=True))
        with rasterio.open(path, "w", driver="GTiff", dtype=array.dtype, **about) as file:
            file.write(bands)
    else:
        nibabel.save(nibabel.Nifti1Image(array.T, np.diag([0.8, 0.9, 2.5, 1])), path)


def draw(case: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (9, 6, 7) if "nii" in case else (40, 13)
    z = rng.normal(0, 3, (K, *shape)).astype(np.float32)
    labels = (z + rng.normal(0, 2, z.shape)).argmax(axis=0).astype(np.uint8)
    p = np.exp(z) / np.exp(z).sum(axis=0)
    mask = (labels == 1).astype(np.uint8) * np.uint8(1 if "nii" in case else 255)
    mask[-1, :3] = 128 if "grey" in case else mask[-1, :3]
    maps = {
        "floats": p[1], "stretched": (p[1] - p[1].min()) / (p[1].max() - p[1].min()),
        "levels": np.rint(p[1] * 255).astype(np.uint8), "words": np.rint(p[1] * 65535).astype(np.uint16),
        "percent": np.rint(p[1] * 100).astype(np.uint8), "logits": z[1], "classes": p, "class-logits": z,
    }  # fmt: skip
    array, truth = maps[case.split()[0]], labels if "class" in case else mask
    if "nodata" in case:
        array = array.copy()
        array[..., :12, :] = 7
        array[..., 20, :5] = 7
    if "void" in case:
        truth = truth.copy()
        truth[:, 2:4] = 200
    return array, truth


CASES = [
    "floats .npy", "floats grey .npy", "stretched .npy", "levels .npy", "levels grey .npy", "words .npy",
    "percent .npy", "logits .npy", "floats nii", "floats nodata .tif", "words nodata .tif", "levels void .npy",
    "floats void .npy", "classes .npy", "classes nii", "classes void .npy", "classes nodata .tif",
    "class-logits nii.gz",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_slabs_change_no_figure(tmp_path, monkeypatch, case):
    ending = "." + case.split()[-1].removeprefix(".")
    for seed in range(3):
        array, truth = draw(case, seed)
        save(tmp_path / "maps", f"{seed}{ending}", array, 7 if "nodata" in case else None)
        save(tmp_path / "masks", f"{seed}{ending}", truth)
    options = MapOptions(logits="logits" in case, max_value=100 if "percent" in case else None)
    settings = dataclasses.replace(FAST, maps=options, classes=K if "class" in case else None)
    if "void" in case:
        settings = dataclasses.replace(settings, ignore_index=200)
    whole = evaluate(tmp_path / "maps", tmp_path / "masks", settings=settings)
    opened = []
    monkeypatch.setattr(slabs, "LARGE", 1)
    monkeypatch.setattr(slabs, "_SLAB", 64)
    masks = slabs.LargePair.masks
    monkeypatch.setattr(slabs.LargePair, "masks", lambda pair: opened.append(pair) or masks(pair))
    parts = evaluate(tmp_path / "maps", tmp_path / "masks", settings=settings)
    assert len({pair.pair.stem for pair in opened}) == 3
    assert parts.rows == pytest.approx(whole.rows, abs=1e-9)
    assert_same(parts.record.to_json(), whole.record.to_json())


def assert_same(actual, expected, where=""):
    """Compare JSON, numbers to 1e-11."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for i, value in enumerate(expected):
            assert_same(actual[i], value, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=1e-11, nan_ok=True), where
    else:
        assert actual == expected, where


def test_full_metrics_read_at_once(tmp_path, monkeypatch):
    for seed in range(2):
        for folder, array in zip(("maps", "masks"), draw("floats nii", seed), strict=True):
            save(tmp_path / folder, f"{seed}.nii", array)
    monkeypatch.setattr(slabs, "LARGE", 1)
    monkeypatch.setattr(slabs.LargePair, "masks", lambda pair: 1 / 0)
    evaluate(tmp_path / "maps", tmp_path / "masks")
    with pytest.raises(ZeroDivisionError):
        evaluate(tmp_path / "maps", tmp_path / "masks", settings=FAST)


def test_a_slab_that_is_no_map_counts_nothing(tmp_path, monkeypatch):
    for seed in range(2):
        array, truth = draw("floats .npy", seed)
        save(tmp_path / "maps", f"{seed}.npy", array)
        save(tmp_path / "masks", f"{seed}.npy", truth)
    array[-1, -1] = 3.0
    save(tmp_path / "maps", "1.npy", array)
    monkeypatch.setattr(slabs, "LARGE", 1)
    monkeypatch.setattr(slabs, "_SLAB", 64)
    with pytest.raises(InputError, match=r"1.npy: .*expected probabilities in \[0, 1\]"):
        evaluate(tmp_path / "maps", tmp_path / "masks", settings=FAST)
    record = evaluate(tmp_path / "maps", tmp_path / "masks", settings=FAST, skip_bad=True).record
    assert record.pixels == 40 * 13
    assert record.images == 1


def test_the_limit_of_pixels_holds_for_slabs(tmp_path):
    array, truth = draw("floats .npy", 0)
    save(tmp_path / "maps", "0.npy", array)
    save(tmp_path / "masks", "0.npy", truth)
    arguments = ("evaluate", tmp_path / "maps", tmp_path / "masks", "--metrics", "fast", "--max-pixels")
    code, _, err = run(*arguments, 519)
    assert code == 2
    assert "520 values; expected at most 519 (raise the limit with --max-pixels)" in err
    assert run(*arguments, 520)[0] == 0


# ------------------------------------------------------------------ large files


def peak_memory(*arguments: object) -> float:
    """Return the peak memory of `densecal` with these arguments, in gigabytes."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'densecal', *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
def test_a_raster_of_900_megapixels_takes_less_than_a_gigabyte(tmp_path):
    side, rows = 30_000, 500
    about = {"crs": "EPSG:32632", "transform": from_origin(0, 0, 10, 10), "count": 1, "height": side, "width": side}
    about |= {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate"}
    rng, right = np.random.default_rng(0), 0
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    with (
        rasterio.open(tmp_path / "maps/scene.tif", "w", dtype="float32", nodata=-1.0, **about) as maps,
        rasterio.open(tmp_path / "masks/scene.tif", "w", dtype="uint8", **about) as masks,
    ):
        for top in range(0, side, rows):
            step = np.float32((top // rows + 1) / (side // rows + 1))
            p = np.full((rows, side), step, np.float32)
            mask = np.zeros((rows, side), np.uint8)
            mask[:, : int(side * rng.random())] = 1
            right += int(((p > 0.5) == mask).sum())
            window = Window(0, top, side, rows)
            maps.write(p, 1, window=window)
            masks.write(mask, 1, window=window)
    json_file = tmp_path / "a.json"
    arguments = ("evaluate", tmp_path / "maps", tmp_path / "masks", "--metrics", "fast", "--json", json_file)
    peak = peak_memory(*arguments)
    print(f"peak {peak:.3f} GB")
    record = json.loads(json_file.read_text())
    assert record["pixels"] == side * side
    assert record["calibration"]["accuracy"] == pytest.approx(right / side**2, abs=1e-9)
    assert peak < 1.0


@pytest.mark.slow
def test_a_volume_of_512_cubed_and_five_classes_takes_less_than_a_gigabyte(tmp_path):
    side, classes = 512, 5
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    header = nibabel.Nifti1Header()
    rng, right, slabs_of_labels = np.random.default_rng(0), 0, []
    for name, dtype, shape in (("maps", np.float32, (side,) * 3 + (classes,)), ("masks", np.uint8, (side,) * 3)):
        header = nibabel.Nifti1Header()
        header.set_data_dtype(dtype)
        header.set_data_shape(shape)
        header["vox_offset"], header["pixdim"][1:4] = 352, (0.8, 0.8, 1.5)
        header["magic"] = b"n+1"
        with open(tmp_path / name / "case.nii", "wb") as file:
            file.write(header.binaryblock + bytes(4))
            if name == "masks":
                for z in range(side):
                    plane = np.full((side, side), z % classes, np.uint8)
                    plane[: int(rng.integers(side))] = (z + 1) % classes
                    slabs_of_labels.append(int((plane == z % classes).sum()))
                    file.write(plane.tobytes())
                continue
            for k in range(classes):
                for z in range(side):
                    p = 0.6 if z % classes == k else 0.1
                    file.write(np.full((side, side), p, np.float32).tobytes())
    right = sum(slabs_of_labels)
    json_file = tmp_path / "a.json"
    arguments = ("evaluate", tmp_path / "maps", tmp_path / "masks", "--metrics", "fast", "--classes", classes)
    peak = peak_memory(*arguments, "--json", json_file)
    print(f"peak {peak:.3f} GB")
    record = json.loads(json_file.read_text())
    assert record["pixels"] == side**3
    assert record["calibration"]["accuracy"] == pytest.approx(right / side**3, abs=1e-9)
    assert peak < 1.0
