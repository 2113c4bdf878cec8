"""Reading single files: levels as stored, proper booleans, and errors that say what to do."""

import io
import threading

import numpy as np
import pytest
from PIL import Image

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.images import read_image
from densecal.io.map_files import read_map
from densecal.io.masks import read_foreground, read_mask


def save(tmp_path, array, name="x.png", **options):
    path = tmp_path / name
    Image.fromarray(array).save(path, **options)
    return path


def test_one_bit_masks_are_proper_booleans(tmp_path):
    y = np.random.default_rng(0).random((20, 30)) < 0.5
    path = save(tmp_path, y)
    mask = read_foreground(path, "x")
    assert np.array_equal(mask.foreground, y)
    assert mask.foreground.view(np.uint8).max() == 1  # Pillow's own bytes are 255, which would be summed as 255
    assert not mask.grey
    assert mask.void is None
    assert mask.middle is None
    assert np.array_equal(read_mask(path, "x"), y * np.uint8(255))


@pytest.mark.parametrize(("values", "grey"), [((0, 255), False), ((0, 1), False), ((0, 100, 255), True)])
def test_a_mask_with_values_between_is_grey(tmp_path, values, grey):
    y = np.random.default_rng(0).choice(np.array(values, np.uint8), (9, 9))
    mask = read_foreground(save(tmp_path, y), "x")
    assert mask.grey == grey
    assert np.array_equal(mask.foreground, y == values[-1])


def test_palette_masks_are_read_as_indices(tmp_path):
    y = np.random.default_rng(0).integers(0, 5, (9, 9)).astype(np.uint8)
    image = Image.fromarray(y)
    image.putpalette([250, 3, 7] * 256)
    image.save(tmp_path / "p.png")
    assert np.array_equal(read_mask(tmp_path / "p.png", "p", classes=5), y)


@pytest.mark.parametrize("top", [1, 255])
def test_palette_masks_of_two_indices_are_foreground_masks(tmp_path, top):
    y = np.random.default_rng(0).random((9, 9)) < 0.4
    image = Image.fromarray(y * np.uint8(top))
    image.putpalette([0, 0, 0] + [128, 0, 0] * 255)
    image.save(tmp_path / "p.png")
    mask = read_foreground(tmp_path / "p.png", "p")
    assert np.array_equal(mask.foreground, y)
    assert not mask.grey
    assert np.array_equal(read_mask(tmp_path / "p.png", "p"), y * np.uint8(255))


def test_grey_palettes_keep_their_colours(tmp_path):
    y = np.random.default_rng(0).random((9, 9)) < 0.4
    image = Image.fromarray(~y * np.uint8(1))
    image.putpalette([255, 255, 255, 0, 0, 0])  # as a program that sorts its palette may write it
    image.save(tmp_path / "p.png")
    assert np.array_equal(read_foreground(tmp_path / "p.png", "p").foreground, y)


def test_an_error_about_a_colour_mask_says_what_masks_look_like(tmp_path):
    labels = Image.fromarray(np.arange(81, dtype=np.uint8).reshape(9, 9) % 4)
    labels.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 0, 128])
    labels.save(tmp_path / "p.png")
    labels.convert("RGB").save(tmp_path / "rgb.png")
    for name, problem in (("p.png", "a colour palette with indices up to 3"), ("rgb.png", "a colour image")):
        with pytest.raises(InputError) as caught:
            read_foreground(tmp_path / name, name)
        assert problem in str(caught.value)
        assert "0 for background and 255 (or 1) for foreground; for labels of K classes --classes K" in str(
            caught.value
        )


