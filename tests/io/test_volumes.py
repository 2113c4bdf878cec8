"""Readers of volumes, rasters and containers, on files that the formats' own libraries wrote."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path

import h5py
import nibabel
import nrrd
import numpy as np
import pytest
import rasterio
import tifffile
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rasterio.transform import from_origin
from safetensors.numpy import save_file

from densecal.errors import InputError
from densecal.io.axes import find_axes
from densecal.io.images import open_image
from densecal.io.map_files import read_map
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.masks import read_foreground, read_label_mask
from densecal.io.pairs import Pair, read_class_pair, read_foreground_pair
from densecal.io.readers.registry import find_reader
from densecal.io.readers.stored import FileArray, readable

K = 3
SHAPE = (4, 5, 6)  # Z, Y, X
AFFINE = np.array([[-0.8, 0.1, 0, 10], [0.05, -0.9, 0, 20], [0, 0.2, 2.5, -30], [0, 0, 0, 1.0]])
LPS = np.diag([-1.0, -1.0, 1.0])


def softmax_map() -> np.ndarray:
    e = np.exp(np.random.default_rng(0).normal(0, 2, (K, *SHAPE)))
    return (e / e.sum(axis=0)).astype(np.float32)


def foreground_map() -> np.ndarray:
    return softmax_map()[0]


# ------------------------------------------------------------------ writers: (K, Z, Y, X) or (Z, Y, X) in, a file out


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    nibabel.save(nibabel.Nifti1Image(array.T, affine), path)  # (X, Y, Z) or (X, Y, Z, K)
    return path


def write_nifti2(path: Path, array: np.ndarray) -> Path:
    nibabel.save(nibabel.Nifti2Image(array.T, AFFINE), path)
    return path


def write_nrrd(path: Path, array: np.ndarray, **header: object) -> Path:
    directions = (AFFINE[:3, :3].T @ LPS).tolist()
    several = array.ndim == 4
    about = {
        "space": "left-posterior-superior",
        "space directions": [[np.nan] * 3, *directions] if several else directions,
        "space origin": (LPS @ AFFINE[:3, 3]).tolist(),
        "kinds": ["vector"] * several + ["domain"] * 3,
    }
    stored = np.moveaxis(array, 0, -1) if several else array  # channels change first
    nrrd.write(str(path), stored.T, about | header, index_order="F")
    return path


def write_metaimage(path: Path, array: np.ndarray, compressed: bool = False, detached: bool = False) -> Path:
    several = array.ndim == 4
    stored = np.ascontiguousarray(np.moveaxis(array, 0, -1) if several else array)
    steps = (AFFINE[:3, :3].T @ LPS).astype(float)
    spacing = np.linalg.norm(steps, axis=1)
    kind = {"float32": "MET_FLOAT", "uint8": "MET_UCHAR"}[str(array.dtype)]
    data = zlib.compress(stored.tobytes()) if compressed else stored.tobytes()
    lines = [
        "ObjectType = Image", "NDims = 3", "BinaryData = True", "BinaryDataByteOrderMSB = False",
        f"CompressedData = {compressed}",
        "TransformMatrix = " + " ".join(repr(float(x)) for x in (steps / spacing[:, None]).ravel()),
        "Offset = " + " ".join(repr(float(x)) for x in LPS @ AFFINE[:3, 3]),
        "ElementSpacing = " + " ".join(repr(float(x)) for x in spacing),
        "DimSize = " + " ".join(map(str, array.shape[:-4:-1])), f"ElementNumberOfChannels = {K if several else 1}",
        f"ElementType = {kind}", f"ElementDataFile = {'a.raw' if detached else 'LOCAL'}",
    ]  # fmt: skip
    header = ("\n".join(lines) + "\n").encode()
    path.write_bytes(header if detached else header + data)
    if detached:
        (path.parent / "a.raw").write_bytes(data)
    return path


def write_hdf5(path: Path, array: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("scores/p", data=array, chunks=True, compression="gzip")
    return path


def write_zarr(path: Path, array: np.ndarray) -> Path:
    zarr.create_array(str(path), data=array, chunks=(2,) * array.ndim)
    return path


def write_ome_zarr(path: Path, array: np.ndarray) -> Path:
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    names = "tczyx" if array.ndim == 4 else "tzyx"
    kinds = {"t": "time", "c": "channel"}
    group.create_array("0", data=array[None], chunks=(1,) * (array.ndim - 2) + (3, 3, 3))
    scale = [1.0] * (len(names) - 3) + [2.5, 0.9, 0.8]
    axes = [{"name": n, "type": kinds.get(n, "space")} | ({} if n in kinds else {"unit": "millimeter"}) for n in names]
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": scale}]}]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    return path


def write_safetensors(path: Path, array: np.ndarray) -> Path:
    save_file({"p": np.ascontiguousarray(array)}, path)
    return path


def write_npz(path: Path, array: np.ndarray) -> Path:
    np.savez_compressed(path, p=array)
    return path


WRITERS = {
    "a.nii": write_nifti,
    "a.nii.gz": write_nifti,
    "b.nii": write_nifti2,
    "a.nrrd": write_nrrd,
    "b.nrrd": lambda path, array: write_nrrd(path, array, encoding="raw"),
    "a.nhdr": lambda path, array: write_nrrd(path, array, encoding="raw"),
    "a.mha": write_metaimage,
    "b.mha": lambda path, array: write_metaimage(path, array, compressed=True),
    "a.mhd": lambda path, array: write_metaimage(path, array, detached=True),
    "a.h5": write_hdf5,
    "a.zarr": write_zarr,
    "b.zarr": write_ome_zarr,
    "a.safetensors": write_safetensors,
    "a.npz": write_npz,
    "a.npy": lambda path, array: np.save(path, array) or path,
    "b.npy": lambda path, array: np.save(path, np.asfortranarray(array)) or path,
    "a.pt": lambda path, array: torch.save({"seg_logits": {"data": torch.from_numpy(array)}}, path) or path,
}
WITH_PLACE = ("a.nii", "a.nii.gz", "b.nii", "a.nrrd", "a.nhdr", "a.mha", "b.mha", "a.mhd")


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("name", WRITERS)
def test_volumes_of_every_format_are_read_as_classes_and_space(tmp_path, name):
    path = WRITERS[name](tmp_path / name, softmax_map())
    assert np.array_equal(read_map(path, K), softmax_map())


@pytest.mark.parametrize("name", WRITERS)
def test_masks_of_every_format_are_read(tmp_path, name):
    labels = softmax_map().argmax(axis=0).astype(np.uint8)
    path = WRITERS[name](tmp_path / name, labels)
    assert np.array_equal(read_label_mask(path, name, K).labels, labels)
    path = WRITERS[name](tmp_path / f"x{name}", (labels == 1).astype(np.uint8))
    assert np.array_equal(read_foreground(path, name).foreground, labels == 1)


@pytest.mark.parametrize("name", [*WRITERS, "a.tif", "b.tif"])
def test_an_error_of_whoever_reads_values_is_not_blamed_on_the_file(tmp_path, name):
    if name == "b.tif":
        path = write_raster(tmp_path / name, softmax_map()[:, 0])
    elif name == "a.tif":
        path = tmp_path / name
        tifffile.imwrite(path, softmax_map()[:, 0], photometric="minisblack")
    else:
        path = WRITERS[name](tmp_path / name, softmax_map())
    open_file = find_reader(path)
    assert open_file is not None
    with pytest.raises(ZeroDivisionError), open_file(path, None, 10**6) as stored:
        assert stored.read().size == 1 / 0


@pytest.mark.parametrize("error", [NameError("misspelt"), ImportError("no module"), InputError("a", "b", "c")])
def test_no_file_is_blamed_for_a_name_or_a_module(error):
    with pytest.raises(type(error)) as caught, readable("a.nii", "a file"):
        raise error
    assert caught.value is error


def test_an_error_of_whoever_uses_an_image_is_not_blamed_on_the_file(tmp_path):
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(ZeroDivisionError), open_image(tmp_path / "a.png", "a.png", 100) as image:
        assert image.width == 1 / 0


def test_a_disk_that_fails_while_values_are_read_is_one_line_with_the_name(tmp_path, monkeypatch):
    path = write_nifti(tmp_path / "a.nii", softmax_map())

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileArray, "_read_into", fail)
    with pytest.raises(InputError, match=r"a\.nii: unreadable \(.*Input/output error\)"):
        read_map(path, K)


def test_slabs_of_every_format_are_those_of_the_whole(tmp_path):
    p = softmax_map()
    for name, write in WRITERS.items():
        path = write(tmp_path / name, p)
        reader = find_reader(path)
        with reader(path, None, p.size) as stored:
            axes = find_axes(stored, name, K, AS_STORED, 3)
            for rows in (slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 4)):
                assert np.array_equal(axes.read(stored, rows), p[:, rows]), (name, rows)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_part_of_plain_numbers_in_a_file_is_read(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    ends = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    window = tuple(slice(*end) for end in ends[: data.draw(st.integers(0, len(shape)))])
    stored = FileArray(io.BytesIO(b"head" + values.tobytes()), "a", 4, values.dtype, tuple(shape))
    assert np.array_equal(stored.read(window), values[window])


def test_scaled_nifti_values_are_those_that_nibabel_gives(tmp_path):
    image = nibabel.Nifti1Image(foreground_map().T, AFFINE)
    image.set_data_dtype(np.int16)
    nibabel.save(image, tmp_path / "a.nii.gz")
    expected = np.asarray(nibabel.load(tmp_path / "a.nii.gz").dataobj).T
    assert np.array_equal(read_map(tmp_path / "a.nii.gz"), expected.clip(0, 1))
    assert np.abs(expected - foreground_map()).max() < 1e-4


def test_bfloat16_tensors_keep_their_values(tmp_path):
    from safetensors.torch import save_file as save_tensors

    p = torch.from_numpy(foreground_map()).to(torch.bfloat16)
    save_tensors({"p": p}, tmp_path / "a.safetensors")
    assert np.array_equal(read_foreground_map(tmp_path / "a.safetensors"), p.float().numpy())


def read_foreground_map(path: Path) -> np.ndarray:
    np.save(path.with_name("mask.npy"), foreground_map() > 0.5)
    return read_foreground_pair(Pair("a", path, path.with_name("mask.npy"))).prediction


def test_a_batch_of_one_and_channels_last_are_read(tmp_path):
    p = softmax_map()
    np.save(tmp_path / "a.npy", p[None])
    assert np.array_equal(pair_map(tmp_path / "a.npy"), p)
    np.save(tmp_path / "a.npy", np.moveaxis(p, 0, -1))
    assert np.array_equal(pair_map(tmp_path / "a.npy", MapOptions(channels_last=True)), p)
    with pytest.raises(InputError, match=r"shape \(3, D, H, W\), one probability per class, or --channels-last"):
        pair_map(tmp_path / "a.npy")


def pair_map(path: Path, options: MapOptions = AS_STORED) -> np.ndarray:
    np.save(path.with_name("mask.npy"), softmax_map().argmax(axis=0).astype(np.uint8))
    return read_class_pair(Pair("a", path, path.with_name("mask.npy")), K, options=options).prediction


# ------------------------------------------------------------------ geometry


@pytest.mark.parametrize("name", WITH_PLACE)
def test_every_medical_format_says_where_its_voxels_lie(tmp_path, name):
    """All were written for the same affine, which nibabel defines."""
    path = WRITERS[name](tmp_path / name, (foreground_map() > 0.5).astype(np.uint8))
    geometry = read_foreground(path, name).geometry
    index = np.array([3, 2, 1])  # z, y, x
    expected = AFFINE[:3, :3] @ index[::-1] + AFFINE[:3, 3]
    assert geometry.steps.T @ index + geometry.origin == pytest.approx(expected, abs=1e-5)
    assert geometry.spacing == pytest.approx(np.linalg.norm(AFFINE[:3, :3], axis=0)[::-1], abs=1e-6)


@pytest.mark.parametrize("name", WITH_PLACE)
def test_a_map_in_one_format_fits_its_mask_in_another(tmp_path, name):
    labels = softmax_map().argmax(axis=0).astype(np.uint8)
    mask = write_nifti(tmp_path / "mask.nii.gz", labels)
    path = WRITERS[name](tmp_path / name, softmax_map())
    read = read_class_pair(Pair("a", path, mask), K)
    p, y, resized = read.prediction, read.labels, read.resized
    assert np.array_equal(p, softmax_map())
    assert np.array_equal(y, labels)
    assert not resized


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (np.diag([1, 1, 2.0, 1]), "a spacing of .*; expected .*, as its mask has"),
        (np.diag([1, -1, 1.0, 1]), "directions of"),
        (np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 1.0]]), "an origin of"),
    ],
)
def test_a_map_that_lies_elsewhere_than_its_mask_is_refused(tmp_path, change, words):
    mask = write_nifti(tmp_path / "mask.nii.gz", (foreground_map() > 0.5).astype(np.uint8))
    path = write_nifti(tmp_path / "a.nii.gz", foreground_map(), AFFINE @ change)
    with pytest.raises(InputError, match=words):
        read_foreground_pair(Pair("a", path, mask))


def test_headers_that_differ_by_rounding_agree(tmp_path):
    mask = write_nifti(tmp_path / "mask.nii.gz", (foreground_map() > 0.5).astype(np.uint8))
    path = write_nifti(tmp_path / "a.nii.gz", foreground_map(), AFFINE + 1e-4)
    assert np.array_equal(read_foreground_pair(Pair("a", path, mask)).prediction, foreground_map())


def test_a_cube_whose_axes_are_unknown_is_refused_beside_one_whose_axes_are_known(tmp_path):
    """nibabel's arrays are (X, Y, Z), those of SimpleITK and nnU-Net (Z, Y, X): on a cube nothing tells them apart."""
    p = np.random.default_rng(0).random((4, 5, 4))
    mask = write_nifti(tmp_path / "mask.nii.gz", (p > 0.5).astype(np.uint8))
    np.save(tmp_path / "a.npy", p)
    pair = Pair("a", tmp_path / "a.npy", mask)
    with pytest.raises(InputError, match=r"axes may be \(Z, Y, X\) or \(X, Y, Z\); expected --axes zyx .* --axes xyz"):
        read_foreground_pair(pair)
    assert np.array_equal(read_foreground_pair(pair, options=MapOptions(axes="zyx")).prediction, p)
    assert np.array_equal(read_foreground_pair(pair, options=MapOptions(axes="xyz")).prediction, p.T)
    np.save(tmp_path / "mask.npy", p > 0.5)
    with pytest.raises(InputError, match=r"mask.npy: a volume .* axes may be"):
        read_foreground_pair(Pair("a", write_nifti(tmp_path / "a.nii", p), tmp_path / "mask.npy"))


