"""The authors' lists: their sizes and names, the paper's split, and textures that are missing."""

import hashlib
import zipfile
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from densecal.data.check import check
from densecal.data.published_lists import LISTS, TEXTURES, VALIDATION, published_list
from densecal.data.splits import split
from densecal.errors import InputError


@pytest.mark.parametrize(
    ("name", "count", "digest"),
    [
        (VALIDATION, 1000, "180e2c174f5baaf6d6527c950abddc8d41abd38ef3323efea9d508b479b8113b"),
        (TEXTURES, 500, "1160990f2980c453b136eac36c6912c562dc71e6e666790d3008019a4c085404"),
    ],
)
def test_the_lists_are_those_of_the_authors(name, count, digest):
    """The digest is of the authors' files, sorted, without suffixes."""
    names = published_list(name)
    assert len(set(names)) == count
    assert hashlib.sha256("\n".join(names).encode()).hexdigest() == digest


def test_the_papers_split_needs_no_file():
    names = [*published_list(VALIDATION), *(f"train-{i}" for i in range(5))]
    train, validation = split(names, VALIDATION)
    assert train == [f"train-{i}" for i in range(5)]
    assert validation == sorted(published_list(VALIDATION))


def test_another_set_than_duts_cannot_be_split_like_it():
    with pytest.raises(InputError, match=r"1000 names that are not in the data set .*; expected the whole of DUTS-TR"):
        split(["a", "b"], VALIDATION)


def texture_zip(path, names):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            file = BytesIO()
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file, "png")
            archive.writestr(f"images/{name}.png", file.getvalue())
    return path


def test_missing_textures_are_named(tmp_path):
    some = published_list(TEXTURES)[::100]
    report = check(texture_zip(tmp_path / "any.zip", some), workers=1)
    assert report.files.layout.name == "DTD without objects"
    absent = [finding.files[0] for finding in report.findings if finding.kind == "absent"]
    assert absent == sorted(set(published_list(TEXTURES)) - set(some))
    assert not [finding for finding in report.findings if finding.kind == "no-mask"]


def test_the_whole_list_is_fine(tmp_path):
    report = check(texture_zip(tmp_path / "DTD_Texture_500.zip", published_list(TEXTURES)), workers=1)
    assert report.findings == []


def test_other_images_without_masks_are_no_textures(tmp_path):
    names = [*published_list(TEXTURES)[:2], "a", "b"]
    report = check(texture_zip(tmp_path / "any.zip", names), workers=1)
    assert report.files.layout is None
    assert report.findings == []


def test_every_list_has_a_file():
    assert all(published_list(name) for name in LISTS)
