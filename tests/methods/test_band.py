"""Perturbation in a band around the boundary: which pixels and labels change, and that nothing else does."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_cdt
from torch.nn.functional import one_hot

from densecal.labels import moderation_noise, perturb, technique_strength
from densecal.methods import create, options
from densecal.methods.band import boundary_band
from densecal.rng import Stream
from tests.methods.test_protocol import NoSync, forbid

VOID = 255
STOCHASTIC = ("slp", "aslp-mei", "aslp-mc", "aslp-cl")
N = 24


def make(name, alpha=0.4, **given_options):
    """Return a method that perturbs every image with probability alpha."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = create(name, num_samples=N, **given_options)
    if name == "slp":
        method.probability = alpha
    else:
        method.alpha.fill_(alpha)
    return method


def scene(classes=1, void=True, count=N):
    """Return masks of 4 x 4 pixel blocks of classes, some pixels void; the last mask has only one class."""
    coarse = torch.randint(max(classes, 2), (count, 4, 5))
    labels = coarse.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
    labels[-1] = 1
    if void:
        labels = torch.where(torch.rand(labels.shape) < 0.1, VOID, labels)
    return labels.unsqueeze(1).float() if classes == 1 else labels


def brute_band(labels: np.ndarray, width: int) -> np.ndarray:
    """Return the band by scipy's chessboard distance to the nearest valid pixel of another class."""
    band = np.zeros(labels.shape, dtype=bool)
    for label in set(np.unique(labels)) - {VOID}:
        others = (labels != label) & (labels != VOID)
        if others.any():
            band |= (labels == label) & (distance_transform_cdt(~others, metric="chessboard") <= width)
    return band


def brute_bands(masks: torch.Tensor, width: int) -> torch.Tensor:
    maps = masks.flatten(0, -3).long().numpy()
    return torch.from_numpy(np.stack([brute_band(labels, width) for labels in maps])).view(masks.shape)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), width=st.integers(1, 9), classes=st.sampled_from([1, 2, 5]),
    shape=st.tuples(st.integers(1, 13), st.integers(1, 13)), rare=st.floats(0.0, 1.0), void=st.floats(0.0, 1.0),
)  # fmt: skip
def test_the_band_follows_scipys_chessboard_distance(seed, width, classes, shape, rare, void):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(max(classes, 2), (3, *shape), generator=generator)
    labels *= torch.rand(labels.shape, generator=generator) < rare
    labels = torch.where(torch.rand(labels.shape, generator=generator) < void, VOID, labels)
    masks = labels.unsqueeze(1).float() if classes == 1 else labels
    assert torch.equal(boundary_band(masks, width, classes), brute_bands(masks, width))


def test_one_pixel_of_foreground_has_a_square_band():
    masks = torch.zeros(1, 1, 9, 9)
    masks[0, 0, 4, 4] = 1
    expected = torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    expected[..., 2:7, 2:7] = True
    assert torch.equal(boundary_band(masks, 2), expected)


def test_soft_masks_are_thresholded_at_one_half():
    masks = torch.tensor([0.0, 0.4, 0.5, 0.6, 1.0, 1.0]).expand(1, 1, 3, 6)
    assert boundary_band(masks, 1)[0, 0, 0].tolist() == [False, False, True, True, False, False]


