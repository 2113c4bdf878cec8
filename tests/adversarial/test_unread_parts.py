"""Files that hold more than one plain picture: pages, frames, bands, transparency, an orientation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from densecal.errors import InputError
from densecal.io.images import read_image
from densecal.io.map_files import read_map
from densecal.io.masks import read_foreground, read_labels, read_mask
from tests.adversarial.common import assert_one_line, densecal

LEVELS = np.random.default_rng(0).integers(0, 2, (3, 6, 8)).astype(np.uint8) * 255
READERS: dict[str, Callable[[Path], object]] = {
    "map": read_map,
    "mask": lambda path: read_mask(path, str(path)),
    "foreground": lambda path: read_foreground(path, str(path)),
    "labels": lambda path: read_labels(path, str(path), 2),
    "image": lambda path: read_image(path, str(path)),
}
EVERY_READER = pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())


def refused(read: Callable[[Path], object], path: Path) -> InputError:
    with pytest.raises(InputError) as error:
        read(path)
    assert path.name in str(error.value)
    return error.value


def write_frames(path: Path, frames: int = 3, **options: object) -> Path:
    first, *rest = (Image.fromarray(plane) for plane in LEVELS[:frames])
    first.save(path, save_all=True, append_images=rest, **options)
    return path


@EVERY_READER
@pytest.mark.parametrize("suffix", [".webp", ".png", ".tif"])
def test_every_frame_or_page_is_read_or_the_file_is_refused(tmp_path, read, suffix):
    path = write_frames(tmp_path / f"a{suffix}", **({"lossless": True} if suffix == ".webp" else {}))
    assert refused(read, path).found in (("3 pages", "3 bands or pages") if suffix == ".tif" else ("3 frames",))


@EVERY_READER
def test_an_animated_gif_is_refused_whatever_its_name(tmp_path, read):
    path = write_frames(tmp_path / "a.gif").rename(tmp_path / "a.png")
    assert refused(read, path).found == "3 frames"


@EVERY_READER
def test_a_single_frame_is_read(tmp_path, read):
    for suffix in (".png", ".tif", ".gif"):
        path = write_frames(tmp_path / f"a{suffix}", 1)
        read(path.rename(tmp_path / "b.png") if suffix == ".gif" else path)


@EVERY_READER
@pytest.mark.parametrize("bands", [2, 5])
def test_more_bands_than_are_read_are_refused(tmp_path, read, bands):
    """Pillow reads grey with a second band as grey, and RGB with two more as RGB."""
    pixels = np.concatenate([LEVELS, LEVELS])[:bands].transpose(1, 2, 0)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels, photometric="minisblack" if bands == 2 else "rgb", planarconfig="contig")
    assert refused(read, path).found in (f"{bands} bands", f"{bands} bands or pages")


@EVERY_READER
def test_bands_that_pillow_does_not_know_are_called_a_tiff_file(tmp_path, read):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, LEVELS, photometric="minisblack", planarconfig="separate")
    assert refused(read, path).found in ("3 bands or pages", "a TIFF file of several bands or unusual numbers")


def test_smaller_copies_of_the_first_page_are_not_pages(tmp_path):
    path = tmp_path / "pyramid.tif"
    with tifffile.TiffWriter(path) as file:
        file.write(LEVELS[0], photometric="minisblack")
        file.write(LEVELS[0, ::2, ::2], photometric="minisblack", subfiletype=1)
    assert np.array_equal(read_map(path), LEVELS[0])


def test_pages_after_many_smaller_copies_are_not_passed_over(tmp_path):
    path = tmp_path / "many.tif"
    with tifffile.TiffWriter(path) as file:
        for _ in range(1001):
            file.write(LEVELS[0, :1, :1], photometric="minisblack", subfiletype=1, metadata=None)
    assert refused(READERS["mask"], path).found == "at least 1,000 pages"


@EVERY_READER
def test_signed_bytes_are_not_read_as_unsigned(tmp_path, read):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.full((6, 8), -1, np.int8))
    assert refused(read, path).found in ("signed 8-bit numbers", "values of type int8 from -1 to -1")


@EVERY_READER
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_orientation_is_refused_unless_it_is_upright(tmp_path, read, suffix, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"a{suffix}"
    Image.fromarray(np.full((6, 8), 255, np.uint8)).save(path, exif=exif)
    if orientation == 1:
        if READERS["labels"] is not read or suffix == ".png":  # 255 is void, which lossy formats turn into 254
            read(path)
        return
    error = refused(read, path)
    assert error.found == f"EXIF orientation {orientation}"
    assert "-auto-orient" in error.expected


def test_damaged_metadata_is_passed_over(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(LEVELS[0]).save(path, exif=b"Exif\0\0nonsense")
    assert read_image(path, "a").shape == (6, 8, 3)


def test_a_photograph_with_transparent_pixels_is_refused(tmp_path):
    photograph = Image.fromarray(LEVELS.transpose(1, 2, 0))
    photograph.putalpha(200)
    photograph.save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", "a"), LEVELS.transpose(1, 2, 0))
    photograph.putalpha(0)
    photograph.save(tmp_path / "a.png")
    assert refused(READERS["image"], tmp_path / "a.png").found == "transparent pixels"


def test_evaluate_refuses_pages_in_one_line(tmp_path):
    for folder in ("maps", "masks"):
        (tmp_path / folder).mkdir()
    write_frames(tmp_path / "maps" / "a.tif")
    write_frames(tmp_path / "masks" / "a.tif", 1)
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks"), "3 bands or pages", "--classes 3")
