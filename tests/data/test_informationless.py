"""Images without information keep spectrum, patches or a real surface, and nothing that could be found."""

import numpy as np
import pytest
import torch

from densecal.data import informationless as made
from densecal.draws import uniform


@pytest.fixture
def images():
    return torch.rand(4, 3, 32, 48, generator=torch.Generator().manual_seed(0))


def test_scrambled_phases_keep_the_spectrum(images):
    faint = 0.45 + 0.1 * images  # nothing is cut off
    scrambled = made.with_phases_scrambled(faint, uniform(0, 0, torch.arange(4), 1, 32 * 48))
    before, after = (torch.fft.rfft2(x).abs() for x in (faint, scrambled))
    # frequencies that are their own mirror image have a sign and no phase
    torch.testing.assert_close(after, before, atol=2e-3, rtol=1e-3)
    correlation = np.corrcoef(faint.flatten(), scrambled.flatten())[0, 1]
    assert abs(correlation) < 0.2


def test_shuffled_patches_are_the_same_patches(images):
    shuffled = made.with_patches_shuffled(images, uniform(0, 0, torch.arange(4), 1, 64))

    def patches(x):
        found = x.unfold(2, 4, 4).unfold(3, 6, 6).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        return [sorted(tuple(row.tolist()) for row in one) for one in found]

    assert patches(shuffled) == patches(images)
    assert not torch.equal(shuffled, images)


def test_sides_that_are_no_multiple_of_the_patches(images):
    odd = images[:, :, :29, :35]
    assert made.with_patches_shuffled(odd, uniform(0, 0, torch.arange(4), 1, 64)).shape == odd.shape


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


def test_a_share_is_chosen_and_padding_never():
    ids = torch.arange(-1, 20000)
    found = made.chosen(ids, epoch=0, seed=0, share=0.1)
    assert not found[0]
    assert float(found.float().mean()) == pytest.approx(0.1, abs=0.01)
    assert not bool(made.chosen(ids, 0, 0, 0.0).any())
