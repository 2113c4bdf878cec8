"""Several heads in training: formulas of the region losses, one draw for all heads, no weight for padding and void."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from densecal.methods import create, names
from densecal.methods.losses import pixel_shares
from densecal.models import build
from densecal.models.ebmgsod import StructureCriterion
from densecal.models.edn import EDN
from densecal.models.icon import ICON
from densecal.models.supervision import AllHeads, dice_loss, iou_loss

HEADS = 5


class Heads(nn.Module):
    """A model with given logits of its heads."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor, heads: bool = False) -> Tensor | tuple[Tensor, ...]:
        assert heads
        return tuple(self.logits)


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(HEADS, 4, 1, 6, 5, generator=generator)
    masks = (torch.rand(4, 1, 6, 5, generator=generator) > 0.5).float()
    return logits, masks, torch.tensor([3, 1, 7, 5])


def bce(z: np.ndarray, t: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, z) - t * z))


def dice(p: np.ndarray, y: np.ndarray) -> float:
    return float(1 - (2 * (p * y).sum() + 1e-5) / (p.sum() + y.sum() + 1e-5))


def iou(p: np.ndarray, y: np.ndarray) -> float:
    losses = []
    for probability, mask in zip(p, y, strict=True):
        i, u = (probability * mask).sum(), (probability + mask).sum()
        losses.append(1 - (i + 1) / (u - i + 1))
    return float(np.mean(losses))


@pytest.mark.parametrize(("network", "region"), [(EDN, dice), (ICON, iou)])
@pytest.mark.parametrize("padded", [False, True])
def test_the_criteria_are_the_published_losses(network: type, region, padded: bool) -> None:
    logits, masks, index = batch()
    criterion = network("resnet10t").criterion()
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0]) if padded else None
    losses, test = criterion.step(
        Heads(logits), torch.rand(4, 3, 6, 5), masks, masks, create("bce", num_samples=9), weight, index
    )
    z, y = logits.double().numpy(), masks.double().numpy()
    z, y = (z[:, :3], y[:3]) if padded else (z, y)
    expected = sum(bce(head, y) + region(1 / (1 + np.exp(-head)), y) for head in z)
    assert list(losses) == ["main"]
    assert float(losses["main"]) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(test, logits[0])


@pytest.mark.parametrize("arch", ["edn", "icon"])
def test_every_parameter_learns(arch: str) -> None:
    torch.manual_seed(0)
    model = build(arch, "resnet10t").train()
    masks = (torch.rand(2, 1, 70, 96) > 0.6).float()
    method, index = create("bce", num_samples=4), torch.tensor([0, 1])
    losses, logits = model.network.criterion().step(model, torch.rand(2, 3, 70, 96), masks, masks, method, None, index)
    losses["main"].backward()
    assert logits.shape == masks.shape
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("loss", [dice_loss, iou_loss])
def test_a_region_loss_is_zero_for_the_mask_itself_and_one_for_its_opposite(loss) -> None:
    _, masks, _ = batch()
    assert float(loss(masks, masks)) == pytest.approx(0, abs=1e-6)
    assert 0.9 < float(loss(1 - masks, masks)) <= 1


def test_void_pixels_count_in_no_term() -> None:
    logits, masks, index = batch()
    masks[:, :, :, 0] = 255
    method = create("bce", num_samples=9)
    criterion = AllHeads(iou_loss, 1.0)
    images = torch.rand(4, 3, 6, 5)
    losses, _ = criterion.step(Heads(logits), images, masks, masks, method, None, index)
    cut, _ = criterion.step(Heads(logits[..., 1:]), images, masks[..., 1:], masks[..., 1:], method, None, index)
    assert float(losses["main"]) == pytest.approx(float(cut["main"]), rel=1e-6)


def test_the_region_term_can_be_left_out() -> None:
    logits, masks, index = batch()
    method = create("bce", num_samples=9)
    losses, _ = AllHeads(dice_loss, 0.0).step(Heads(logits), torch.rand(4, 3, 6, 5), masks, masks, method, None, index)
    assert float(losses["main"]) == pytest.approx(sum(float(method.loss(z, masks)) for z in logits), rel=1e-6)


def test_perturbed_labels_reach_every_head_and_no_region_term() -> None:
    logits, masks, index = batch()
    method = create("slp", num_samples=9, alpha=0.4)
    _, targets = method.prepare(torch.rand(4, 3, 6, 5), masks, index)
    assert not torch.equal(targets, masks)
    losses, _ = AllHeads(dice_loss, 1.0).step(
        Heads(logits), torch.rand(4, 3, 6, 5), masks, targets, method, None, index
    )
    expected = sum(
        bce(z, targets.double().numpy()) + dice(1 / (1 + np.exp(-z)), masks.double().numpy())
        for z in logits.double().numpy()
    )
    assert float(losses["main"]) == pytest.approx(expected, rel=1e-5)


class AnyHeads(nn.Module):
    """A model with the outputs of either kind of network."""

    def forward(self, images: Tensor, heads: bool = False, masks: Tensor | None = None, noise: Tensor | None = None):
        z = images.mean(dim=1, keepdim=True)
        return (z, -z, 2 * z) if heads else (z, 2 * z, z.mean(dim=(1, 2, 3)), -z.mean(dim=(1, 2, 3)))


@pytest.mark.filterwarnings("ignore:eta")
@pytest.mark.parametrize("criterion", [AllHeads(dice_loss, 1.0), StructureCriterion(1.0)])
@pytest.mark.parametrize("name", [name for name in names() if name != "mixup"])
def test_every_method_trains_every_network(name: str, criterion) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 16, 16, generator=generator).requires_grad_()
    masks = (torch.rand(4, 1, 16, 16, generator=generator) > 0.5).float()
    index, weight = torch.tensor([2, 0, 1, -1]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    method = create(name, num_samples=3)
    prepared, targets = method.prepare(images, masks, index)
    losses, logits = criterion.step(AnyHeads(), prepared, masks, targets, method, weight, index)
    torch.stack(list(losses.values())).sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    assert images.grad[:3].abs().amax(dim=(1, 2, 3)).min() > 0
    assert images.grad[3].abs().max() == 0, "padding must not count"
    assert logits.shape == (4, 1, 16, 16)


def test_pixel_weights_are_weights_of_a_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    values, weight = (torch.rand(3, 1, 4, 5, generator=generator) for _ in range(2))
    valid = torch.rand(3, 1, 4, 5, generator=generator) > 0.2
    shares = pixel_shares(valid, weight)
    expected = np.average(values[valid].numpy(), weights=weight[valid].numpy())
    assert float((values * shares).mean()) == pytest.approx(expected, rel=1e-5)
    per_image = pixel_shares(torch.tensor([True, True, False]), weight)
    sums = weight.sum(dim=(1, 2, 3))
    torch.testing.assert_close(per_image, torch.stack((sums[0], sums[1], torch.tensor(0.0))) * 3 / sums[:2].sum())
