"""Foreground rasters with pixels without data, measured with all metrics as every other picture."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import tifffile
import zarr
from PIL import Image
from rasterio.transform import from_origin

from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.io import slabs
from densecal.io.map_files import read_map
from densecal.io.map_options import MapOptions
from tests.metrics.reference import equal_width
from tests.running import run

SHAPE = (20, 24)


def write(path: Path, array: np.ndarray, **more: object) -> None:
    path.parent.mkdir(exist_ok=True)
    bands = array.reshape(-1, *SHAPE)
    profile = {"driver": "GTiff", "count": len(bands), "height": SHAPE[0], "width": SHAPE[1], "dtype": array.dtype}
    place = {"crs": "EPSG:32633", "transform": from_origin(100.0, 500.0, 10.0, 10.0)}
    with rasterio.open(path, "w", **profile, **place, **more) as file:
        file.write(bands)


def make(root: Path, kind: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Four maps, of which the second and the third have pixels without data; return what counts of every one."""
    counted = []
    for case in range(4):
        rng = np.random.default_rng(case)
        levels = rng.integers(0, 250, SHAPE)
        y = (rng.random(SHAPE) < levels / 255).astype(np.uint8)
        void = np.zeros(SHAPE, bool)
        void[: 3 * (case in (1, 2))] = True
        if kind == "float32":
            p = rng.random(SHAPE).astype(np.float32)
            write(root / f"maps/{case}.tif", np.where(void, np.float32(-1), p), nodata=-1)
        else:
            levels = levels * (1 if kind == "uint8" else 257)
            p, none = levels / np.iinfo(kind).max, np.iinfo(kind).max
            write(root / f"maps/{case}.tif", np.where(void, none, levels).astype(kind), nodata=none)
        write(root / f"masks/{case}.tif", y)
        counted.append((p[~void].astype(np.float64), y[~void]))
    return counted


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_pixels_without_data_do_not_count(tmp_path, kind):
    counted = make(tmp_path, kind)
    record = evaluate(tmp_path / "maps", tmp_path / "masks").record
    p, y = (np.concatenate([pair[i] for pair in counted]) for i in (0, 1))
    assert record.pixels == p.size
    expected = equal_width(np.maximum(p, 1 - p), ((p > 0.5) == y).astype(float), 10)["ece"]
    assert record.calibration["ece_ew"] == pytest.approx(expected, abs=1e-12)
    dice = [2 * ((a > 0.5) & (b == 1)).sum() / ((a > 0.5).sum() + b.sum()) for a, b in counted]
    assert record.segmentation["dice_image_mean"] == pytest.approx(np.mean(dice), abs=1e-12)
    assert record.segmentation["f_max"] > 0
    assert np.isnan(record.segmentation["s_measure"]), "it needs whole pictures"
    assert np.isnan(record.segmentation["f_weighted"])
    assert "144 pixels of 2 images have no data, as their files say, and do not count; S-measure" in record.warnings[-1]
    for case in (1, 2):
        (tmp_path / f"maps/{case}.tif").unlink()
        (tmp_path / f"masks/{case}.tif").unlink()
    assert evaluate(tmp_path / "maps", tmp_path / "masks").record.segmentation["s_measure"] > 0


@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize("metrics", ["full", "fast"])
def test_a_class_may_have_the_value_for_no_data_as_its_probability(tmp_path, monkeypatch, one_file, metrics):
    """Levels of 0 to 255 with 0 for no data: pixels are without data where all classes are 0, and only there."""
    monkeypatch.setattr(slabs, "LARGE", 1)  # with fast metrics
    counted = []
    for case in range(3):
        rng = np.random.default_rng(case)
        p = rng.multinomial(255, [0.02, 0.9, 0.08], SHAPE).astype(np.uint8).transpose(2, 0, 1)
        p[:, :5] = [[[255]], [[0]], [[0]]]
        p[:, 6:8, 3:9] = 0
        y = rng.integers(0, 3, SHAPE).astype(np.uint8)
        files = {f"maps/{case}.tif": p} if one_file else {f"maps/{case}_class_{k}.tif": p[k] for k in range(3)}
        for name, array in files.items():
            write(tmp_path / name, array, nodata=0)
        write(tmp_path / f"masks/{case}.tif", y)
        valid = p.any(axis=0)
        counted.append((p[:, valid] / 255, y[valid]))
    settings = Settings(classes=3, full=metrics == "full", maps=MapOptions(max_value=255))
    record = evaluate(tmp_path / "maps", tmp_path / "masks", settings=settings).record
    p, y = (np.concatenate([pair[i] for pair in counted], axis=-1) for i in (0, 1))
    assert record.pixels == y.size == 3 * (20 * 24 - 12)
    expected = equal_width(p.max(axis=0), (p.argmax(axis=0) == y).astype(float), 10)["ece"]
    assert record.calibration["ece_ew"] == pytest.approx(expected, abs=1e-12)
    assert record.warnings == ("36 pixels of 3 images have no data, as their files say, and do not count",)


