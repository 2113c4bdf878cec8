"""Maps are matched with masks and read at their size. Errors about an unexpected folder layout say what it holds."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.errors import InputError
from densecal.io.pairs import Pair, find_comparisons, find_maps, find_pairs, read_class_pair
from tests.running import run


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
    prediction, labels, was_resized = read_class_pair(Pair("x", tmp_path / "x.npy", tmp_path / "x.png"), classes=3)
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
