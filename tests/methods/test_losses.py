"""Losses and gaps: equal to PyTorch's and to brute force in float64, with void pixels and padding left out exactly."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from densecal.labels import max_beta, perturb
from densecal.methods.losses import (
    SmoothedLabels,
    bce_with_void,
    class_gap,
    cross_entropy_with_void,
    image_gap,
    pixel_shares,
)

VOID = 255


def binary_batch(void: bool) -> tuple[torch.Tensor, torch.Tensor]:
    z = 3 * torch.randn(4, 1, 9, 11)
    y = torch.rand(4, 1, 9, 11)
    return z, torch.where(torch.rand(y.shape) < 0.3, VOID, y) if void else y


def class_batch(void: bool, K: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    z = 3 * torch.randn(4, K, 9, 11)
    y = torch.randint(K, (4, 9, 11))
    return z, torch.where(torch.rand(y.shape) < 0.3, VOID, y) if void else y


def brute_force_bce(z, t, weight) -> float:
    total = mass = 0.0
    for i, w in enumerate(weight):
        valid = t[i] != VOID
        loss = binary_cross_entropy_with_logits(z[i][valid].double(), t[i][valid].double(), reduction="sum")
        total, mass = total + w * loss.item(), mass + w * int(valid.sum())
    return total / mass


@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize("weight", [None, [1.0, 0.0, 1.0, 1.0], [0.5, 2.0, 0.0, 0.1]])
def test_bce_averages_over_valid_weighted_pixels(void, weight):
    z, t = binary_batch(void)
    actual = bce_with_void(z, t, VOID, None if weight is None else torch.tensor(weight))
    assert actual.item() == pytest.approx(brute_force_bce(z, t, weight or [1.0] * 4), rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (3, 1, 37, 53), (10, 1, 96, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bce_without_void_equals_pytorchs_bit_for_bit(shape, dtype):
    z, y = torch.randn(shape).to(dtype), torch.rand(shape)
    ours, theirs = (z.clone().requires_grad_() for _ in range(2))
    loss = bce_with_void(ours, y)
    expected = binary_cross_entropy_with_logits(theirs.float(), y)
    loss.backward()
    expected.backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 0.0, 0.1]])
def test_smoothed_cross_entropy_equals_soft_one_hot_targets(void, weight):
    z, y = class_batch(void)
    strength = torch.tensor([0.0, 0.3, 1.0, max_beta(5)])
    actual = cross_entropy_with_void(
        z, SmoothedLabels(y, strength), VOID, None if weight is None else torch.tensor(weight)
    )
    soft = perturb(one_hot(y.where(y != VOID, 0), 5).double(), strength.double(), 5)
    share = (y != VOID) * torch.tensor(weight or [1.0] * 4).double().view(4, 1, 1)
    pixels = -(soft * z.double().log_softmax(1).movedim(1, -1)).sum(-1)
    assert actual.item() == pytest.approx(((pixels * share).sum() / share.sum()).item(), rel=1e-5)


@pytest.mark.parametrize("void", [False, True])
def test_cross_entropy_equals_pytorchs(void):
    z, y = class_batch(void)
    torch.testing.assert_close(cross_entropy_with_void(z, y), cross_entropy(z, y, ignore_index=VOID))
    zero = SmoothedLabels(y, torch.zeros(4))
    assert torch.equal(cross_entropy_with_void(z, zero), cross_entropy_with_void(z, y))


def test_logits_and_gradients_of_void_pixels_do_not_matter():
    for loss, (z, y) in ((bce_with_void, binary_batch(True)), (cross_entropy_with_void, class_batch(True))):
        void = (y == VOID).view(4, 1, 9, 11)
        z.requires_grad_()
        loss(z, y).backward()
        assert torch.equal(loss(torch.where(void, 100.0, z), y), loss(z, y))
        assert not (z.grad * void).any()


@pytest.mark.parametrize("weight", [None, torch.zeros(4)])
def test_a_batch_of_void_or_padding_costs_nothing(weight):
    z = torch.randn(4, 1, 9, 11, requires_grad=True)
    y = torch.full((4, 1, 9, 11), float(VOID)) if weight is None else torch.rand(4, 1, 9, 11)
    loss = bce_with_void(z, y, VOID, weight)
    loss.backward()
    assert loss.item() == 0
    assert not z.grad.any()


def test_loss_is_float32_under_autocast():
    z, y = binary_batch(False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(bce_with_void(z, y), binary_cross_entropy_with_logits(z, y))
        assert torch.equal(image_gap(z, y), image_gap(z.float(), y))


def test_cross_entropy_is_float32_under_autocast():
    z, y = class_batch(True)
    targets = SmoothedLabels(y, torch.rand(4))
    expected = cross_entropy_with_void(z, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(cross_entropy_with_void(z, targets), expected)


@pytest.mark.parametrize("shape", ["sample", "pixel"])
@pytest.mark.parametrize("of", ["samples", "pixels"])
def test_shares_are_weights_relative_to_their_mean(shape, of):
    weight = torch.rand(3) if shape == "sample" else torch.rand(3, 1, 4, 5)
    valid = torch.tensor([True, False, True]) if of == "samples" else torch.rand(3, 1, 4, 5) < 0.7
    expected = weight.double().view(3, 1, 1, 1) if shape == "sample" else weight.double()
    expected = expected.expand(3, 1, 4, 5) * valid.view(3, *valid.shape[1:] or (1, 1, 1))
    if of == "samples":
        expected = expected.sum(dim=(1, 2, 3))
    expected = expected / expected.mean()
    torch.testing.assert_close(pixel_shares(valid, weight).double(), expected, rtol=1e-5, atol=1e-7)


def test_shares_of_nothing_are_0_and_of_everything_exactly_1():
    assert torch.equal(pixel_shares(torch.ones(2, 3, dtype=torch.bool)), torch.ones(2, 3))
    assert torch.equal(pixel_shares(torch.zeros(2, 3, dtype=torch.bool)), torch.zeros(2, 3))
    assert torch.equal(pixel_shares(torch.ones(2, 3, dtype=torch.bool), torch.zeros(2)), torch.zeros(2, 3))


def test_void_is_255_by_default():
    for loss, gap, (z, y) in (
        (bce_with_void, image_gap, binary_batch(True)),
        (cross_entropy_with_void, class_gap, class_batch(True)),
    ):
        assert torch.equal(loss(z, y), loss(z, y, VOID))
        assert torch.equal(gap(z, y), gap(z, y, VOID))
        other = torch.where(y == VOID, -7, y)
        assert torch.equal(loss(z, other, -7), loss(z, y))
        assert torch.equal(gap(z, other, -7), gap(z, y))


def test_gap_is_the_difference_of_two_losses(vectors):
    case = vectors["scbce"]
    z, y, z2, y2 = (torch.tensor(case["inputs"][name]) for name in ("z", "y", "z2", "y2"))
    actual = image_gap(torch.stack([z, z2])[:, None], torch.stack([y, y2])[:, None])
    assert actual.tolist() == pytest.approx([case["expected"]["g1"], case["expected"]["g2"]], abs=1e-6)
    soft = torch.rand(4, 4)
    difference = binary_cross_entropy_with_logits(z, 1 - soft) - binary_cross_entropy_with_logits(z, soft)
    assert image_gap(z[None, None], soft[None, None]).item() == pytest.approx(difference.item(), abs=1e-6)


def test_class_gap_matches_the_vectors(vectors):
    case = vectors["multiclass"]
    z = torch.tensor(case["inputs"]["logits"]).T.reshape(1, 4, 1, 3)
    y = torch.tensor(case["inputs"]["labels"]).reshape(1, 1, 3)
    assert class_gap(z, y).item() == pytest.approx(case["expected"]["g_closed_form"], abs=1e-6)
    hard = cross_entropy_with_void(z, SmoothedLabels(y, torch.tensor([max_beta(4)])))
    assert hard.item() == pytest.approx(case["expected"]["L_hi"], abs=1e-6)


def test_two_softmax_classes_have_the_gap_of_one_sigmoid_logit():
    z, y = torch.randn(4, 1, 9, 11), torch.randint(2, (4, 1, 9, 11))
    y = torch.where(torch.rand(y.shape) < 0.2, VOID, y)
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    torch.testing.assert_close(class_gap(two, y[:, 0]), image_gap(z, y.float()))


def test_gaps_skip_void_pixels_and_images_without_any_valid_one():
    for gap, (z, y) in ((image_gap, binary_batch(True)), (class_gap, class_batch(True))):
        y[0] = VOID
        actual = gap(z, y)
        assert actual[0].item() == 0
        flat_z, flat_y = z.flatten(2), y.flatten(1)
        for i in range(1, 4):
            valid = flat_y[i] != VOID
            some_y = flat_y[i][valid].view(1, -1) if gap is class_gap else flat_y[i][valid].view(1, 1, -1)
            torch.testing.assert_close(actual[i : i + 1], gap(flat_z[i : i + 1, :, valid], some_y))
