"""Images without information keep their spectrum, their patches or a real surface, but no object."""

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from densecal.data import informationless as made
from densecal.rng import uniform


@pytest.fixture
def images():
    return torch.rand(4, 3, 32, 48, generator=torch.Generator().manual_seed(0))


def test_scrambled_phases_keep_the_spectrum(images):
    faint = 0.45 + 0.1 * images  # nothing is cut off
    scrambled = made.scramble_phases(faint, uniform(0, 0, torch.arange(4), 1, 32 * 48))
    before, after = (torch.fft.rfft2(x).abs() for x in (faint, scrambled))
    # frequencies that are their own mirror image have a sign and no phase
    torch.testing.assert_close(after, before, atol=2e-3, rtol=1e-3)
    correlation = np.corrcoef(faint.flatten(), scrambled.flatten())[0, 1]
    assert abs(correlation) < 0.2


def test_scrambled_phases_keep_the_phases_between_channels(images):
    faint = 0.45 + 0.1 * images
    scrambled = made.scramble_phases(faint, uniform(0, 0, torch.arange(4), 1, 32 * 48))
    for one, other in ((0, 1), (1, 2)):
        before, after = (torch.fft.rfft2(x[:, one]) * torch.fft.rfft2(x[:, other]).conj() for x in (faint, scrambled))
        torch.testing.assert_close(after, before, atol=2e-2, rtol=1e-3)


def test_scrambled_images_stay_in_range(images):
    stark = images.round()
    scrambled = made.scramble_phases(stark, uniform(0, 0, torch.arange(4), 1, 32 * 48))
    assert scrambled.min() == 0
    assert scrambled.max() == 1


def test_shuffled_patches_are_the_same_patches(images):
    shuffled = made.shuffle_patches(images, uniform(0, 0, torch.arange(4), 1, 64))

    def patches(x):
        found = x.unfold(2, 4, 4).unfold(3, 6, 6).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        return [sorted(tuple(row.tolist()) for row in one) for one in found]

    assert patches(shuffled) == patches(images)
    assert not torch.equal(shuffled, images)


def test_sides_may_be_any_number_of_pixels(images):
    odd = images[:, :, :29, :35]
    assert made.shuffle_patches(odd, uniform(0, 0, torch.arange(4), 1, 64)).shape == odd.shape


def test_background_crops_hold_no_foreground():
    masks = torch.zeros(8, 1, 64, 64)
    masks[:, :, 20:40, 10:50] = 1
    images = masks.expand(-1, 3, -1, -1) * 1.0
    crop = made.background_crop(images, masks, uniform(3, 1, torch.arange(8), 1, 96), torch.full_like(images, 7.0))
    found = crop.flatten(1).max(dim=1).values
    assert (found == 0).sum() >= 6  # most have a free square
    assert set(found.tolist()) <= {0.0, 7.0}
    full = torch.ones_like(masks)
    assert bool((made.background_crop(images, full, torch.rand(8, 96), torch.full_like(images, 7.0)) == 7).all())


def brute_force_crop(image, mask, size, x, y, otherwise):
    """In float64: the largest square that meets no foreground with half a pixel to spare, sampled bilinearly."""
    _, height, width = image.shape
    best, window = 0.0, None
    for s, u, v in zip(size, x, y, strict=True):
        side = 0.15 + 0.45 * s
        left, top = u * (1 - side), v * (1 - side)
        rows, columns = np.arange(height), np.arange(width)
        rows = rows[(rows + 1 > top * height - 0.5) & (rows < (top + side) * height + 0.5)]
        columns = columns[(columns + 1 > left * width - 0.5) & (columns < (left + side) * width + 0.5)]
        if side > best and not mask[np.ix_(rows, columns)].any():
            best, window = side, (left, top)
    if window is None:
        return otherwise
    left, top = window
    at_y = (top + best * (np.arange(height) + 0.5) / height) * height - 0.5
    at_x = (left + best * (np.arange(width) + 0.5) / width) * width - 0.5
    places = np.meshgrid(at_y, at_x, indexing="ij")
    return np.stack([map_coordinates(channel, places, order=1, mode="reflect") for channel in image])


