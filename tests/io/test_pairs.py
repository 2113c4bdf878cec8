"""Errors about an unexpected folder layout say what the folder holds."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.errors import InputError
from densecal.io.pairs import find_comparisons, find_pairs
from tests.running import run


def save(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)


def test_an_error_about_missing_masks_names_the_subfolders(tmp_path):
    save(tmp_path / "maps" / "x.png", tmp_path / "masks" / "city" / "x.png")
    with pytest.raises(InputError, match=r"masks: no mask, but subfolders \(city\)"):
        find_pairs(tmp_path / "maps", tmp_path / "masks")


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