def test_reversed_axes_are_refused_with_the_option_that_turns_them(tmp_path):
    mask = write_nifti(tmp_path / "mask.nii.gz", (foreground_map() > 0.5).astype(np.uint8))
    np.save(tmp_path / "a.npy", foreground_map().T)
    pair = Pair("a", tmp_path / "a.npy", mask)
    with pytest.raises(InputError, match=r"\(6, 5, 4\); expected \(4, 5, 6\), as its mask has; --axes xyz"):
        read_foreground_pair(pair)
    assert np.array_equal(read_foreground_pair(pair, options=MapOptions(axes="xyz")).prediction, foreground_map())


def test_volumes_written_by_simpleitk_fit_each_other_in_all_formats(tmp_path):
    sitk = pytest.importorskip("SimpleITK", reason="SimpleITK is not installed")
    labels = softmax_map().argmax(axis=0).astype(np.uint8)
    angle = 0.3
    direction = (np.cos(angle), -np.sin(angle), 0, np.sin(angle), np.cos(angle), 0, 0, 0, 1)
    for kind in ("nii.gz", "mha", "nrrd", "mhd"):
        for name, image in (("mask", sitk.GetImageFromArray(labels)), ("map", vector_image(sitk))):
            image.SetSpacing((0.8, 0.9, 2.5))
            image.SetOrigin((10, -20, 30.0))
            image.SetDirection(direction)
            sitk.WriteImage(image, str(tmp_path / f"{name}.{kind}"), kind != "mhd")
    for kind in ("nii.gz", "mha", "nrrd", "mhd"):
        for other in ("nii.gz", "mha", "nrrd", "mhd"):
            both = read_class_pair(Pair("a", tmp_path / f"map.{kind}", tmp_path / f"mask.{other}"), K)
            p, y = both.prediction, both.labels
            assert np.array_equal(p, softmax_map())
            assert np.array_equal(y, labels)