@pytest.mark.parametrize("none", [-9999.0, np.nan])
def test_a_pixel_without_data_in_one_class_is_void(tmp_path, none):
    p = np.full((3, *SHAPE), 1 / 3, np.float32)
    p[1, 2, 3:5] = none
    write(tmp_path / "maps/a.tif", p, nodata=none)
    write(tmp_path / "masks/a.tif", np.zeros(SHAPE, np.uint8))
    record = evaluate(tmp_path / "maps", tmp_path / "masks", settings=Settings(classes=3)).record
    assert record.pixels == 20 * 24 - 2


@pytest.mark.parametrize("attribute", ["scale", "offset"])
@pytest.mark.parametrize("kind", ["tif", "nowhere.tif", "h5", "v2", "v3"])
def test_numbers_that_stand_for_others_are_refused(tmp_path, kind, attribute):
    values = (np.random.default_rng(0).random(SHAPE) * 9000).astype(np.uint16)
    path = tmp_path / ("a.zarr" if kind.startswith("v") else f"a.{kind}")
    given = {"scale_factor": 0.0001} if attribute == "scale" else {"add_offset": 0.5}
    if kind.endswith("tif"):
        (write if kind == "tif" else tifffile.imwrite)(path, values)
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = (given.get("scale_factor", 1),), (given.get("add_offset", 0),)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("p", data=values).attrs.update(given)
    else:
        options = {"shape": SHAPE, "chunks": SHAPE, "dtype": "u2", "zarr_format": int(kind[1])}
        zarr.create_array(path, attributes=given, **options)[:] = values
    with pytest.raises(InputError, match=r"numbers to be multiplied by \S+ and increased by \S+; expected the results"):
        read_map(path)


def test_parts_with_and_without_such_pixels_merge_into_the_whole(tmp_path):
    make(tmp_path, "uint8")
    for part, cases in (("a", (0, 1)), ("b", (2, 3)), ("c", (0, 3))):
        for case in cases:
            for name in ("maps", "masks"):
                (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
                (tmp_path / part / name / f"{case}.tif").symlink_to(tmp_path / name / f"{case}.tif")
        folders = (tmp_path / part / name for name in ("maps", "masks"))
        assert run("evaluate", *folders, "--dataset", "d", "--partial", tmp_path / f"{part}.sketch")[0] == 0
    parts = (tmp_path / f"{part}.sketch" for part in "ab")
    assert run("merge", *parts, "--json", tmp_path / "merged.json")[0] == 0
    folders = (tmp_path / "maps", tmp_path / "masks")
    assert run("evaluate", *folders, "--dataset", "d", "--json", tmp_path / "all.json")[0] == 0
    merged, whole = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("merged", "all"))
    assert merged["segmentation"] == whole["segmentation"]
    assert whole["segmentation"]["s_measure"] is None
    assert run("merge", tmp_path / "c.sketch", "--json", tmp_path / "c.json")[0] == 0
    assert json.loads((tmp_path / "c.json").read_text())["segmentation"]["s_measure"] > 0


@pytest.mark.filterwarnings("error")
def test_maps_of_16_bit_floats_are_measured_as_their_values(tmp_path):
    for name in ("half", "single", "masks"):
        (tmp_path / name).mkdir()
    for case in range(2):
        rng = np.random.default_rng(case)
        p = np.append(rng.random((9, 12)), np.ones((1, 12)), axis=0).astype(np.float16)  # 1 x 65535 is none of them
        np.save(tmp_path / f"half/{case}.npy", p)
        np.save(tmp_path / f"single/{case}.npy", p.astype(np.float32))
        Image.fromarray((rng.random(p.shape) < p).astype(np.uint8) * 255).save(tmp_path / f"masks/{case}.png")
    half, single = (evaluate(tmp_path / name, tmp_path / "masks", name="a").record for name in ("half", "single"))
    assert half == single
