"""Published data sets open as they are distributed; any other folder opens as before."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from densecal.data.layouts import LAYOUTS, find_layout, identify
from densecal.data.sources import find_files, open_source
from densecal.errors import InputError

from . import published, samples

NAMES = ["banded_0001", "banded_0002", "woven_0001"]
BY_NAME = {layout.name: layout for layout in LAYOUTS}


def test_every_set_of_the_table_has_a_test():
    assert set(published.SETS) | {"PASCAL VOC 2012"} == set(BY_NAME)
    assert len(BY_NAME) == len(LAYOUTS)


@pytest.mark.parametrize("name", published.SETS)
def test_a_set_opens_as_it_is_distributed(name: str, tmp_path: Path):
    path = published.write_set(name, tmp_path, NAMES)
    files = find_files(path)
    source = open_source(path)
    assert files.layout is BY_NAME[name]
    assert source.names == NAMES
    assert source.has_masks == (name != "DTD")
    np.testing.assert_allclose(source.image(NAMES[1]).mean(), samples.image(1).mean(), atol=6)
    if source.has_masks:
        layout = BY_NAME[name]
        wanted = published.labels(1, layout.classes, layout.ignore_index) if layout.classes > 1 else samples.mask(1)
        np.testing.assert_array_equal(source.mask(NAMES[1], layout.classes), wanted)


def test_the_table_has_the_counts_of_the_paper():
    counts = {name: BY_NAME[name].counts[0] for name in published.SETS if BY_NAME[name].counts}
    paper = {
        "DUTS-TR": 10_553, "DUTS-TE": 5_019, "DUT-OMRON": 5_168, "PASCAL-S": 850, "SOD": 300, "ECSSD": 1_000,
        "HKU-IS": 4_447, "DTD": 5_640, "DTD without objects": 500, "COD10K train": 6_000, "SMOKE5K test": 400,
        "PASCAL VOC 2012 augmented": 10_582,
    }  # fmt: skip
    assert paper.items() <= counts.items()
    assert (BY_NAME["CamVid train"].counts, BY_NAME["CamVid val"].counts) == ((367,), (101,))


@pytest.mark.parametrize(
    ("images", "masks"),
    [("Imgs", "GT"), ("images", "masks"), ("image", "mask"), ("Image", "GT_Object"), ("img", "gt"), ("Images", "GTs")],
)
def test_the_usual_names_of_folders_are_known_for_any_set(tmp_path: Path, images: str, masks: str):
    published.write_pairs(tmp_path / "mine" / images, tmp_path / "mine" / masks, NAMES)
    files = find_files(tmp_path / "mine")
    assert sorted(files.masks) == sorted(files.images) == NAMES
    assert files.layout is None


@pytest.mark.parametrize("folder", ["ECSSD", "ecssd", "HKU_IS", "PASCAL-S", "PASCALS", "NC4K", "DUTS-TE"])
def test_a_copy_with_other_folders_is_known_by_its_name(tmp_path: Path, folder: str):
    published.write_pairs(tmp_path / folder / "Image", tmp_path / folder / "Mask", NAMES)
    layout = find_files(tmp_path / folder).layout
    assert layout is not None
    assert layout.name.lower().replace("-", "") == folder.lower().replace("-", "").replace("_", "")


def test_archives_that_unpack_into_a_folder_of_their_own(tmp_path: Path):
    published.write_set("DUTS-TR", tmp_path / "DUTS-TR", NAMES)
    assert open_source(tmp_path / "DUTS-TR").names == NAMES
    published.write_set("PASCAL VOC 2012 augmented", tmp_path / "voc" / "VOCdevkit", NAMES)
    assert open_source(tmp_path / "voc").names == NAMES


@pytest.mark.parametrize("name", ["CamVid val", "CAMO test", "COD10K train"])
def test_an_error_about_several_parts_asks_for_one(name: str, tmp_path: Path):
    published.write_set(name, tmp_path, NAMES)
    if name == "COD10K train":
        published.write_set("COD10K test", tmp_path, NAMES)
    root = tmp_path / published.SETS[name][0].split("/")[0]
    with pytest.raises(InputError, match=r"data sets; expected one of them: .*(test|Test)"):
        open_source(root)


def test_an_error_about_two_folders_of_masks_asks_for_a_choice(tmp_path: Path):
    published.write_pairs(tmp_path / "img", tmp_path / "gt", NAMES)
    published.write_pairs(tmp_path / "img", tmp_path / "gt_", NAMES)
    with pytest.raises(InputError, match="the folders gt, gt_"):
        open_source(tmp_path)
    assert open_source(tmp_path / "img", tmp_path / "gt_").names == NAMES


def test_voc_is_what_its_list_names_or_all_but_the_official_validation_set(tmp_path: Path):
    root = published.write_set("PASCAL VOC 2012 augmented", tmp_path, NAMES)
    lists = root / "ImageSets" / "Segmentation"
    assert open_source(root).names == NAMES
    (lists / "trainaug.txt").write_text("\n".join(NAMES[:2]))
    assert open_source(root).names == NAMES[:2]
    (lists / "trainaug.txt").write_text("".join(f"/JPEGImages/{n}.jpg /SegmentationClassAug/{n}.png\n" for n in NAMES))
    assert open_source(root).names == NAMES
    (lists / "trainaug.txt").write_text("\n".join([*NAMES, "gone"]))
    with pytest.raises(InputError, match=r"1 listed name without an image \(gone\)"):
        open_source(root)
    (lists / "trainaug.txt").unlink()
    (lists / "val.txt").unlink()
    with pytest.raises(InputError, match=r"no list of the images of PASCAL VOC 2012 augmented; .*val\.txt"):
        open_source(root)


def test_lists_of_bare_names_open_inside_a_set(tmp_path: Path):
    root = published.write_set("PASCAL VOC 2012 augmented", tmp_path, NAMES)
    files = find_files(root / "ImageSets" / "Segmentation" / "val.txt")
    assert sorted(files.images) == sorted(files.masks) == [f"val-{name}" for name in NAMES]
    assert files.layout is not None
    assert (files.layout.classes, files.layout.counts) == (21, ())
    # the official validation set has its masks in SegmentationClass, whatever became of the augmented folder
    for name in NAMES:
        (root / "SegmentationClassAug" / f"val-{name}.png").unlink()
    assert open_source(root / "ImageSets" / "Segmentation" / "val.txt").has_masks
    textures = published.write_set("DTD", tmp_path, NAMES)
    assert open_source(textures / "labels" / "test1.txt").names == NAMES[:2]
    (textures / "mine.txt").write_text("woven_0001\n")
    assert open_source(textures / "mine.txt").names == ["woven_0001"]


def test_the_sets_own_list_keeps_its_count_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = published.write_set("PASCAL VOC 2012 augmented", tmp_path, NAMES)
    (root / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("\n".join(NAMES))
    monkeypatch.chdir(root)
    layout = find_files("ImageSets/Segmentation/trainaug.txt").layout
    assert layout is not None
    assert layout.counts == (10_582,)


def test_an_error_about_a_file_that_is_not_a_list_takes_one_line(tmp_path: Path):
    (tmp_path / "photo.dat").write_bytes(samples.encoded(samples.image(0, 200, 300), "jpeg"))
    with pytest.raises(InputError, match=r"photo\.dat line 1"):
        open_source(tmp_path / "photo.dat")


def test_camvids_folders_under_another_name_are_not_camvid(tmp_path: Path):
    published.write_pairs(tmp_path / "mine" / "train", tmp_path / "mine" / "trainannot", NAMES)
    files = find_files(tmp_path / "mine")
    assert files.layout is None
    assert sorted(files.masks) == NAMES
    assert not open_source(tmp_path / "mine" / "train").has_masks


def test_folders_that_are_not_a_set(tmp_path: Path):
    assert find_layout(tmp_path) is None
    assert find_layout(tmp_path / "nowhere") is None
    (tmp_path / "docs").mkdir()
    (tmp_path / "list.txt").write_text("")
    assert find_layout(tmp_path) is None
    assert find_layout(tmp_path / "list.txt") is None
    images, _ = samples.folders(tmp_path / "set", ["a"])
    assert find_layout(images) is None, "images alone stay images alone"


@pytest.mark.parametrize("name", ["DUTS-TR", "DUT-OMRON", "PASCAL-S", "SOD", "ECSSD", "HKU-IS", "CHAMELEON", "NC4K"])
def test_a_set_opens_from_the_zip_it_is_distributed_in(name: str, tmp_path: Path):
    folder = published.write_set(name, tmp_path / "unpacked", NAMES)
    archive = Path(shutil.make_archive(str(tmp_path / name), "zip", tmp_path / "unpacked"))
    with zipfile.ZipFile(archive, "a") as zipped:
        zipped.writestr(f"__MACOSX/{name}/images/._a.jpg", b"the Finder's")
    unpacked, zipped = open_source(folder), open_source(archive)
    assert zipped.names == unpacked.names
    assert find_files(archive).layout is BY_NAME[name]
    for own in zipped.names:
        assert np.array_equal(zipped.image(own), unpacked.image(own))
        assert np.array_equal(zipped.mask(own), unpacked.mask(own))


def test_images_and_masks_may_be_in_separate_zips(tmp_path: Path):
    folder = published.write_set("ECSSD", tmp_path, NAMES)
    for inner in folder.iterdir():
        shutil.make_archive(str(tmp_path / inner.name), "zip", folder, inner.name)
    archives = sorted(tmp_path.glob("*.zip"))
    assert len(archives) == 2
    source = open_source(archives)
    assert source.names == sorted(NAMES)
    assert source.has_masks


def test_an_error_about_a_zip_of_several_sets_asks_for_one(tmp_path: Path):
    for name in ("SOD", "NC4K"):
        published.write_set(name, tmp_path / "sets", NAMES)
    archive = shutil.make_archive(str(tmp_path / "sets"), "zip", tmp_path / "sets")
    with pytest.raises(InputError, match=r"sets\.zip: the folders .*; expected one folder of images"):
        open_source(archive)


def test_zips_are_known_by_their_names(tmp_path: Path):
    assert find_files(samples.zipped(tmp_path / "ecssd.zip", NAMES)).layout is BY_NAME["ECSSD"]
    assert find_files(samples.zipped(tmp_path / "camvid-val.zip", NAMES)).layout is BY_NAME["CamVid val"]
    parts = [samples.zipped(tmp_path / f"duts-tr-{i}.zip", [name]) for i, name in enumerate(NAMES)]
    assert find_files(parts).layout is BY_NAME["DUTS-TR"]
    assert find_files(parts[0]).layout is None
    assert find_files([parts[0], samples.zipped(tmp_path / "more.zip", ["x"])]).layout is None


@pytest.mark.parametrize(
    ("path", "name"),
    [("DUTS-TR", "DUTS-TR"), ("COD10K-v3/Train", "COD10K train"), ("CamVid/val", "CamVid val"), ("x/y", None)],
)
def test_an_error_about_a_missing_set_says_where_to_get_it(tmp_path: Path, path: str, name: str | None):
    layout = identify(tmp_path / path)
    assert (layout.name if layout else None) == name
    with pytest.raises(InputError, match="does not exist") as error:
        open_source(tmp_path / path)
    assert (layout is None) or layout.home in str(error.value)


def test_the_docs_list_every_set():
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for layout in LAYOUTS:
        assert layout.home in text
        for images, masks in layout.folders:
            assert images.split("/")[-1] in text
            assert masks.split("/")[-1] in text
