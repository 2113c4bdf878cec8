"""NACL, SVLS and the soft L1-ACE: brute force in float64 over pixels and neighbours."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from densecal.methods import create
from densecal.methods.ml1_ace import l1_ace
from densecal.methods.sl1_ace import soft_l1_ace
from tests.methods.common import VOID, batch


def shares_around(y: np.ndarray, classes: int, kernel: np.ndarray) -> np.ndarray:
    """Return the weighted share of each class among the 3 x 3 labels around each pixel of one image (K, H, W)."""
    H, W = y.shape
    out = np.zeros((classes, H, W))
    for r in range(H):
        for c in range(W):
            total = 0.0
            for i in (-1, 0, 1):
                for j in (-1, 0, 1):
                    label = y[min(max(r + i, 0), H - 1), min(max(c + j, 0), W - 1)]
                    if label != VOID:
                        out[int(label), r, c] += kernel[i + 1, j + 1]
                        total += kernel[i + 1, j + 1]
            out[:, r, c] /= total or 1.0
    return out


def void_batch(classes: int):
    z, y = batch(classes, count=2)
    y[..., 2:5, 3:6] = VOID
    return z, y


@pytest.mark.parametrize("classes", [1, 4])
def test_nacl_pulls_logits_toward_the_shares_around_each_pixel(classes):
    z, y = void_batch(classes)
    distances = []
    for image, mask in zip(z.double().numpy(), y.view(2, 6, 7).numpy(), strict=True):
        tau = shares_around(mask, max(classes, 2), np.ones((3, 3)))
        for r, c in np.argwhere(mask != VOID):
            if classes == 1:  # the least penalty of all pairs of logits with this difference
                shifts = np.linspace(-9, 9, 20001)
                pair = np.abs(tau[0, r, c] - shifts) + np.abs(tau[1, r, c] - shifts - image[0, r, c])
                distances.append(pair.min() / 2)
            else:
                distances.append(np.abs(tau[:, r, c] - image[:, r, c]).mean())
    plain = create("bce", num_samples=2, num_classes=classes).loss(z, y).item()
    loss = create("nacl", num_samples=2, num_classes=classes, weight=0.3).loss(z, y).item()
    assert loss - plain == pytest.approx(0.3 * np.mean(distances), rel=1e-4)
    assert create("nacl", num_samples=2).weight == 0.1


def svls_weights(sigma: float) -> np.ndarray:
    kernel = np.array([[math.exp(-(i * i + j * j) / (2 * sigma**2)) for j in (-1, 0, 1)] for i in (-1, 0, 1)])
    kernel[1, 1] = kernel.sum() - kernel[1, 1]
    return kernel


@pytest.mark.parametrize("sigma", [1.0, 0.6])
@pytest.mark.parametrize("classes", [1, 4])
def test_svls_targets_are_the_weighted_labels_around_each_pixel(classes, sigma):
    z, y = void_batch(classes)
    method = create("svls", num_samples=2, num_classes=classes, sigma=sigma)
    _, targets = method.prepare(z, y, torch.arange(2))
    losses = []
    for i, mask in enumerate(y.view(2, 6, 7).numpy()):
        tau = shares_around(mask, max(classes, 2), svls_weights(sigma))
        own = targets[i] if classes == 1 else targets.planes[i]
        valid = mask != VOID
        np.testing.assert_allclose(
            own.numpy()[..., valid], tau[1:, valid] if classes == 1 else tau[:, valid], atol=1e-6
        )
        logits = z[i].double().numpy()
        log_p = log_softmax(np.stack([0 * logits[0], logits[0]]) if classes == 1 else logits, axis=0)
        losses += list(-(tau * log_p).sum(axis=0)[valid])
    assert method.loss(z, targets).item() == pytest.approx(np.mean(losses), rel=1e-5)
    labels = targets if classes == 1 else targets.labels
    assert torch.equal(labels == VOID, y == VOID)


@pytest.mark.parametrize("classes", [1, 4])
def test_svls_leaves_labels_hard_inside_a_region_and_padding_as_it_is(classes):
    z, y = batch(classes, count=2)
    y[..., :3], y[..., 3:] = 0, 1
    method = create("svls", num_samples=2, num_classes=classes)
    _, targets = method.prepare(z, y, torch.tensor([0, -1]))
    foreground = targets[:, 0] if classes == 1 else targets.planes[:, 1]
    assert foreground[0, 3].tolist()[:2] == [0, 0]
    assert foreground[0, 3].tolist()[4:] == [1, 1, 1]
    # half of the weight is the centre's; a column of neighbours has (2 corner + side) / (4 (corner + side)) of the rest
    corner, side = math.exp(-1), math.exp(-0.5)
    assert foreground[0, 3, 2].item() == pytest.approx((2 * corner + side) / (8 * (corner + side)), rel=1e-5)
    hard = (y[1, 0] if classes == 1 else y[1] == 1).float()
    assert torch.equal(foreground[1], hard)


def test_a_sigma_without_neighbours_is_refused():
    with pytest.raises(ValueError, match=r"sigma: found 0\.1; expected at least 0\.2"):
        create("svls", num_samples=1, sigma=0.1)


def soft_bins(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    """Return the soft-binned L1-ACE, pixel by pixel and bin by bin."""
    centres = (np.arange(bins) + 0.5) / bins
    count, mean_p, mean_y = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    for value, label in zip(p, y, strict=True):
        for b, centre in enumerate(centres):
            share = max(0.0, 1 - abs(value - centre) * bins)
            if (b == 0 and value < centre) or (b == bins - 1 and value > centre):
                share = 1.0
            count[b] += share
            mean_p[b] += share * value
            mean_y[b] += share * label
    full = count >= 0.01
    return float(np.abs(mean_p[full] / count[full] - mean_y[full] / count[full]).mean())


@pytest.mark.parametrize("classes", [1, 4])
def test_soft_l1_ace_shares_every_pixel_between_two_bins(classes):
    z, y = void_batch(classes)
    z[0, :, 0, 0], z[0, :, 0, 1] = 30, -30
    errors = []
    for image, mask in zip(z.double(), y.view(2, 6, 7).numpy(), strict=True):
        valid = mask != VOID
        p = image.sigmoid() if classes == 1 else image.softmax(0)
        errors += [
            soft_bins(p[k].numpy()[valid], mask[valid] == (1 if classes == 1 else k), 20) for k in range(classes)
        ]
    plain = create("bce", num_samples=2, num_classes=classes).loss(z, y).item()
    loss = create("sl1-ace", num_samples=2, num_classes=classes, weight=0.4).loss(z, y).item()
    assert loss - plain == pytest.approx(0.4 * np.mean(errors), rel=1e-4)


def test_soft_bins_have_the_derivative_that_hard_bins_miss():
    p = torch.rand(40, dtype=torch.float64, requires_grad=True)
    y, valid = (torch.rand(40) > 0.5).double(), torch.ones(40, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda x: soft_l1_ace(x, y, valid, 5), p)
    (soft,) = torch.autograd.grad(soft_l1_ace(p, y, valid, 5), p)
    (hard,) = torch.autograd.grad(l1_ace(p, y, valid, 5), p)
    assert not torch.allclose(soft, hard)


def test_centres_of_bins_are_hard_bins():
    p = (torch.randint(5, (1, 60)).double() + 0.5) / 5
    y, valid = (torch.rand(1, 60) > 0.5).double(), torch.rand(1, 60) > 0.2
    torch.testing.assert_close(soft_l1_ace(p, y, valid, 5), l1_ace(p, y, valid, 5))