def vector_image(sitk: object) -> object:
    return sitk.GetImageFromArray(np.moveaxis(softmax_map(), 0, -1), isVector=True)


# ------------------------------------------------------------------ rasters


def write_raster(
    path: Path, array: np.ndarray, west: float = 100.0, system: str = "EPSG:32633", **more: object
) -> Path:
    bands = array if array.ndim == 3 else array[None]
    profile = {"driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    place = {"crs": system, "transform": from_origin(west, 500.0, 10.0, 10.0)}
    with rasterio.open(path, "w", **profile, dtype=array.dtype, **place, **more) as file:
        file.write(bands)
    return path


@pytest.mark.parametrize("more", [{}, {"compress": "lzw"}, {"tiled": True, "blockxsize": 16, "blockysize": 16}])
def test_bands_of_a_geotiff_are_classes(tmp_path, more):
    p = np.tile(softmax_map()[:, 0], (1, 6, 7))
    path = write_raster(tmp_path / "a.tif", p, **more)
    mask = write_raster(tmp_path / "mask.tif", p.argmax(axis=0).astype(np.uint8))
    both = read_class_pair(Pair("a", path, mask), K)
    read, labels = both.prediction, both.labels
    assert np.array_equal(read, p)
    assert np.array_equal(labels, p.argmax(axis=0))


def test_pixels_without_data_are_void(tmp_path):
    p = softmax_map()[:, 0].copy()
    p[:, 1, 2:4] = -9999.0
    y = np.zeros(p.shape[1:], np.uint8)
    y[0, 0] = 99
    path = write_raster(tmp_path / "a.tif", p, nodata=-9999.0)
    mask = write_raster(tmp_path / "mask.tif", y, nodata=99)
    both = read_class_pair(Pair("a", path, mask), K)
    read, labels = both.prediction, both.labels
    void = np.zeros(y.shape, bool)
    void[1, 2:4] = void[0, 0] = True
    assert np.array_equal(labels == 255, void)
    assert np.array_equal(read[:, ~(p < 0).any(axis=0)], p[:, ~(p < 0).any(axis=0)])
    pair = Pair("a", write_raster(tmp_path / "b.tif", p[0], nodata=-9999.0), mask)
    assert np.array_equal(read_foreground_pair(pair).valid, ~void)
    with pytest.raises(InputError, match="pixels without data; expected a value in every pixel"):
        read_map(path, K)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"west": 110.0}, "an origin of"),
        ({"system": "EPSG:32634"}, "the coordinate system EPSG:32634; expected EPSG:32633"),
    ],
)
def test_rasters_of_different_places_are_refused(tmp_path, change, words):
    p = softmax_map()[0, 0]
    path = write_raster(tmp_path / "a.tif", p, **change)
    mask = write_raster(tmp_path / "mask.tif", (p > 0.5).astype(np.uint8))
    with pytest.raises(InputError, match=words):
        read_foreground_pair(Pair("a", path, mask))


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize("name", [name for name in WRITERS if "zarr" not in name])
def test_files_cut_short_are_refused(tmp_path, name):
    path = WRITERS[name](tmp_path / name, softmax_map())
    target = next((tmp_path / other for other in ("a.raw",) if (tmp_path / other).exists()), path)
    content = target.read_bytes()
    for share in range(20):
        target.write_bytes(content[: len(content) * share // 20])
        with pytest.raises(InputError):
            read_map(path, K)


@pytest.mark.parametrize("name", WRITERS)
def test_files_with_more_values_than_allowed_are_refused(tmp_path, name):
    path = WRITERS[name](tmp_path / name, softmax_map())
    with pytest.raises(InputError, match=r"360 values; expected at most 300 \(raise the limit with --max-pixels\)"):
        read_map(path, K, max_pixels=100)


def test_a_header_that_claims_what_the_file_has_not_costs_no_memory(tmp_path):
    path = write_nifti(tmp_path / "a.nii", foreground_map())
    content = bytearray(path.read_bytes())
    content[42:48] = np.array([4000, 4000, 4], "<i2").tobytes()
    path.write_bytes(content)
    with pytest.raises(InputError, match="a file cut short"):
        read_map(path)
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(InputError, match="a file cut short"):
        read_map(tmp_path / "b.nii.gz")


def test_values_in_another_folder_are_not_opened(tmp_path):
    (tmp_path / "in").mkdir()
    path = write_metaimage(tmp_path / "in" / "a.mhd", foreground_map(), detached=True)
    (tmp_path / "in" / "a.raw").rename(tmp_path / "a.raw")
    path.write_bytes(path.read_bytes().replace(b"= a.raw", b"= ../a.raw"))
    with pytest.raises(InputError, match=r"values in '../a.raw'; expected one file of values in the folder"):
        read_map(path)


def test_labels_of_several_classes_are_no_foreground(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", softmax_map().argmax(axis=0).astype(np.uint8))
    with pytest.raises(InputError, match=r"labels up to 2; expected a foreground mask of 0 and 1; --classes 3"):
        read_foreground(path, "a")


def test_several_arrays_need_a_key(tmp_path):
    for name, write in (("a.h5", h5_two), ("a.zarr", zarr_two), ("a.safetensors", tensors_two)):
        write(tmp_path / name)
        with pytest.raises(InputError, match=r"2 arrays \(p, q\); expected .* that holds one array; --key NAME"):
            read_map(tmp_path / name)
        assert read_map(tmp_path / name, options=MapOptions(key="q")).tolist() == [[0.5]]


def h5_two(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["p"] = file["q"] = np.full((1, 1), 0.5)


def zarr_two(path: Path) -> None:
    group = zarr.open_group(str(path), mode="w")
    for name in "pq":
        group.create_array(name, data=np.full((1, 1), 0.5))


def tensors_two(path: Path) -> None:
    save_file({name: np.full((1, 1), 0.5) for name in "pq"}, path)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("a.nii", "nibabel", "medical"),
        ("a.h5", "h5py", "zarr"),
        ("a.zarr", "numcodecs", "zarr"),
        ("a.tif", "rasterio", "geo"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, name, module, extra):
    path = write_raster(tmp_path / name, foreground_map()[0]) if name == "a.tif" else None
    path = path or WRITERS[name](tmp_path / name, foreground_map())
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"a format that {module} reads; expected pip install 'densecal\[{extra}\]'"):
        read_map(path)