def test_errors_about_class_maps_and_logits_say_what_to_do(tmp_path):
    np.save(tmp_path / "k.npy", np.full((3, 8, 9), 1 / 3))
    with pytest.raises(InputError, match=r"expected shape \(H, W\), or --classes 3$"):
        read_map(tmp_path / "k.npy")
    np.save(tmp_path / "last.npy", np.full((8, 9, 3), 1 / 3))
    with pytest.raises(InputError, match=r"expected shape \(H, W\), or --channels-last --classes 3$"):
        read_map(tmp_path / "last.npy")
    for values in (-4.0, 1.5):
        np.save(tmp_path / "z.npy", np.full((8, 9), values))
        with pytest.raises(InputError, match="--logits for logits"):
            read_map(tmp_path / "z.npy")


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_maps_keep_their_levels(tmp_path, kind):
    rng = np.random.default_rng(0)
    values = (
        rng.random((7, 5)).astype(kind) if kind is np.float32 else rng.integers(0, np.iinfo(kind).max, (7, 5), kind)
    )
    path = save(tmp_path, values, "x.tif")
    assert read_map(path).dtype == kind
    assert np.array_equal(read_map(path), values)


def test_fortran_order_and_npz(tmp_path):
    values = np.random.default_rng(0).random((6, 4))
    np.save(tmp_path / "f.npy", np.asfortranarray(values))
    np.savez_compressed(tmp_path / "z.npz", anything=values)
    assert np.array_equal(read_map(tmp_path / "f.npy"), values)
    assert np.array_equal(read_map(tmp_path / "z.npz"), values)
    np.savez(tmp_path / "two.npz", a=values, b=values)
    with pytest.raises(InputError, match="2 arrays"):
        read_map(tmp_path / "two.npz")


def test_grey_images_are_read_as_rgb(tmp_path):
    grey = np.random.default_rng(0).integers(0, 255, (5, 6), np.uint8)
    path = save(tmp_path, grey)
    assert read_image(path, "x").shape == (5, 6, 3)
    assert read_image(io.BytesIO(path.read_bytes()), "x").shape == (5, 6, 3)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_photographs_are_scaled_not_clipped(tmp_path, suffix):
    ramp = np.linspace(0, 65535, 200).astype(np.uint16).reshape(10, 20)
    image = read_image(save(tmp_path, ramp, f"x.{suffix}"), "x")
    assert np.array_equal(image[:, :, 1], (ramp >> 8).astype(np.uint8))


@pytest.mark.parametrize("values", [(0, 1), (0, 255), (0, 65535)])
def test_sixteen_bit_masks_keep_their_foreground(tmp_path, values):
    y = np.random.default_rng(0).random((9, 9)) < 0.5
    path = save(tmp_path, np.where(y, values[1], 0).astype(np.uint16))
    assert np.array_equal(read_foreground(path, "x").foreground, y)
    assert np.array_equal(read_mask(path, "x") > 127, y)


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f2", np.longdouble, ">u2"])
def test_arrays_of_any_byte_order_are_read(tmp_path, kind):
    values = np.random.default_rng(0).random((6, 4))
    values = (values * 65535).astype(kind) if kind == ">u2" else values.astype(kind)
    np.save(tmp_path / "x.npy", values)
    read = read_map(tmp_path / "x.npy")
    assert read.dtype.isnative
    assert np.array_equal(read, values.astype(np.float64) if read.dtype == np.float64 else values)


def test_reading_in_threads_leaves_pillows_own_limit_alone(tmp_path):
    before = Image.MAX_IMAGE_PIXELS
    path = save(tmp_path, np.zeros((4, 4), np.uint8))
    threads = [threading.Thread(target=lambda: [read_map(path) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == Image.MAX_IMAGE_PIXELS
    assert before is None or before >= MAX_PIXELS


@pytest.mark.parametrize(("alpha", "transparent"), [(127, True), (128, False)])
def test_a_pixel_is_transparent_up_to_half_of_the_range_of_alpha(alpha, transparent, tmp_path):
    path = tmp_path / "map.png"
    Image.merge("LA", [Image.new("L", (3, 2), 90), Image.new("L", (3, 2), alpha)]).save(path)
    if transparent:
        with pytest.raises(InputError, match="transparent"):
            read_map(path)
    else:
        assert (read_map(path) == 90).all()