@pytest.mark.parametrize("foreground", [0.0, 0.004, 0.02])
def test_a_background_crop_is_the_largest_free_square_enlarged(foreground):
    rng = np.random.default_rng(0)
    count, squares, shape = 60, 5, (20, 28)
    images = rng.random((count, 3, *shape))
    masks = 0.2 * (rng.random((count, *shape)) < foreground)  # soft: any foreground counts
    draws, otherwise = rng.random((count, 3, squares)), rng.random((count, 3, *shape))
    found = made.background_crop(
        torch.tensor(images, dtype=torch.float32),
        torch.tensor(masks, dtype=torch.float32)[:, None],
        torch.tensor(draws, dtype=torch.float32).flatten(1),
        torch.tensor(otherwise, dtype=torch.float32),
    )
    samples = zip(images, masks, *draws.transpose(1, 0, 2), otherwise, strict=True)
    expected = [brute_force_crop(*sample) for sample in samples]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=2e-5)
    cropped = np.mean([not np.array_equal(one, other) for one, other in zip(expected, otherwise, strict=True)])
    assert cropped == 1 if foreground == 0 else 0.2 < cropped < 1


@pytest.mark.parametrize(("x", "y"), [(0.0, 0.0), (1.0, 1.0), (0.5, 0.25), (0.25, 0.5)])
def test_a_crop_has_the_position_and_the_side_that_were_drawn(x, y):
    height, width, size = 40, 56, 0.6
    across, down = (torch.arange(n, dtype=torch.float64).add(0.5) / n for n in (width, height))
    image = torch.stack([across.expand(height, width), down[:, None].expand(height, width), torch.ones(height, width)])
    draws = torch.tensor([[size, x, y]])
    crop = made.background_crop(image[None].float(), torch.zeros(1, 1, height, width), draws, torch.zeros(1, 3, 40, 56))
    side = 0.15 + 0.45 * size
    inner = slice(2, -2)  # at the edge of the image the nearest pixel is seen
    left_to_right, top_to_bottom = x * (1 - side) + side * across, y * (1 - side) + side * down
    torch.testing.assert_close(crop[0, 0, 9, inner].double(), left_to_right[inner], atol=1e-5, rtol=0)
    torch.testing.assert_close(crop[0, 1, inner, 9].double(), top_to_bottom[inner], atol=1e-5, rtol=0)
    torch.testing.assert_close(crop[0, 2], torch.ones(height, width))


def test_a_crop_is_a_part_of_the_image_enlarged():
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64).clone()
    crop = made.background_crop(ramp, torch.zeros(1, 1, 64, 64), torch.rand(1, 96), ramp)
    assert crop.max() - crop.min() < 0.65
    assert crop.max() - crop.min() > 0.1


def test_what_happens_is_a_function_of_seed_epoch_and_index(images):
    masks = torch.zeros(4, 1, 32, 48)
    index = torch.tensor([5, 2, 9, 7])
    whole = made.without_information(images, masks, index, epoch=3, seed=1)
    part = made.without_information(images[2:], masks[2:], index[2:], epoch=3, seed=1)
    torch.testing.assert_close(part, whole[2:])
    assert not torch.equal(whole, made.without_information(images, masks, index, epoch=4, seed=1))


def ways(results, image):
    """How each image lost its information; the original must be a ramp along x in its first channel."""
    found = []
    for result in results:
        if torch.equal(result.flatten(1).sort().values, image.flatten(1).sort().values):
            found.append("shuffled")
        elif result[0].diff(dim=1).min() >= 0:
            found.append("cropped")
        else:
            found.append("scrambled")
    return np.array(found)


