"""The one rule that turns the levels of a mask into foreground, background and void."""

import numpy as np
import pytest
from PIL import Image

from densecal.errors import InputError
from densecal.io.masks import check_labels, foreground_mask, read_foreground, read_labels, read_mask


def levels(*values: int) -> np.ndarray:
    return np.array([values], np.uint8)


@pytest.mark.parametrize(
    ("values", "foreground", "grey"),
    [
        ((0, 1, 1), (0, 1, 1), False),
        ((1, 1, 1), (1, 1, 1), False),
        ((0, 255, 0), (0, 1, 0), False),
        ((255, 255, 255), (1, 1, 1), False),
        ((0, 0, 0), (0, 0, 0), False),
        ((0, 127, 128), (0, 0, 1), True),
        ((0, 1, 255), (0, 0, 1), True),
        ((0, 2, 2), (0, 0, 0), True),
        ((0, 254, 255), (0, 1, 1), True),
    ],
)
def test_zero_and_one_are_kept_and_all_others_are_cut_above_127(values, foreground, grey):
    mask = foreground_mask(levels(*values))
    assert mask.foreground.tolist() == [list(map(bool, foreground))]
    assert mask.grey is grey
    assert mask.void is None


@pytest.mark.parametrize(
    ("values", "void", "foreground", "grey"),
    [
        ((0, 1, 255), 255, (0, 1, 0), False),
        ((0, 255, 1), 1, (0, 1, 0), False),
        ((0, 255, 128), 128, (0, 1, 0), False),
        ((0, 255, 200), 128, (0, 1, 1), True),
        ((255, 255, 255), 255, (0, 0, 0), False),
        ((0, 1, 1), 0, (0, 1, 1), False),
    ],
)
def test_void_pixels_are_neither_foreground_nor_grey(values, void, foreground, grey):
    mask = foreground_mask(levels(*values), void)
    assert mask.void.tolist() == [[value == void for value in values]]
    assert mask.foreground.tolist() == [list(map(bool, foreground))]
    assert mask.grey is grey


def test_the_middle_is_level_128_of_a_grey_mask():
    assert foreground_mask(levels(0, 128, 255)).middle.tolist() == [[False, True, False]]
    assert foreground_mask(levels(0, 129, 255)).middle is None
    assert foreground_mask(levels(0, 255, 128), 128).middle is None


@pytest.mark.parametrize("values", [(0, 1, 1), (0, 255, 255), (0, 127, 128), (0, 0, 0)])
def test_both_readers_follow_the_rule(tmp_path, values):
    Image.fromarray(levels(*values)).save(tmp_path / "a.png")
    expected = foreground_mask(levels(*values)).foreground
    assert np.array_equal(read_foreground(tmp_path / "a.png", "a").foreground, expected)
    assert np.array_equal(read_mask(tmp_path / "a.png", "a") > 127, expected)


def test_labels_are_classes_or_void(tmp_path):
    Image.fromarray(levels(0, 2, 255)).save(tmp_path / "a.png")
    assert read_labels(tmp_path / "a.png", "a", 3).tolist() == [[0, 2, 255]]
    with pytest.raises(InputError, match=r"^a: label 255; expected labels 0 to 2, or 11 for void$"):
        read_labels(tmp_path / "a.png", "a", 3, ignore_index=11)
    with pytest.raises(InputError, match="label 2"):
        check_labels(levels(0, 1, 2), "a", 2, 255)


def test_sixteen_bit_labels_must_fit_into_a_byte(tmp_path):
    Image.fromarray(np.array([[0, 255]], np.uint16)).save(tmp_path / "a.png")
    assert read_mask(tmp_path / "a.png", "a", classes=3).tolist() == [[0, 255]]
    Image.fromarray(np.array([[0, 256]], np.uint16)).save(tmp_path / "b.png")
    with pytest.raises(InputError, match="label 256; expected labels from 0 to 255"):
        read_mask(tmp_path / "b.png", "b", classes=3)


def test_a_float_mask_is_refused(tmp_path):
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match="a: a mask of type float32; expected an 8- or 16-bit mask"):
        read_foreground(tmp_path / "a.tif", "a")
