"""Readers of formats: TIFF in every layout, K classes from bands and pages, readers of other packages."""

from __future__ import annotations

import io
import zlib
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from densecal.data.pairs import find_pairs
from densecal.errors import InputError
from densecal.io.map_files import read_map
from densecal.io.map_options import MapOptions
from densecal.io.readers import registry
from densecal.io.readers.stored import StoredArray

K = 4
LAYOUTS = {
    "planar": {"planarconfig": "separate", "photometric": "minisblack"},
    "interleaved": {"planarconfig": "contig", "photometric": "minisblack"},
    "pages": {"photometric": "minisblack"},
}
STORAGE = {"plain": {}, "deflate": {"compression": "zlib"}, "tiles": {"tile": (16, 32)}}


def softmax_map(dtype: object = np.float32) -> np.ndarray:
    z = np.random.default_rng(0).normal(0, 2, (K, 40, 50))
    e = np.exp(z)
    return (e / e.sum(axis=0)).astype(dtype)


def write_tiff(path: Path, array: np.ndarray, layout: str, **options: object) -> Path:
    planes = np.ascontiguousarray(array.transpose(1, 2, 0)) if layout == "interleaved" else array
    tifffile.imwrite(path, planes, **LAYOUTS[layout], **options)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_classes_are_read_from_bands_and_pages(tmp_path, layout, storage, dtype):
    p = softmax_map(dtype)
    options = STORAGE[storage] | ({"byteorder": ">"} if dtype == ">f4" else {})
    path = write_tiff(tmp_path / "a.tif", p, layout, **options)
    assert np.array_equal(read_map(path, K), p)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_integers_stored_as_differences_are_read(tmp_path, layout):
    levels = np.rint(softmax_map(np.float64) * 65535).astype(np.uint16)
    path = write_tiff(tmp_path / "a.tif", levels, layout, compression="zlib", predictor=2)
    assert np.array_equal(read_map(path, K, options=MapOptions(max_value=65535)), levels / 65535)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_bands_or_pages_than_classes_are_refused_before_they_are_read(tmp_path, layout, monkeypatch):
    path = write_tiff(tmp_path / "a.tif", softmax_map(), layout)
    monkeypatch.setattr(tifffile.TiffPage, "asarray", None)
    with pytest.raises(InputError, match=r"4 bands or pages; expected one band, or --classes 4 for one"):
        read_map(path)
    with pytest.raises(InputError, match=r"4 bands or pages; expected 3 bands or pages$"):
        read_map(path, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, np.float16])
@pytest.mark.parametrize("storage", STORAGE)
def test_grey_maps_keep_their_values(tmp_path, dtype, storage):
    rng = np.random.default_rng(0)
    floats = np.issubdtype(dtype, np.floating)
    values = rng.random((40, 50)).astype(dtype) if floats else rng.integers(0, np.iinfo(dtype).max, (40, 50), dtype)
    tifffile.imwrite(tmp_path / "a.tif", values, **STORAGE[storage])
    read = read_map(tmp_path / "a.tif")
    assert read.dtype == (np.float32 if dtype == np.float16 else dtype)
    assert np.array_equal(read, values)


def test_a_grey_map_of_any_compression_is_read(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (40, 50)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.tif", compression="tiff_lzw")
    assert np.array_equal(read_map(tmp_path / "a.tif"), values)


def test_pages_in_a_compression_that_is_not_read_are_refused_by_name(tmp_path):
    pages = [Image.fromarray(plane) for plane in softmax_map()]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:], compression="tiff_lzw")
    with pytest.raises(InputError, match="LZW compression of several bands or pages; expected no compression, or def"):
        read_map(tmp_path / "a.tif", K)


def test_pages_of_several_bands_or_of_different_sizes_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 5, 6, 2), np.float32), photometric="minisblack", planarconfig=1)
    with pytest.raises(InputError, match="3 pages of 2 bands"):
        read_map(tmp_path / "a.tif", 3)
    with tifffile.TiffWriter(tmp_path / "b.tif") as file:
        for side in (5, 6):
            file.write(np.zeros((side, side), np.float32))
    with pytest.raises(InputError, match="pages of different sizes or types"):
        read_map(tmp_path / "b.tif", 2)