@pytest.fixture(scope="module")
def many():
    """One image many times: a ramp along x, one along y, and the number of the patch."""
    side = torch.arange(16)
    y, x = torch.meshgrid(side, side, indexing="ij")
    image = torch.stack([(x + 0.5) / 16, (y + 0.5) / 16, (y // 2 * 8 + x // 2) / 63])
    return image.expand(600, -1, -1, -1)


def test_each_way_gets_a_third_also_of_few_chosen_samples(many):
    ids = torch.arange(6000)
    taken = ids[made.choose_samples(ids, epoch=3, seed=1, share=0.1)][:500]
    results = made.without_information(many[:500], torch.zeros(500, 1, 16, 16), taken, epoch=3, seed=1)
    found = ways(results, many[0])
    for way in ("scrambled", "shuffled", "cropped"):
        assert np.mean(found == way) == pytest.approx(1 / 3, abs=0.06)


def test_every_way_is_drawn_anew_for_every_sample_epoch_and_seed(many):
    empty, index = torch.zeros(60, 1, 16, 16), torch.arange(60)
    results = {place: made.without_information(many[:60], empty, index, *place) for place in ((3, 1), (4, 1), (3, 2))}
    found = {place: ways(result, many[0]) for place, result in results.items()}
    for way in ("scrambled", "shuffled", "cropped"):
        own = results[3, 1][torch.from_numpy(found[3, 1] == way)]
        assert len(own) > 10
        assert len(own.flatten(1).unique(dim=0)) == len(own)
        for other in ((4, 1), (3, 2)):
            both = torch.from_numpy((found[3, 1] == way) & (found[other] == way))
            assert both.any()
            differs = (results[3, 1][both] - results[other][both]).flatten(1).abs().max(dim=1).values
            assert (differs > 1e-3).all()


def test_a_patch_of_a_shuffled_image_may_end_up_anywhere(many):
    results = made.without_information(many, torch.ones(600, 1, 16, 16), torch.arange(600), epoch=0, seed=0)
    shuffled = results[torch.from_numpy(ways(results, many[0]) == "shuffled")]
    places = (shuffled[:, 2, ::2, ::2] * 63).round().long().flatten(1).argsort(dim=1).double()  # of patches 0 to 63
    spread = np.sqrt((64**2 - 1) / 12)
    np.testing.assert_allclose(places.mean(dim=0), 31.5, atol=4 * spread / np.sqrt(len(shuffled)))
    np.testing.assert_allclose(places.std(dim=0), spread, rtol=0.15)


def test_patches_are_shuffled_where_no_square_is_free(many):
    index = torch.arange(60)
    free, full = (
        ways(made.without_information(many[:60], masks, index, epoch=3, seed=1), many[0])
        for masks in (torch.zeros(60, 1, 16, 16), torch.ones(60, 1, 16, 16))
    )
    np.testing.assert_array_equal(full, np.where(free == "cropped", "shuffled", free))
    results = made.without_information(many[:60], torch.ones(60, 1, 16, 16), index, epoch=3, seed=1)
    assert not (results == many[:60]).flatten(1).all(dim=1).any()


def test_a_free_square_is_nearly_always_found_where_half_of_the_image_is_free(many):
    half = torch.zeros(600, 1, 16, 16)
    half[..., 8:] = 1
    free, found = (
        np.sum(ways(made.without_information(many, masks, torch.arange(600), epoch=0, seed=0), many[0]) == "cropped")
        for masks in (torch.zeros_like(half), half)
    )
    assert 0.97 * free < found <= free


def test_which_samples_are_chosen_changes_with_the_epoch_and_the_seed():
    ids = torch.arange(5000)
    chosen = [made.choose_samples(ids, epoch, seed, 0.5).double() for epoch, seed in ((0, 0), (1, 0), (0, 1))]
    np.testing.assert_allclose(np.corrcoef(torch.stack(chosen)), np.eye(3), atol=0.06)


def test_all_samples_or_none_can_be_chosen(monkeypatch):
    ids = torch.arange(-1, 50)
    assert made.choose_samples(ids, 0, 0, 1.0).tolist() == [False] + [True] * 50
    monkeypatch.setattr(made, "uniform", lambda *_: torch.zeros(51, 2))  # the least that can be drawn
    assert not made.choose_samples(ids, 0, 0, 0.0).any()


def test_a_share_is_chosen_and_padding_never():
    ids = torch.arange(-1, 20000)
    found = made.choose_samples(ids, epoch=0, seed=0, share=0.1)
    assert not found[0]
    assert float(found.float().mean()) == pytest.approx(0.1, abs=0.01)
    assert not bool(made.choose_samples(ids, 0, 0, 0.0).any())
