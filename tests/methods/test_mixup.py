"""Mixup: the vector, the distribution of lam, its draws, partners, void, padding, and mixing before the model."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import binary_cross_entropy_with_logits

from densecal.methods import create
from densecal.methods.mixup import MixedLabels, blend, next_image, symmetric_beta
from densecal.models import build
from tests.methods.test_protocol import NoSync, forbid

VOID = 255


def make(classes: int = 1, **options):
    return create("mixup", **{"num_samples": 50, "num_classes": classes, **options})


def batch(classes: int, count: int = 6):
    images = torch.rand(count, 3, 5, 4)
    if classes == 1:
        return images, (torch.rand(count, 1, 5, 4) > 0.4).float(), torch.randn(count, 1, 5, 4)
    return images, torch.randint(classes, (count, 5, 4)), torch.randn(count, classes, 5, 4)


def share(method, index):
    """Return lam of every image, measured on a blend of a white image with black ones."""
    lam = []
    for i in range(len(index)):
        white = torch.zeros(len(index), 3, 1, 1)
        white[i] = 1
        lam.append(method.prepare(white, torch.zeros(len(index), 1, 1, 1), index)[0][i, 0, 0, 0])
    return torch.stack(lam)


def test_vector(vectors):
    inputs, expected = vectors["mixup"]["inputs"], vectors["mixup"]["expected"]
    z, ya, yb = (torch.tensor(inputs[key]).view(1, 1, 4, 4) for key in ("z_mixed_input_logits", "ya", "yb"))
    mixed = blend(ya, yb, torch.tensor([0.3]))
    torch.testing.assert_close(mixed, torch.tensor(expected["mixed_mask"]).view(1, 1, 4, 4))
    assert make().loss(z, mixed).item() == pytest.approx(expected["bce_soft"], abs=1e-6)
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    pair = MixedLabels(ya[:, 0].long(), yb[:, 0].long(), torch.tensor([0.3]))
    assert make(2).loss(two, pair).item() == pytest.approx(expected["convex_comb"], abs=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 1.0, 3.0])
def test_lam_has_the_beta_distribution(alpha):
    uniforms = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(3))
    lam = symmetric_beta(uniforms, alpha)
    assert ((lam >= 0) & (lam <= 1)).all()
    # float32 values stop 6e-8 short of 1, where Beta(0.1, 0.1) still has mass; near 0 they are dense enough.
    near = lam.double().clamp(1e-6, 1 - 1e-6).numpy()
    law = stats.beta(alpha, alpha)
    grid = np.linspace(0.001, 0.999, 200)
    steps = np.searchsorted(np.sort(near), grid) / len(near)
    assert np.abs(steps - law.cdf(grid)).max() < 1.63 / math.sqrt(len(near))  # Kolmogorov, 1 per cent


def test_lam_is_finite_for_every_uniform():
    corners = torch.tensor([0.0, 2.0**-24, 0.25, 0.5, 0.75, 1 - 2.0**-24])
    pairs = torch.cartesian_prod(corners, corners)
    for alpha in (1e-3, 0.2, 1e3):
        lam = symmetric_beta(pairs, alpha)
        assert ((lam >= 0) & (lam <= 1)).all()


def test_lam_is_a_function_of_seed_epoch_and_index():
    method = make()
    method.start_epoch(4)
    whole = share(method, torch.arange(50))
    some = torch.tensor([9, 30, 2, 17])
    torch.testing.assert_close(share(method, some), whole[some])
    method.start_epoch(5)
    assert not torch.isclose(share(method, torch.arange(50)), whole).any()
    other = make(seed=1)
    other.start_epoch(4)
    assert not torch.isclose(share(other, torch.arange(50)), whole).any()


@pytest.mark.parametrize(
    ("index", "partners"),
    [
        ([4, 8, 1], [1, 2, 0]),
        ([4, 8, 1, -1, -1], [1, 2, 0, 3, 4]),
        ([-1, 4, -1, 8, 1], [0, 3, 2, 4, 1]),
        ([7], [0]),
        ([7, -1], [0, 1]),
        ([-1, -1], [0, 1]),
    ],
)
def test_the_partner_is_the_next_image_and_never_padding(index, partners):
    assert next_image(torch.tensor(index)).tolist() == partners


def test_images_and_masks_are_blended_alike():
    images, masks, z = batch(1)
    index = torch.arange(6)
    method = make()
    lam = share(method, index).view(-1, 1, 1, 1)
    mixed, targets = method.prepare(images, masks, index)
    torch.testing.assert_close(mixed, lam * images + (1 - lam) * images.roll(-1, 0))
    torch.testing.assert_close(targets, lam * masks + (1 - lam) * masks.roll(-1, 0))
    values = [binary_cross_entropy_with_logits(z, y, reduction="none") for y in (masks, masks.roll(-1, 0))]
    torch.testing.assert_close(method.loss(z, targets), (lam * values[0] + (1 - lam) * values[1]).mean())


def test_k_classes_mix_the_losses_of_both_labels():
    images, labels, z = batch(4)
    method = make(4)
    _, targets = method.prepare(images, labels, torch.arange(6))
    lam = targets.lam.view(-1, 1, 1, 1)
    one_hot = [torch.nn.functional.one_hot(y, 4).permute(0, 3, 1, 2) for y in (labels, labels.roll(-1, 0))]
    soft = (lam * one_hot[0] + (1 - lam) * one_hot[1]).double()
    z.requires_grad_()
    loss = method.loss(z, targets)
    expected = -(soft * z.double().log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss.double(), expected)
    ours, theirs = (torch.autograd.grad(value, z)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_two_softmax_classes_equal_one_sigmoid_logit():
    images, masks, z = batch(1)
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    index = torch.arange(6)
    binary = make().loss(z, make().prepare(images, masks, index)[1])
    softmax = make(2).loss(two, make(2).prepare(images, masks[:, 0].long(), index)[1])
    torch.testing.assert_close(softmax, binary)


@pytest.mark.parametrize("classes", [1, 4])
def test_a_pixel_void_in_either_image_is_void_in_the_mix(classes):
    images, masks, z = batch(classes)
    masks[0, ..., 0] = VOID
    masks[1, ..., 1] = VOID
    method = make(classes)
    _, targets = method.prepare(images, masks, torch.arange(6))
    label_maps = [targets] if classes == 1 else [targets.labels, targets.partners]
    for labels in label_maps:
        void = (labels == VOID).reshape(6, 5, 4)
        assert void[0, :, :2].all()  # its own column 0, and column 1 of image 1
        assert void[1, :, 1].all()
        assert void[5, :, 0].all()  # its partner is image 0
        assert void.sum() == 5 * 4
    garbage = z.clone()
    garbage[0, ..., :2] = 50
    assert torch.equal(method.loss(garbage, targets), method.loss(z, targets))


@pytest.mark.parametrize("classes", [1, 4])
def test_padding_changes_nothing(classes):
    images, masks, z = batch(classes)
    method = make(classes)
    index, weight = torch.tensor([3, 5, 8, 2, -1, -1]), torch.tensor([1.0, 1, 1, 1, 0, 0])
    mixed, targets = method.prepare(images, masks, index)
    short, expected = method.prepare(images[:4], masks[:4], index[:4])
    torch.testing.assert_close(mixed[:4], short)
    assert torch.equal(mixed[4:], images[4:])
    torch.testing.assert_close(method.loss(z, targets, weight), method.loss(z[:4], expected))


@pytest.mark.parametrize("classes", [1, 4])
def test_a_single_image_stays_unmixed(classes):
    images, masks, z = batch(classes, count=1)
    method = make(classes)
    mixed, targets = method.prepare(images, masks, torch.tensor([3]))
    assert torch.equal(mixed, images)
    bce = create("bce", num_samples=50, num_classes=classes).loss(z, masks)
    torch.testing.assert_close(method.loss(z, targets), bce)
    assert torch.equal(method.loss(z, masks), bce)  # masks that did not go through `prepare`


def test_mixing_before_the_models_normalisation_equals_mixing_after_it():
    model = build("unet", "mobilenetv3_small_050", decoder_channels=[8, 8, 8, 8, 8])
    seen = []
    model.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images, lam = torch.rand(2, 3, 40, 40), torch.tensor([0.3])  # 40 is padded to 64, replicating the edge
    for x in (images[:1], images[1:], blend(images[:1], images[1:], lam)):
        model.eval()(x)
    assert model.mean.abs().min() > 0
    torch.testing.assert_close(seen[2], blend(seen[0], seen[1], lam), rtol=1e-5, atol=1e-5)


def test_the_memory_layout_of_the_images_is_kept():
    images = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    mixed, _ = make().prepare(images, torch.zeros(4, 1, 8, 8), torch.arange(4))
    assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("classes", [1, 4])
def test_autocast_and_half_precision_compute_the_loss_in_float32(classes):
    images, masks, z = batch(classes)
    method = make(classes)
    _, targets = method.prepare(images.bfloat16(), masks, torch.arange(6))
    z = z.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = method.loss(z, targets)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, method.loss(z.float(), targets))


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("scale", [60.0, 200.0])
def test_the_gradient_is_finite_at_saturation(classes, scale):
    images, masks, z = batch(classes)
    z = (scale * z.sign()).requires_grad_()
    method = make(classes)
    method.loss(z, method.prepare(images, masks, torch.arange(6))[1]).backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("classes", [1, 4])
def test_a_step_reads_no_tensor_on_the_host(classes, monkeypatch):
    images, masks, z = batch(classes)
    z.requires_grad_()
    method, index, weight = make(classes), torch.arange(6), torch.ones(6)
    with monkeypatch.context() as patch, NoSync():
        forbid(patch)
        _, targets = method.prepare(images, masks, index)
        method.loss(z, targets, weight).backward()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_bad_alpha_is_refused(value):
    with pytest.raises(ValueError, match="alpha: found"):
        make(alpha=value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64])
def test_integer_masks_are_blended_too(dtype):
    images, masks, index = torch.rand(2, 3, 4, 4), torch.ones(2, 1, 4, 4), torch.tensor([0, 1])
    masks[1] = 0
    method = create("mixup", num_samples=2)
    expected = method.prepare(images, masks, index)[1]
    assert torch.equal(method.prepare(images, masks.to(dtype), index)[1], expected)
