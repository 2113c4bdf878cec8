"""Maps are matched with masks and read at their size. Errors about an unexpected folder layout say what it holds."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.data import open_source
from densecal.data.pairs import find_comparisons, find_maps, find_masks, find_pairs
from densecal.errors import InputError
from densecal.io.pairs import Pair, read_class_pair
from tests.running import run

ARRAYS = ("bool", "float32", "int64", "zipped")


def save(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)


def test_an_error_about_missing_masks_names_the_subfolders(tmp_path):
    save(tmp_path / "maps" / "x.png", tmp_path / "masks" / "city" / "x.png")
    with pytest.raises(InputError, match=r"masks: no mask, but subfolders \(city\)"):
        find_pairs(tmp_path / "maps", tmp_path / "masks")


def test_a_folder_that_is_missing_is_named_with_what_it_should_hold(tmp_path):
    save(tmp_path / "maps" / "x.png")
    with pytest.raises(InputError, match="nowhere: no such folder; expected a folder of masks"):
        find_pairs(tmp_path / "maps", tmp_path / "nowhere")
    with pytest.raises(InputError, match="nowhere: no such folder; expected a folder of prediction maps"):
        find_maps(tmp_path / "nowhere")


@pytest.mark.parametrize(("size", "resized"), [((4, 6), False), ((6, 4), True), ((8, 12), True)])
def test_a_softmax_map_is_resized_only_if_its_size_differs_from_that_of_the_mask(tmp_path, size, resized):
    stored = np.random.default_rng(0).dirichlet(np.ones(3), size).transpose(2, 0, 1).astype(np.float32)
    np.save(tmp_path / "x.npy", stored)
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) % 3).save(tmp_path / "x.png")
    read = read_class_pair(Pair("x", tmp_path / "x.npy", tmp_path / "x.png"), classes=3)
    prediction, labels, was_resized = read.prediction, read.labels, read.resized
    assert was_resized is resized
    assert prediction.shape == (3, *labels.shape) == (3, 4, 6)
    if not resized:
        np.testing.assert_array_equal(prediction, stored)


def test_two_levels_of_folders_are_methods_and_data_sets(tmp_path):
    maps, masks = tmp_path / "nested", tmp_path / "masks"
    save(maps / "b" / "c" / "x.png", masks / "b" / "c" / "x.png")
    with pytest.raises(InputError) as caught:
        find_comparisons(maps, masks)
    expected = f"the masks for {maps / 'b' / 'c'}, because two levels of folders are read as METHOD/DATASET/"
    assert str(caught.value) == f"{masks}: no folder c, but subfolders (b); expected {expected}"


def test_a_file_in_place_of_a_folder_is_called_a_file(tmp_path):
    save(tmp_path / "masks" / "x.png", tmp_path / "x.png")
    with zipfile.ZipFile(tmp_path / "maps.zip", "w") as archive:
        archive.writestr("x.png", b"")
    for name in ("maps.zip", "x.png"):
        for arguments in ((name, "masks"), ("masks", name), ("masks", "masks", "--ood", name)):
            code, _, err = run("evaluate", *(word if word == "--ood" else tmp_path / word for word in arguments))
            assert code == 2
            assert f"{name}: a file; expected a folder" in err
            assert "unpack an archive, put a single file into a folder" in err


# ------------------------------------------------------------------ where masks may be


@pytest.fixture
def dataset(tmp_path):
    """A data set of three images with masks, and maps of it."""
    rng = np.random.default_rng(0)
    root = tmp_path / "birds"
    for folder in (root / "imgs", root / "GT", tmp_path / "maps"):
        folder.mkdir(parents=True)
    for name in "abc":
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(root / "imgs" / f"{name}.jpg")
        levels = rng.integers(0, 256, (6, 8), dtype=np.uint8)
        Image.fromarray(levels).save(tmp_path / "maps" / f"{name}.png")
        Image.fromarray((levels + rng.normal(0, 60, levels.shape) > 127).astype(np.uint8) * 255).save(
            root / "GT" / f"{name}.png"
        )
    return root


def list_of(dataset):
    path = dataset.parent / "test.txt"
    path.write_text("".join(f"birds/imgs/{name}.jpg birds/GT/{name}.png\n" for name in "abc"))
    return path


def arrays_of(dataset, kind):
    """The masks as arrays."""
    folder = dataset.parent / kind
    folder.mkdir()
    for path in (dataset / "GT").iterdir():
        mask = np.asarray(Image.open(path))
        if kind == "zipped":
            np.savez(folder / f"{path.stem}.npz", mask)
        else:
            np.save(folder / f"{path.stem}.npy", (mask > 0).astype(kind))
    return folder


def above(dataset):
    """A folder that holds the data set alone."""
    (dataset.parent / "upper").mkdir()
    shutil.copytree(dataset, dataset.parent / "upper" / "birds")
    return dataset.parent / "upper"


def figures_with(masks, maps, out):
    """What `evaluate`, `calibrate fit` and `risk-control` say of maps with masks, and what they call the data."""
    out.mkdir()
    for arguments in (
        ("evaluate", maps, masks, "--json", out / "a.json"),
        ("calibrate", "fit", "temperature", maps, masks, "--out", out / "b.json"),
        ("risk-control", maps, masks, "--alpha", 0.4, "--json", out / "c.json"),
    ):
        code, _, err = run(*arguments)
        assert code in (0, 3), err
    evaluation, calibrator, risk = (json.loads((out / f"{name}.json").read_text()) for name in "abc")
    return evaluation["dataset"], [evaluation["calibration"], evaluation["segmentation"], calibrator, risk]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("data set", "birds"), ("above", "upper"), ("list", "test"), *((kind, kind) for kind in ARRAYS)],
)
def test_masks_of_data_sets_lists_and_arrays_are_those_of_the_folder(dataset, tmp_path, kind, name):
    make = {"data set": lambda: dataset, "above": lambda: above(dataset), "list": lambda: list_of(dataset)}
    masks = make.get(kind, lambda: arrays_of(dataset, kind))()
    called, figures = figures_with(masks, tmp_path / "maps", tmp_path / "out")
    assert called == name
    assert figures == figures_with(dataset / "GT", tmp_path / "maps", tmp_path / "expected")[1]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.full((6, 8), 0.5), "b.npy: the value 0.5 in a mask; expected"),
        (np.full((6, 8), 300), "b.npy: the value 300 in a mask; expected"),
        (np.full((6, 8), np.nan), "b.npy: the value nan in a mask; expected"),
        (np.zeros((2, 6, 8)), "b.png: a map of shape (6, 8); expected (2, 6, 8), as its mask has"),
    ],
)
def test_arrays_that_are_no_masks_are_refused(dataset, tmp_path, array, problem):
    masks = arrays_of(dataset, "bool")
    np.save(masks / "b.npy", array)
    code, _, err = run("evaluate", tmp_path / "maps", masks)
    assert code == 2
    assert problem in err


def test_a_data_set_without_masks_and_an_archive_are_refused(dataset, tmp_path):
    shutil.rmtree(dataset / "GT")
    with pytest.raises(InputError, match="images without masks; expected a folder of masks, a data set, or a list"):
        find_masks(dataset)
    with zipfile.ZipFile(tmp_path / "birds.zip", "w"):
        pass
    with pytest.raises(InputError, match=r"a file; expected .* unpack an archive"):
        find_masks(tmp_path / "birds.zip")


def test_training_reads_masks_that_are_arrays(dataset):
    masks = arrays_of(dataset, "bool")
    source = open_source(dataset / "imgs", masks)
    for name in source.names:
        assert np.array_equal(source.mask(name), np.asarray(Image.open(dataset / "GT" / f"{name}.png")))


def test_no_mask_of_a_data_set_or_list_is_written_over(dataset, tmp_path):
    before = (dataset / "GT" / "a.png").read_bytes()
    for masks in (dataset, list_of(dataset)):
        code, _, err = run("evaluate", tmp_path / "maps", masks, "--json", dataset / "GT" / "a.png", "--force")
        assert code == 2
        assert "a.png: a file that this command reads" in err
    assert (dataset / "GT" / "a.png").read_bytes() == before