def test_void_pixels_neither_form_nor_hide_a_boundary():
    row = torch.tensor([0.0, 0.0, VOID, 1.0, 1.0, VOID, 1.0])
    masks = row.expand(1, 1, 3, 7)
    assert boundary_band(masks, 2)[0, 0, 0].tolist() == [False, True, False, True, False, False, False]
    other = torch.where(masks == VOID, 7.0, masks)
    assert torch.equal(boundary_band(masks, 2), boundary_band(other, 2, ignore_index=7))


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("technique", ["hi", "si", "m", "dm"])
def test_drawn_images_are_perturbed_in_the_band_and_nowhere_else(name, technique):
    masks, index = scene(), torch.arange(N)
    method = make(name, technique=technique, band=2)
    whole = make(name, technique=technique).prepare(masks, masks, index)[1]
    targets = method.prepare(masks, masks, index)[1]
    drawn = (method.uniform(index, Stream.LABEL)[:, 0] < 0.4).view(-1, 1, 1, 1)
    touched = drawn & brute_bands(masks, 2)
    assert touched.any()
    assert (drawn & ~touched & (masks != VOID)).any()
    assert torch.equal(targets, torch.where(touched, whole, masks))


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_loss_of_k_classes_is_that_of_soft_labels_in_the_band(name):
    K, masks, index = 4, scene(4), torch.arange(N)
    own = one_hot(masks.where(masks != VOID, 0), K).movedim(-1, 1)
    z = 4 * own + torch.randn(N, K, *masks.shape[1:])
    method = make(name, num_classes=K, band=2, technique="si")
    actual = method.loss(z, method.prepare(z, masks, index)[1])
    drawn = (method.uniform(index, Stream.LABEL)[:, 0] < 0.4).view(-1, 1, 1)
    strength = technique_strength("si", K) * (drawn & brute_bands(masks, 2)).double()
    valid = masks != VOID
    soft = perturb(one_hot(masks.where(valid, 0), K).double(), strength.unsqueeze(-1), K)
    pixels = -(soft * z.double().log_softmax(1).movedim(1, -1)).sum(-1)
    assert actual.item() == pytest.approx(pixels[valid].mean().item(), rel=1e-5)
    assert actual.item() > 1.5 * make("slp", 0.0, num_classes=K).loss(z, masks).item()


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("classes", [1, 3])
def test_images_without_a_boundary_keep_their_labels(name, classes):
    method = make(name, alpha=1.0, num_classes=classes, band=50)
    for value in (0, 1, VOID):
        masks = torch.full((N, 1, 6, 7), float(value)) if classes == 1 else torch.full((N, 6, 7), value)
        targets = method.prepare(masks, masks, torch.arange(N))[1]
        if classes == 1:
            assert torch.equal(targets, masks)
        else:
            assert not targets.strength.any()


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("classes", [1, 3])
def test_without_a_band_whole_images_are_perturbed(name, classes):
    masks, index = scene(classes), torch.arange(N)
    for technique in ("hi", "dm") if classes == 1 else ("hi", "m"):
        method = make(name, num_classes=classes, technique=technique)
        targets = method.prepare(masks, masks, index)[1]
        strength = technique_strength(technique, classes) * (method.uniform(index, Stream.LABEL)[:, 0] < 0.4)
        if classes > 1:
            assert torch.equal(targets.strength, strength)
            continue
        expected = perturb(masks, strength)
        if technique == "dm":
            noise = moderation_noise(method.uniform(index, Stream.MODERATION_NOISE, 320).view(masks.shape))
            expected = torch.where((strength > 0).view(-1, 1, 1, 1), expected + noise, expected)
        assert torch.equal(targets, torch.where(masks == VOID, masks, expected))
        none = make(name, technique=technique, band=None)
        assert torch.equal(none.prepare(masks, masks, index)[1], targets)


@pytest.mark.parametrize("name", STOCHASTIC)
def test_a_band_wider_than_the_image_is_the_whole_image(name):
    masks, index = scene(), torch.arange(N)
    with_boundary = slice(0, N - 1)
    targets = [make(name, band=band).prepare(masks, masks, index)[1][with_boundary] for band in (100, None)]
    assert torch.equal(*targets)


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("technique", ["hi", "dm"])
def test_labels_are_a_function_of_seed_epoch_and_index(name, technique):
    masks, index = scene(), torch.arange(N)

    def labels(order, seed=3, epoch=5):
        method = make(name, technique=technique, band=2, seed=seed)
        method.start_epoch(epoch)
        parts = order.split(7)
        return torch.cat([method.prepare(masks[part], masks[part], part)[1] for part in parts])

    order = torch.randperm(N)
    first = labels(index)
    assert torch.equal(labels(order), first[order])
    assert not torch.equal(labels(index, seed=4), first)
    assert not torch.equal(labels(index, epoch=6), first)


def test_pixels_in_the_band_have_the_expected_confidence_on_average_and_others_are_certain():
    masks, index, epochs, alpha = scene(void=False), torch.arange(N), 400, 0.2
    method = make("aslp-mc", alpha, technique="si", band=2)
    mean = torch.zeros_like(masks)
    for epoch in range(epochs):
        method.start_epoch(epoch)
        mean += method.prepare(masks, masks, index)[1] / epochs
    confidence = torch.where(masks == 1, mean, 1 - mean)
    band = boundary_band(masks, 2)
    assert confidence[band].mean().item() == pytest.approx(method.statistics()["expected_confidence"], abs=0.005)
    assert confidence[~band].min() > 1 - 1e-5


@pytest.mark.parametrize("name", ["aslp-mei", "aslp-mc", "aslp-cl"])
def test_a_band_does_not_change_the_rule_of_alpha(name):
    masks, index = scene(), torch.arange(N)
    z = 3 * (2 * masks - 1) + torch.randn(masks.shape)
    alphas = []
    for band in (None, 2):
        method = make(name, 0.0, band=band, warmup=0)
        for epoch in range(4):
            method.start_epoch(epoch)
            method.after_step(z, masks, index)
            method.after_epoch(SimpleNamespace(accuracy=0.9, mean_confidence=0.95))
        alphas.append(method.alpha)
    assert torch.equal(*alphas)
    assert alphas[0].max() > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_a_step_with_a_band_reads_no_tensor_on_the_host(classes, monkeypatch):
    masks, index = scene(classes), torch.arange(N)
    z = torch.randn(N, classes, *masks.shape[-2:], requires_grad=True)
    method = make("aslp-mc", num_classes=classes, band=2)
    with monkeypatch.context() as patch, NoSync():
        forbid(patch)
        method.loss(z, method.prepare(z, masks, index)[1]).backward()


@pytest.mark.parametrize("name", STOCHASTIC)
def test_a_band_is_a_whole_number_of_pixels(name):
    assert "band" in options(name)
    for value in (0, -1, 2.0, 2.5, True, "3"):
        with pytest.raises(ValueError, match=r"band: found .*; expected a whole number of pixels"):
            create(name, num_samples=3, band=value)
