"""Augmentation of the published networks: their limits, Pillow's enhancements, and sizes drawn by the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from densecal.data.augment import at_random_size, augment
from densecal.data.enhance import enhance, salt_and_pepper
from tests.data.test_augment import affine


def uniforms(**factors: float) -> Tensor:
    """The draws that give brightness, contrast, colour and sharpness these factors; 1 changes nothing."""
    ranges = {"brightness": (0.5, 1.5), "contrast": (0.5, 1.5), "colour": (0.0, 2.0), "sharpness": (0.0, 3.0)}
    return torch.tensor([[(factors.get(name, 1.0) - low) / (high - low) for name, (low, high) in ranges.items()]])


def picture() -> Tensor:
    """A picture with few dark or bright pixels, so that little is clipped."""
    coarse = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=(40, 40), mode="bilinear")
    return (255 * (0.25 + 0.5 * smooth)).round() / 255


def test_edn_crops_up_to_a_32nd_from_each_edge_of_half_of_the_images_and_turns_half_upside_down() -> None:
    matrix, shift = affine("edn")
    np.testing.assert_allclose(matrix[:, 0, 1], 0, atol=1e-4)
    assert (matrix[:, 0, 0] > 0).all()
    assert abs(np.mean(matrix[:, 1, 1] < 0) - 0.5) < 0.03
    scale = np.abs(np.stack((matrix[:, 0, 0], matrix[:, 1, 1]), axis=1))
    whole = np.isclose(scale, 1, atol=1e-4).all(axis=1)
    assert abs(whole.mean() - 0.5) < 0.03
    removed = 1 - scale[~whole]
    assert removed.max() < 2 * 7 / 224 + 1e-4
    assert removed.max() > 1.8 * 7 / 224
    assert abs(removed.mean() - 7 / 224) < 0.001
    # the side is 2 here, so an edge that is not cropped shifts the window by what the other lost
    assert (np.abs(shift[~whole]) <= removed + 1e-4).all()
    assert np.corrcoef(shift[~whole].T)[0, 1] == pytest.approx(0, abs=0.06)


def test_icon_crops_up_to_an_eighth_of_each_side_anywhere() -> None:
    matrix, shift = affine("icon")
    assert abs(np.mean(matrix[:, 0, 0] < 0) - 0.5) < 0.03
    assert (matrix[:, 1, 1] > 0).all()
    removed = 1 - np.abs(np.stack((matrix[:, 0, 0], matrix[:, 1, 1]), axis=1))
    assert 0.12 < removed.max() < 0.125 + 1e-4
    assert np.abs(removed.mean(axis=0) - 1 / 16).max() < 0.002
    assert np.corrcoef(removed.T)[0, 1] == pytest.approx(0, abs=0.05)
    assert (np.abs(shift) <= removed + 1e-4).all()
    assert (np.abs(shift) > 0.95 * removed).any()


@pytest.mark.parametrize(
    ("name", "enhancer", "factor"),
    [
        ("brightness", ImageEnhance.Brightness, 0.6),
        ("brightness", ImageEnhance.Brightness, 1.4),
        ("contrast", ImageEnhance.Contrast, 0.5),
        ("contrast", ImageEnhance.Contrast, 1.3),
        ("colour", ImageEnhance.Color, 0.0),
        ("colour", ImageEnhance.Color, 1.8),
        ("sharpness", ImageEnhance.Sharpness, 0.0),
        ("sharpness", ImageEnhance.Sharpness, 2.5),
    ],
)
def test_each_enhancement_is_pillows(name: str, enhancer: type, factor: float) -> None:
    image = picture()
    original = Image.fromarray((255 * image[0]).permute(1, 2, 0).to(torch.uint8).numpy())
    expected = np.asarray(enhancer(original).enhance(factor), dtype=np.float64) / 255
    made = enhance(image, uniforms(**{name: factor}))[0].permute(1, 2, 0).numpy()
    inside = slice(1, -1)  # Pillow does not smooth the outermost pixels
    # Pillow rounds greys and means to whole levels
    np.testing.assert_allclose(made[inside, inside], expected[inside, inside], atol=2.1 / 255)
    assert np.abs(made - image[0].permute(1, 2, 0).numpy()).max() > 4 / 255


def test_enhanced_images_stay_in_range_and_factors_of_one_change_nothing() -> None:
    images = torch.rand(16, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    made = enhance(images, torch.rand(16, 4, generator=torch.Generator().manual_seed(1)))
    assert made.min() >= 0
    assert made.max() <= 1
    torch.testing.assert_close(enhance(images, uniforms().expand(16, 4)), images)


def test_salt_and_pepper_sets_a_few_pixels_of_the_mask() -> None:
    masks = torch.full((4, 1, 500, 500), 0.5)
    draws = torch.rand(4, 250_000, generator=torch.Generator().manual_seed(0))
    made = salt_and_pepper(masks, draws)
    assert set(made.unique().tolist()) == {0.0, 0.5, 1.0}
    for value in (0.0, 1.0):
        assert float((made == value).float().mean()) == pytest.approx(0.00075, rel=0.1)


def test_ebmgsod_turns_as_the_label_perturbations_program_does_and_changes_colours() -> None:
    generator = torch.Generator().manual_seed(0)
    images, masks = torch.rand(6, 3, 32, 32, generator=generator), torch.zeros(6, 1, 32, 32)
    index = torch.arange(6)
    moved, _ = augment(images, masks, index, 3, 1, "code")
    made, noisy = augment(images, masks, index, 3, 1, "ebmgsod")
    assert not torch.equal(made, moved)
    assert set(noisy.unique().tolist()) <= {0.0, 1.0}
    again, _ = augment(images[2:3], masks[2:3], index[2:3], 3, 1, "ebmgsod")
    torch.testing.assert_close(made[2:3], again)  # a function of (seed, epoch, index)
    other, _ = augment(images, masks, index, 4, 1, "ebmgsod")
    assert not torch.equal(made, other)


def test_sizes_are_drawn_by_the_batch_and_evenly() -> None:
    images, masks, sizes = torch.rand(2, 3, 48, 48), torch.rand(2, 1, 48, 48), (32, 48, 64)
    drawn = [at_random_size(images, masks, sizes, step, 5, 2) for step in range(300)]
    sides = [x.shape[-1] for x, _ in drawn]
    assert all(x.shape[-2:] == y.shape[-2:] for x, y in drawn)
    assert all(abs(sides.count(side) / 300 - 1 / 3) < 0.1 for side in sizes)
    assert sides == [at_random_size(images, masks, sizes, step, 5, 2)[0].shape[-1] for step in range(300)]
    assert sides != [at_random_size(images, masks, sizes, step, 6, 2)[0].shape[-1] for step in range(300)]
    same = drawn[sides.index(48)]
    assert same[0] is images


def test_masks_stay_binary_for_edn_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    images, masks = torch.rand(16, 3, 64, 64), (torch.rand(16, 1, 64, 64, generator=generator) > 0.5).float()
    for kind, binary in (("edn", True), ("icon", False)):
        moved, made = augment(images, masks, torch.arange(16), 0, 0, kind)
        _, resized = at_random_size(moved, made, (48,), 0, 0, 0, kind)
        assert (set(made.unique().tolist()) == set(resized.unique().tolist()) == {0.0, 1.0}) == binary


def test_labels_are_resized_without_new_ones() -> None:
    labels = torch.tensor([0, 7, 255])[torch.randint(3, (2, 48, 48), generator=torch.Generator().manual_seed(0))]
    _, made = at_random_size(torch.rand(2, 3, 48, 48), labels, (32,), 0, 0, 0)
    assert made.shape == (2, 32, 32)
    assert made.dtype == labels.dtype
    assert set(made.unique().tolist()) == {0, 7, 255}
