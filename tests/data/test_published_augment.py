"""Augmentation of the published networks: their limits, Pillow's enhancements, and sizes drawn per batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from densecal.data.augment import at_random_size, augment
from densecal.data.enhance import enhance, salt_and_pepper
from tests.data.test_augment import affine, assert_uncorrelated, unflipped


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


def test_edn_draws_the_flip_the_choice_to_crop_and_all_four_edges_independently() -> None:
    flip, matrix, shift = unflipped(*affine("edn"), axis=1)
    removed = 1 - np.stack((matrix[:, 0, 0], matrix[:, 1, 1]), axis=1)
    cropped = (removed > 1e-4).any(axis=1)
    assert_uncorrelated(0.06, flip, cropped)
    before, after = (removed + shift)[cropped] / 2, (removed - shift)[cropped] / 2
    assert_uncorrelated(0.09, flip[cropped], *before.T, *after.T)
    for edge in (*before.T, *after.T):  # uniform up to 7/224 of the side
        assert edge.min() > -1e-4
        assert edge.max() == pytest.approx(7 / 224, abs=2e-4)
        assert edge.mean() == pytest.approx(7 / 448, rel=0.05)
    assert max(before.max(), after.max()) == pytest.approx(7 / 224, abs=5e-5)


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


def test_icon_draws_the_flip_and_both_sides_and_places_of_its_crop_independently() -> None:
    flip, matrix, shift = unflipped(*affine("icon"), axis=0)
    removed = 1 - np.stack((matrix[:, 0, 0], matrix[:, 1, 1]), axis=1)
    large = (removed > 0.01).all(axis=1)  # a crop of nearly nothing has no place
    flip, removed, shift = flip[large], removed[large], shift[large]
    share_before = (removed + shift) / 2 / removed
    assert_uncorrelated(0.06, flip, *removed.T, *share_before.T)
    np.testing.assert_allclose(share_before.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(share_before.var(axis=0), 1 / 12, rtol=0.06)


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


def test_sharpening_and_smoothing_leave_a_plain_image_plain_up_to_its_edges() -> None:
    plain = torch.tensor([0.2, 0.5, 0.7]).view(1, 3, 1, 1).expand(1, 3, 9, 7)
    for factor in (0.0, 2.5):
        torch.testing.assert_close(enhance(plain, uniforms(sharpness=factor)), plain)


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


def test_ebmgsod_moves_masks_as_code_does_and_then_adds_noise_to_foreground_masks_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    images, index = torch.rand(40, 3, 48, 48, generator=generator), torch.arange(40)
    masks = 0.1 + 0.8 * torch.rand(40, 1, 48, 48, generator=generator)  # neither salt nor pepper
    _, moved = augment(images, masks, index, 3, 1, "code")
    _, noisy = augment(images, masks, index, 3, 1, "ebmgsod")
    changed = noisy != moved
    assert float(changed.float().mean()) == pytest.approx(0.0015, rel=0.25)
    assert set(noisy[changed].unique().tolist()) == {0.0, 1.0}
    labels = torch.randint(2, 7, (40, 48, 48), generator=generator)
    assert torch.equal(
        augment(images, labels, index, 3, 1, "ebmgsod")[1], augment(images, labels, index, 3, 1, "code")[1]
    )


def noise(count: int, epoch: int, seed: int) -> np.ndarray:
    """Which pixels of each mask ebmgsod makes noise of; the middle, where the corners of a turn are never seen."""
    images, masks = torch.zeros(count, 3, 96, 96), torch.full((count, 1, 96, 96), 0.5)
    _, noisy = augment(images, masks, torch.arange(count), epoch, seed, "ebmgsod")
    return np.isin(noisy[:, 0, 24:-24, 24:-24].numpy(), (0.0, 1.0))


def test_noise_on_masks_is_drawn_anew_for_every_sample_epoch_and_seed() -> None:
    found = noise(8, epoch=3, seed=1)
    assert (found.sum(axis=(1, 2)) > 0).sum() >= 6
    np.testing.assert_array_equal(noise(8, epoch=3, seed=1), found)
    several = [tuple(np.flatnonzero(one)) for one in found if one.any()]
    assert len(set(several)) == len(several)
    for epoch, seed in ((4, 1), (3, 2)):
        other = noise(8, epoch, seed)
        assert not (other & found).any(axis=(1, 2)).all()
        assert (other != found).any(axis=(1, 2)).sum() >= 6


def brightness(count: int, epoch: int, seed: int) -> np.ndarray:
    """About the factor by which ebmgsod brightens the middle of many plain grey images, which little else changes."""
    images, masks = torch.full((count, 3, 8, 8), 0.5), torch.zeros(count, 1, 8, 8)
    made, _ = augment(images, masks, torch.arange(count), epoch, seed, "ebmgsod")
    return made[:, 0, 4, 4].double().numpy() / 0.5


def test_colours_are_drawn_anew_for_every_sample_epoch_and_seed_and_apart_from_the_geometry() -> None:
    count = 1000
    found = brightness(count, epoch=3, seed=1)
    np.testing.assert_array_equal(brightness(count, epoch=3, seed=1), found)
    assert found.min() == pytest.approx(0.5, abs=0.05)
    assert found.max() == pytest.approx(1.5, abs=0.05)
    flip, matrix, _ = unflipped(*affine("code", count, epoch=3, seed=1), axis=0)
    others = [brightness(count, epoch=4, seed=1), brightness(count, epoch=3, seed=2)]
    sides = [np.hypot(*matrix[:, axis].T) for axis in (0, 1)]
    assert_uncorrelated(0.12, found, *others, flip, *sides)


@pytest.mark.parametrize("side", [36, 16])
@pytest.mark.parametrize("kind", ["none", "icon", "edn"])
def test_resized_images_and_masks_are_sampled_at_the_same_points(side: int, kind: str) -> None:
    """Brute force in float64: pixel centres at half-integers, clamped at the edges."""
    before = 26
    images = torch.rand(2, 3, before, before, generator=torch.Generator().manual_seed(0))
    resized, masks = at_random_size(images, images[:, :1], (side,), 0, 0, 0, kind)  # type: ignore[arg-type]
    place = ((np.arange(side) + 0.5) * before / side - 0.5).clip(0, before - 1)
    low = np.floor(place).astype(int)
    high, share = np.minimum(low + 1, before - 1), place - low
    weights = np.zeros((side, before))
    np.add.at(weights, (np.arange(side), low), 1 - share)
    np.add.at(weights, (np.arange(side), high), share)
    expected = np.einsum("ij,bcjk,lk->bcil", weights, images.double().numpy(), weights)
    np.testing.assert_allclose(resized.numpy(), expected, atol=1e-5)
    if kind == "edn":
        assert (np.abs(share - 0.5) > 1e-9).all(), "no ties"
        nearest = np.round(place).astype(int)
        expected = images.numpy()[:, :, nearest][..., nearest]
        np.testing.assert_array_equal(masks.numpy(), expected[:, :1])
    else:
        np.testing.assert_allclose(masks.numpy(), expected[:, :1], atol=1e-5)


def test_resized_labels_are_those_of_the_nearest_pixels() -> None:
    labels = torch.randint(0, 11, (2, 26, 26), generator=torch.Generator().manual_seed(0))
    for side in (36, 16):
        _, found = at_random_size(torch.rand(2, 3, 26, 26), labels, (side,), 0, 0, 0)
        nearest = np.floor((np.arange(side) + 0.5) * 26 / side).astype(int)
        np.testing.assert_array_equal(found.numpy(), labels.numpy()[:, nearest][..., nearest])


@pytest.mark.parametrize("shape", [(48, 32), (32, 48)])
def test_an_image_with_one_side_of_the_drawn_size_is_resized_too(shape: tuple[int, int]) -> None:
    resized, masks = at_random_size(torch.rand(1, 3, *shape), torch.rand(1, 1, *shape), (32,), 0, 0, 0)
    assert resized.shape[2:] == masks.shape[2:] == (32, 32)


def test_sizes_depend_on_seed_and_epoch_and_step_apart_from_each_other_and_from_the_samples() -> None:
    images, masks = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)

    def larger(epoch: int, seed: int, first: int = 0) -> np.ndarray:
        steps = range(first, first + 400)
        return np.array([at_random_size(images, masks, (4, 8), s, epoch, seed)[0].shape[-1] == 8 for s in steps])

    flip, _, _ = unflipped(*affine("paper", 400, epoch=5, seed=2), axis=0)
    # the same sum of epoch and step is another draw, and so is the sample whose number is that of the step
    assert_uncorrelated(0.2, larger(5, 2), larger(6, 2), larger(5, 3), larger(6, 2, first=-1), flip)


def test_sizes_are_drawn_evenly_per_batch() -> None:
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