def test_a_file_cut_short_is_refused_unless_nothing_of_it_is_missing(tmp_path):
    """The end of a file may hold text about it."""
    p, errors = softmax_map(), 0
    for layout in LAYOUTS:
        for compression in (None, "zlib"):
            path = write_tiff(tmp_path / "a.tif", p, layout, compression=compression, metadata=None)
            content = path.read_bytes()
            for cut in range(1, 20):
                path.write_bytes(content[: len(content) * cut // 20])
                try:
                    read = read_map(path, K)
                except InputError:
                    errors += 1
                else:
                    assert np.array_equal(read, p)
    assert errors > 6 * 15


def test_a_missing_strip_is_not_read_as_zeros(tmp_path):
    path = write_tiff(tmp_path / "a.tif", softmax_map(), "planar", compression="zlib", rowsperstrip=40)
    with tifffile.TiffFile(path) as file:
        place = file.pages[0].tags[279].valueoffset
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes(2) + content[place + 2 :])
    with pytest.raises(InputError, match="a file cut short"):
        read_map(path, K)


def test_large_files_are_refused_before_they_are_read(tmp_path):
    path = write_tiff(tmp_path / "a.tif", softmax_map(), "planar")
    with pytest.raises(InputError, match=r"8,000 values; expected at most 4,000 \(raise the limit with --max-pixels\)"):
        read_map(path, K, max_pixels=1000)


def test_a_strip_that_inflates_to_more_than_the_image_is_refused(tmp_path):
    path = write_tiff(tmp_path / "a.tif", softmax_map(), "planar", compression="zlib", rowsperstrip=40)
    bomb = zlib.compress(bytes(80 << 20))
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(io.BytesIO(bytes(content))) as file:
        tags = file.pages[0].tags
        places = [(tags[code].valueoffset, tags[code].dtype) for code in (273, 279)]
    for (place, dtype), value in zip(places, (len(content), len(bomb)), strict=True):
        size = {3: 2, 4: 4}[int(dtype)]
        if value >= 1 << (8 * size):
            pytest.fail("the strip is described by a number that is too short for the bomb")
        content[place : place + size] = value.to_bytes(size, "little")
    path.write_bytes(bytes(content) + bomb)
    with pytest.raises(InputError, match="a strip or tile that is larger than the image"):
        read_map(path, K, max_pixels=4000)


def test_an_orientation_of_bands_is_refused(tmp_path):
    path = write_tiff(tmp_path / "a.tif", softmax_map(), "planar", extratags=[(274, "H", 1, 6, True)])
    with pytest.raises(InputError, match="orientation 6"):
        read_map(path, K)


def test_other_packages_add_readers_by_entry_points(tmp_path, monkeypatch):
    """The entry point `raw` reads files ending in .raw; it cannot take over a suffix that densecal reads."""
    points = [EntryPoint(name, f"{__name__}:open_raw", registry.GROUP) for name in ("raw", "npy", "png")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "densecal.readers" else [])
    for function in (registry.other_suffixes, registry._others, registry._load):
        function.cache_clear()
    try:
        (tmp_path / "maps").mkdir()
        (tmp_path / "masks").mkdir()
        p = softmax_map(np.float32)[0]
        (tmp_path / "maps" / "a.raw").write_bytes(p.tobytes())
        Image.fromarray(np.zeros(p.shape, np.uint8)).save(tmp_path / "masks" / "a.png")
        np.save(tmp_path / "b.npy", p)
        (pair,), _ = find_pairs(tmp_path / "maps", tmp_path / "masks")
        assert np.array_equal(read_map(pair.prediction), p)
        assert np.array_equal(read_map(tmp_path / "b.npy"), p)
        assert registry.other_suffixes() == (".raw",)
    finally:
        for function in (registry.other_suffixes, registry._others, registry._load):
            function.cache_clear()


@contextmanager
def open_raw(path: Path, key: str | None, max_values: int):
    yield StoredArray(np.frombuffer(path.read_bytes(), np.float32).reshape(40, 50))
