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


def store(path: Path, array: np.ndarray, attributes: dict[str, object], **more: object) -> Path:
    """Write HDF5 for the suffix .h5, Zarr for .v2 and .v3; return the path."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("p", data=array, chunks=(*array.shape[:-2], 5, 9)).attrs.update(attributes)
        return path
    options = {"shape": array.shape, "chunks": (*array.shape[:-2], 5, 9), "dtype": array.dtype, **more}
    target = path.with_suffix(".zarr")
    zarr.create_array(str(target), attributes=attributes, zarr_format=int(path.suffix[2]), **options)[:] = array
    return target


ARRAYS = pytest.mark.parametrize("suffix", ["h5", "v2", "v3"])


@ARRAYS
@pytest.mark.parametrize("metrics", ["full", "fast"])
@pytest.mark.parametrize(
    ("kind", "attributes", "none"),
    [
        ("uint8", {"_FillValue": 255}, [255]),
        ("uint8", {"_FillValue": [0]}, [0]),
        ("uint16", {"missing_value": 65535}, [65535]),
        ("uint16", {"_FillValue": 7, "missing_value": 7.0}, [7]),
        ("float32", {"_FillValue": np.nan}, [np.nan]),
        ("float32", {"_FillValue": -9999, "missing_value": 1e20}, [-9999, 1e20]),
        (">f8", {"_FillValue": 0.1}, [0.1]),
    ],
)
def test_attributes_mark_pixels_without_data(tmp_path, monkeypatch, suffix, metrics, kind, attributes, none):
    monkeypatch.setattr(slabs, "LARGE", 1)  # with fast metrics
    counted = []
    for case in range(2):
        rng = np.random.default_rng(case)
        scale = 1 if "f" in kind else np.iinfo(kind).max
        stored = (rng.random(SHAPE) * scale).astype(kind)
        y = (rng.random(SHAPE) < stored / scale).astype(np.uint8)
        void, untrue = rng.random((2, *SHAPE)) < 0.2
        stored[void] = rng.choice(none, void.sum())
        p = stored / scale
        valid = ~(np.isnan(stored) | np.isin(stored, np.array(none, kind)) | untrue)
        store(tmp_path / f"maps/{case}.{suffix}", stored, attributes)
        store(tmp_path / f"masks/{case}.{suffix}", np.where(untrue, 255, y).astype(np.uint8), {"_FillValue": 255})
        counted.append((p[valid].astype(np.float64), y[valid]))
    record = evaluate(tmp_path / "maps", tmp_path / "masks", settings=Settings(full=metrics == "full")).record
    p, y = (np.concatenate([pair[i] for pair in counted]) for i in (0, 1))
    assert record.pixels == p.size
    expected = equal_width(np.maximum(p, 1 - p), ((p > 0.5) == y).astype(float), 10)["ece"]
    assert record.calibration["ece_ew"] == pytest.approx(expected, abs=1e-12)
    dice = [2 * ((a > 0.5) & (b == 1)).sum() / ((a > 0.5).sum() + b.sum()) for a, b in counted]
    assert record.segmentation["dice_image_mean"] == pytest.approx(np.mean(dice), abs=1e-12)
    assert f"{2 * 20 * 24 - p.size} pixels of 2 images have no data, as their files say" in record.warnings[-1]


@ARRAYS
@pytest.mark.parametrize("metrics", ["full", "fast"])
@pytest.mark.parametrize(("none", "label"), [(-1.0, 0), (np.nan, -1), (0.0, 2)])
def test_attributes_mark_pixels_of_classes(tmp_path, monkeypatch, suffix, metrics, none, label):
    """A value that a class may have too, such as 0, means no data only where all classes have it."""
    monkeypatch.setattr(slabs, "LARGE", 1)  # with fast metrics
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5, 1, 2], SHAPE).transpose(2, 0, 1)
    p[:, :5] = [[[1]], [[0]], [[0]]]
    y = rng.integers(0, 3, SHAPE).astype(np.int16)
    void = rng.random(SHAPE) < 0.2
    y[rng.random(SHAPE) < 0.1] = label
    valid = ~void & (y != label)
    store(tmp_path / f"maps/a.{suffix}", np.where(void, none, p), {"_FillValue": none})
    store(tmp_path / f"masks/a.{suffix}", y, {"missing_value": label})
    settings = Settings(classes=3, full=metrics == "full")
    record = evaluate(tmp_path / "maps", tmp_path / "masks", settings=settings).record
    assert record.pixels == valid.sum()
    p, y = p[:, valid], y[valid]
    expected = equal_width(p.max(axis=0), (p.argmax(axis=0) == y).astype(float), 10)["ece"]
    assert record.calibration["ece_ew"] == pytest.approx(expected, abs=1e-12)


@ARRAYS
def test_masks_of_floats_may_have_no_data(tmp_path, suffix):
    y = np.indices(SHAPE).sum(axis=0) % 3 - 1.0
    y[y < 0] = np.nan
    store(tmp_path / f"masks/a.{suffix}", y, {"_FillValue": np.nan})
    store(tmp_path / f"maps/a.{suffix}", np.full(SHAPE, 0.7), {})
    record = evaluate(tmp_path / "maps", tmp_path / "masks").record
    assert record.pixels == np.isfinite(y).sum()
    assert record.calibration["ece_ew"] == pytest.approx(0.7 - np.nanmean(y), abs=1e-12)


@pytest.mark.parametrize(("text", "none"), [("AAAAAAAA+H8=", np.nan), ("AAAAAICHw8A=", -9999), ("NaN", np.nan)])
def test_floats_that_zarr_stores_as_text_mark_pixels(tmp_path, text, none):
    """Xarray writes floats so, in base64, in format 3."""
    p = np.full(SHAPE, 0.25, np.float32)
    p[3, :7] = none
    store(tmp_path / "maps/a.v3", p, {"_FillValue": text})
    write(tmp_path / "masks/a.tif", np.zeros(SHAPE, np.uint8))
    assert evaluate(tmp_path / "maps", tmp_path / "masks").record.pixels == 20 * 24 - 7


@pytest.mark.parametrize("suffix", ["v2", "v3"])
def test_the_fill_value_of_chunks_marks_nothing(tmp_path, suffix):
    levels = np.zeros(SHAPE, np.uint8)
    levels[10:] = 200
    for none in (0, 200):
        path = store(tmp_path / f"{none}.{suffix}", levels, {}, fill_value=none)
        assert np.array_equal(read_map(path), levels)


@pytest.mark.parametrize(("kind", "none"), [("uint8", 255), ("uint8", None), ("float32", np.nan)])
def test_the_fill_value_marks_pixels_of_arrays_that_xarray_wrote_in_format_2(tmp_path, kind, none):
    """Xarray writes null where it has no _FillValue."""
    p = np.full(SHAPE, 0.25 if kind == "float32" else 255, kind)
    if kind == "float32":
        p[3, :7] = none
    else:
        p[4:] = 51
    path = store(tmp_path / "maps/a.v2", p, {"_ARRAY_DIMENSIONS": ["y", "x"]}, fill_value=none)
    about = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(about | {"fill_value": "NaN" if kind == "float32" else none}))
    write(tmp_path / "masks/a.tif", np.zeros(SHAPE, np.uint8))
    void = {255: 4 * SHAPE[1], None: 0}.get(none, 7)
    assert evaluate(tmp_path / "maps", tmp_path / "masks").record.pixels == p.size - void


@ARRAYS
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("uint8", value) for value in ("255", [1, 2], [], -1, 256, 1.5, np.nan, True)), ("int64", 1e30),
        *(("float32", value) for value in ("none", "AAAA", [0.0, 1.0], 1e39, False)), ("bool", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
def test_attributes_that_are_not_a_number_of_the_array_are_refused(tmp_path, suffix, kind, given, key):
    path = store(tmp_path / f"a.{suffix}", np.zeros(SHAPE, kind), {key: given})
    message = rf"a\.\w+: the attribute {key} = .*; expected a single number of type {kind}$"
    with pytest.raises(InputError, match=message):
        read_map(path)


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
