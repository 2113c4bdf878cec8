"""Calibrated GeoTIFF and Zarr maps, read back by rasterio and zarr themselves."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import zarr
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import from_origin

from densecal import load_calibrator
from densecal.calibrate import folders
from densecal.io.map_files import read_map, read_stored_map
from densecal.io.map_options import MapOptions
from tests.running import run

K = 3
PLACE = {"crs": CRS.from_epsg(32633), "transform": from_origin(100.0, 500.0, 10.0, 12.5)}


def draw(*shape: int) -> np.ndarray:
    z = np.random.default_rng(0).normal(0, 2, (K, *shape))
    return np.asarray((np.exp(z) / np.exp(z).sum(axis=0)).astype(np.float32))


def cooled(p: np.ndarray) -> np.ndarray:
    """Probabilities at temperature 2."""
    powers = np.sqrt(p.astype(np.float64) if p.ndim > 2 else np.stack([1 - p.astype(np.float64), p]))
    return powers / powers.sum(axis=0) if p.ndim > 2 else (powers / powers.sum(axis=0))[1]


def apply(root: Path, classes: int, *options: object, name: str = "maps") -> tuple[int, str]:
    calibrator = {"densecal": "calibrator", "version": 1, "method": "temperature", "temperature": 2.0}
    (root / "c.json").write_text(json.dumps(calibrator | {"classes": classes}))
    code, _, err = run("calibrate", "apply", root / "c.json", root / name, "--out", root / "out", *options)
    return code, err


def write_raster(path: Path, bands: np.ndarray, place: dict = PLACE, mask: np.ndarray | None = None, **more) -> None:
    path.parent.mkdir(exist_ok=True)
    bands = bands if bands.ndim == 3 else bands[None]
    profile = {"driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", **profile, dtype=bands.dtype, **place, **more) as file,
    ):
        file.write(bands)
        file.descriptions = [f"class {k}" for k in range(len(bands))]
        if mask is not None:
            file.write_mask(mask)


@pytest.mark.parametrize("classes", [1, K])
@pytest.mark.parametrize("compress", ["lzw", "deflate"])
def test_a_geotiff_keeps_its_place_and_its_pixels_without_data(tmp_path, classes, compress):
    p = draw(40, 50) if classes > 1 else draw(40, 50)[1]
    void = np.zeros((40, 50), bool)
    void[3:7, 10:] = True
    write_raster(tmp_path / "maps/a.tiff", np.where(void, np.float32(-9999), p), nodata=-9999, compress=compress)
    assert apply(tmp_path, classes)[0] == 0
    assert apply(tmp_path, classes)[0] == 0, "it may replace its own files"
    with rasterio.open(tmp_path / "out/a.tif") as file:
        assert (file.crs, file.transform, file.nodata) == (PLACE["crs"], PLACE["transform"], -9999)
        assert file.descriptions == tuple(f"class {k}" for k in range(classes))
        assert set(file.dtypes) == {"float32"}
        assert ((file.read_masks() == 0) == void).all()
        written = file.read()
    assert (written[:, void] == -9999).all()
    expected = cooled(p).reshape(classes, 40, 50)
    np.testing.assert_allclose(written[:, ~void], expected[:, ~void], atol=1e-6)


@pytest.mark.parametrize("nodata", [0, 255])
def test_levels_become_probabilities_that_are_never_taken_for_no_data(tmp_path, nodata):
    levels = np.arange(256, dtype=np.uint8).reshape(8, 32)
    write_raster(tmp_path / "maps/a.tif", levels, nodata=nodata)
    assert apply(tmp_path, 1)[0] == 0
    with rasterio.open(tmp_path / "out/a.tif") as file:
        assert np.isnan(file.nodata) if nodata == 0 else file.nodata == 255
        assert ((file.read_masks(1) == 0) == (levels == nodata)).all()
        kept = (levels > 0) & (levels < 255)  # the levels of p = 0 and 1 have logits of their own
        np.testing.assert_allclose(file.read(1)[kept], cooled(levels / 255)[kept], atol=1e-5)


def test_masks_inside_and_control_points_are_kept(tmp_path):
    p, void = draw(16, 20)[0], np.zeros((16, 20), bool)
    void[:4] = True
    write_raster(tmp_path / "maps/mask.tif", p, mask=~void)
    write_raster(tmp_path / "maps/unplaced.tif", p, {}, nodata=-1)
    corners = [(0, 0), (0, 20), (16, 0), (16, 20)]
    points = [GroundControlPoint(row=r, col=c, x=12 + c / 100, y=47 - r / 100, z=0) for r, c in corners]
    write_raster(tmp_path / "maps/points.tif", p, {"gcps": points, "crs": CRS.from_epsg(4326)})
    code, err = apply(tmp_path, 1)
    assert code == 0
    assert "warning" not in err.lower()
    with rasterio.open(tmp_path / "out/mask.tif") as file:
        assert np.isnan(file.nodata)
        assert ((file.read_masks(1) == 0) == void).all()
    with rasterio.open(tmp_path / "out/unplaced.tif") as file:
        assert (file.crs, file.transform.is_identity, file.nodata) == (None, True, -1)
    with rasterio.open(tmp_path / "out/points.tif") as file:
        kept, system = file.gcps
        assert system == CRS.from_epsg(4326)
        place = attrgetter("row", "col", "x", "y")
        assert list(map(place, kept)) == list(map(place, points))


def test_the_share_of_changed_decisions_is_that_of_pixels_with_data(tmp_path):
    p = np.full((10, 10), 0.6, np.float32)
    p[:5], p[5, 0] = -1, 0.99
    write_raster(tmp_path / "maps/a.tif", p, nodata=-1)
    content = {"densecal": "calibrator", "version": 1, "method": "platt", "classes": 1, "a": 1.0, "b": -1.0}
    (tmp_path / "c.json").write_text(json.dumps(content))
    lower = load_calibrator(tmp_path / "c.json")
    assert folders.apply(lower, tmp_path / "maps", tmp_path / "out").flip_rate == 49 / 50


def test_other_rasters_are_not_replaced(tmp_path):
    write_raster(tmp_path / "maps/a.tif", draw(16, 20)[0])
    write_raster(tmp_path / "out/a.tif", draw(16, 20)[0])
    code, err = apply(tmp_path, 1)
    assert code == 2
    assert "a file that densecal calibrate apply did not write" in err
    assert apply(tmp_path, 1, "--force")[0] == 0


def image(path: Path, values: np.ndarray, axes: str, version: int) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    group.create_array("full", data=values, chunks=(1,) * (values.ndim - 2) + (8, 8))
    kinds = {"t": "time", "c": "channel"}
    named = [{"name": n, "type": kinds.get(n, "space")} | ({} if n in kinds else {"unit": "micrometer"}) for n in axes]
    scale = [{"z": 2.5, "y": 0.5, "x": 0.25}.get(name, 1.0) for name in axes]
    shift = [{"z": 10.0, "y": 20.0}.get(name, 0.0) for name in axes]
    moved = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": shift}]
    scales = [{"axes": named, "datasets": [{"path": "full", "coordinateTransformations": moved}]}]
    group.attrs.update({"multiscales": scales} if version == 2 else {"ome": {"version": "0.5", "multiscales": scales}})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("axes", "kept"), [("zyx", "zyx"), ("tczyx", "czyx"), ("yxc", "cyx"), ("yx", "yx")])
def test_an_ome_zarr_image_keeps_its_axes_and_scale(tmp_path, axes, kept, version):
    lengths = {"t": 1, "c": K, "z": 5, "y": 70, "x": 20}
    classes = K if "c" in axes else 1
    p = draw(*(lengths[name] for name in kept if name != "c"))
    p = p if classes > 1 else p[1]
    stored = p[None] if axes[0] == "t" else np.moveaxis(p, 0, -1) if axes == "yxc" else p
    image(tmp_path / "maps/a.zarr", stored, axes, version)
    assert apply(tmp_path, classes)[0] == 0
    assert apply(tmp_path, classes)[0] == 0, "it may replace its own files"
    group = zarr.open_group(str(tmp_path / "out/a.zarr"), mode="r")
    (about,) = group.attrs["ome"]["multiscales"]
    assert "".join(axis["name"] for axis in about["axes"]) == kept
    (dataset,) = about["datasets"]
    scale, shift = dataset["coordinateTransformations"]
    assert scale["scale"] == [{"z": 2.5, "y": 0.5, "x": 0.25}.get(name, 1.0) for name in kept]
    assert shift["translation"] == [{"z": 10.0, "y": 20.0}.get(name, 0.0) for name in kept]
    shape = p.shape
    np.testing.assert_allclose(group[dataset["path"]][:], expected_of(p, classes).reshape(shape), atol=1e-6)
    np.testing.assert_allclose(read_map(tmp_path / "out/a.zarr", classes), group[dataset["path"]][:])


def expected_of(p: np.ndarray, classes: int) -> np.ndarray:
    return cooled(p.reshape(K, -1, p.shape[-1])) if classes > 1 else cooled(p.reshape(-1, p.shape[-1]))


def test_a_zarr_array_stays_one(tmp_path):
    p = draw(5, 70, 20)
    (tmp_path / "maps").mkdir()
    zarr.create_array(str(tmp_path / "maps/a.zarr"), data=p, chunks=(1, 3, 30, 30))
    assert apply(tmp_path, K)[0] == 0
    np.testing.assert_allclose(
        zarr.open_array(str(tmp_path / "out/a.zarr"), mode="r")[:], expected_of(p, K).reshape(p.shape), atol=1e-6
    )


@pytest.mark.parametrize("classes", [1, K])
@pytest.mark.parametrize("of_image", [True, False])
def test_zarr_maps_keep_their_pixels_without_data(tmp_path, classes, of_image):
    p = draw(40, 50) if classes > 1 else draw(40, 50)[1]
    void = np.zeros((40, 50), bool)
    void[3:7, 10:] = True
    path, stored = tmp_path / "maps/a.zarr", np.where(void, np.float32(-9999), p)
    if of_image:
        image(path, stored, "cyx" if classes > 1 else "yx", 3)
        zarr.open_array(str(path / "full")).attrs["_FillValue"] = -9999
    else:
        zarr.create_array(str(path), data=stored, attributes={"_FillValue": -9999})
    assert apply(tmp_path, classes)[0] == 0
    written = read_stored_map(tmp_path / "out/a.zarr", classes, 10_000, MapOptions())
    assert np.array_equal(written.void, void)
    np.testing.assert_allclose(written.values[..., ~void], cooled(p)[..., ~void], atol=1e-6)
    assert np.isnan(zarr.open_array(str(tmp_path / "out/a.zarr" / ("0" if of_image else "")))[:][..., void]).all()


def test_pixels_without_data_are_not_written_as_if_they_had_some(tmp_path):
    (tmp_path / "maps").mkdir()
    with h5py.File(tmp_path / "maps/a.h5", "w") as file:
        file.create_dataset("p", data=np.arange(256, dtype=np.uint8).reshape(16, 16)).attrs["_FillValue"] = 255
    code, err = apply(tmp_path, 1)
    assert code == 2
    assert "a.h5: pixels without data; expected GeoTIFF or Zarr, which can mark them in the calibrated map" in err
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("version", [2, 3])
def test_other_zarr_folders_are_not_replaced(tmp_path, version):
    for folder in ("maps", "out"):
        zarr.create_array(str(tmp_path / f"{folder}/a.zarr"), data=draw(16, 20)[0], zarr_format=version)
    code, err = apply(tmp_path, 1)
    assert code == 2
    assert "a file that densecal calibrate apply did not write" in err
    assert apply(tmp_path, 1, "--force")[0] == 0
    assert read_map(tmp_path / "out/a.zarr").max() < 1
