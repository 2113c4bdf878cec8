"""Losses other than cross entropy: the vectors, and brute force for K classes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from densecal.methods import create, names
from densecal.methods.brier import binary_brier
from densecal.methods.confidence_penalty import binary_entropy
from densecal.methods.focal import binary_focal, flsd_gamma
from densecal.methods.mbls import binary_margin_penalty
from densecal.methods.ml1_ace import l1_ace
from densecal.methods.s_avuc import avuc_counts, mixed_entropy, soft_avuc
from densecal.methods.soft_ece import soft_binned_ece
from tests.methods.common import batch

VECTORS = {v["name"]: v for v in json.loads((Path(__file__).parents[1] / "vectors.json").read_text())}
METHODS = ["brier", "focal", "flsd", "confidence-penalty", "mbls", "ml1-ace", "soft-ece", "s-avuc"]
# Small logits would leave the margin of 10 without effect.
OPTIONS = {"mbls": {"margin": 1.0}}


def make(name: str, **options):
    return create(name, **{"num_samples": 9, **OPTIONS.get(name, {}), **options})


def tensors(name: str, *keys: str) -> list[torch.Tensor]:
    return [torch.tensor(VECTORS[name]["inputs"][key], dtype=torch.float64) for key in keys]


def expected(name: str) -> dict:
    return VECTORS[name]["expected"]


def image(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(1, 1, 4, -1)


def exact(value: float):
    return pytest.approx(value, abs=1e-9)


def single(value: float):
    return pytest.approx(value, abs=1e-5)


def test_the_names_are_registered():
    assert set(names()) >= set(METHODS)


def test_brier_vector():
    z, y = tensors("brier", "z", "y")
    assert binary_brier(z, y).mean().item() == exact(expected("brier")["single_channel_mean"])
    assert make("brier").loss(image(z), image(y)).item() == single(expected("brier")["single_channel_mean"])
    two = torch.cat([torch.zeros_like(image(z)), image(z)], dim=1)
    loss = make("brier", num_classes=2).loss(two, image(y)[:, 0].long())
    assert loss.item() == single(expected("brier")["two_class_sum_mean"])


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_focal_vector(gamma):
    z, y = tensors("focal", "z_image1", "y_image1")
    assert binary_focal(z, y, gamma).mean().item() == exact(expected("focal")[f"g{gamma}"])
    assert make("focal", gamma=gamma).loss(image(z), image(y)).item() == single(expected("focal")[f"g{gamma}"])


def test_focal_and_flsd_pooled_vectors():
    z, y = tensors("focal", "z_pooled", "y_pooled")
    gamma = flsd_gamma(torch.where(y > 0.5, z, -z))
    assert (gamma == 5).sum() == expected("focal")["pooled_n_gamma5_px"]
    assert set(gamma.tolist()) == {3.0, 5.0}
    assert binary_focal(z, y, gamma).mean().item() == exact(expected("focal")["pooled_flsd53"])
    assert make("flsd").loss(image(z), image(y)).item() == single(expected("focal")["pooled_flsd53"])
    assert make("focal").loss(image(z), image(y)).item() == single(expected("focal")["pooled_g3"])


def test_focal_with_gamma_0_is_cross_entropy_for_soft_masks():
    z, y = torch.randn(2, 1, 5, 5), torch.rand(2, 1, 5, 5)
    torch.testing.assert_close(make("focal", gamma=0.0).loss(z, y), binary_cross_entropy_with_logits(z, y))


def test_confidence_penalty_vector():
    z, y = tensors("confidence_penalty", "z", "y")
    assert binary_entropy(z).mean().item() == exact(expected("confidence_penalty")["mean_entropy"])
    loss = make("confidence-penalty").loss(image(z), image(y))
    assert loss.item() == single(expected("confidence_penalty")["total"])


def test_mbls_vector():
    z, y = tensors("mbls", "z", "y")
    assert binary_margin_penalty(z, 2.0).mean().item() == exact(expected("mbls")["penalty_half_relu"])
    loss = make("mbls", margin=2.0).loss(image(z), image(y))
    assert loss.item() == single(expected("mbls")["total"])
    assert create("mbls", num_samples=1).margin == 10


def test_ml1_ace_vector():
    z, y = tensors("ml1_ace", "z", "y")
    p, y, valid = z.sigmoid().flatten(1), y.flatten(1), torch.ones(2, 16)
    ace = l1_ace(p, y, valid, 20)
    assert ace.tolist() == [exact(expected("ml1_ace")["img1"]), exact(expected("ml1_ace")["img2"])]
    assert l1_ace(p, y, valid, 5)[0].item() == exact(expected("ml1_ace")["img1_5bins"])
    z, y = z.unsqueeze(1), y.view(2, 1, 4, 4)
    loss = make("ml1-ace").loss(z, y) - make("bce").loss(z, y)
    assert loss.item() == single(expected("ml1_ace")["batch_mean"])


def test_sb_ece_vector():
    c, a, z, y = tensors("sb_ece", "conf", "correct", "z", "y")
    ones = torch.ones_like(c)
    assert soft_binned_ece(c, a, ones, norm=2.0).item() == exact(expected("sb_ece")["l2"])
    assert soft_binned_ece(c, a, ones, norm=1.0).item() == exact(expected("sb_ece")["l1"])
    z, y = image(z), image(y)
    loss = make("soft-ece").loss(z, y) - make("bce").loss(z, y)
    assert loss.item() == single(0.5 * expected("sb_ece")["l2"])


@pytest.mark.parametrize(("kappa", "T", "key"), [(0.5, 1.0, "k0.5_T1"), (0.3, 0.1, "k0.3_T0.1")])
def test_s_avuc_vector(kappa, T, key):
    p, correct, z, y = tensors("s_avuc", "p", "correct", "z", "y")
    H = mixed_entropy(torch.stack([p, 1 - p], dim=1))
    counts = avuc_counts(H, correct, torch.ones_like(p), 2, kappa, T)
    if T == 1:
        parts = expected("s_avuc")["nAC_nAU_nIC_nIU_k0.5_T1"]
        assert [n.item() for n in counts] == [exact(n) for n in parts]
    assert soft_avuc(*counts).item() == exact(expected("s_avuc")[key])
    z, y = image(z), image(y)
    loss = make("s-avuc", kappa=kappa, temperature=T).loss(z, y) - make("bce").loss(z, y)
    assert loss.item() == single(0.5 * expected("s_avuc")[key])


def brute_force(name: str, z: np.ndarray, y: np.ndarray) -> float:
    """Compute the loss of K classes from its definition, pixel by pixel in float64."""
    B, K, N = z.shape
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    pixels = [(p[i, :, n], z[i, :, n], y[i, n]) for i in range(B) for n in range(N)]
    p_t = np.array([q[t] for q, _, t in pixels])
    ce = -np.log(p_t).mean()
    c, a = np.array([q.max() for q, _, _ in pixels]), np.array([float(q.argmax() == t) for q, _, t in pixels])
    if name == "brier":
        return float(np.mean([((q - np.eye(K)[t]) ** 2).sum() for q, _, t in pixels]))
    if name in ("focal", "flsd"):
        gamma = np.where((p_t < 0.2) & (name == "flsd"), 5, 3)
        return float((-((1 - p_t) ** gamma) * np.log(p_t)).mean())
    if name == "confidence-penalty":
        return float(ce + 0.1 * np.mean([(q * np.log(q)).sum() for q, _, _ in pixels]))
    if name == "mbls":
        return float(ce + 0.1 * np.mean([np.maximum(s.max() - s - 1.0, 0).mean() for _, s, _ in pixels]))
    if name == "ml1-ace":
        aces = []
        for i in range(B):
            for k in range(K):
                bins = np.floor(p[i, k] * 20)
                gaps = [abs(p[i, k][bins == b].mean() - (y[i][bins == b] == k).mean()) for b in np.unique(bins)]
                aces.append(np.mean(gaps))
        return float(ce + np.mean(aces))
    if name == "soft-ece":
        u = np.exp(-((c[:, None] - (np.arange(15) + 0.5) / 15) ** 2) / 0.01)
        u /= u.sum(1, keepdims=True)
        S = u.sum(0)
        gap = np.abs((u * c[:, None]).sum(0) / S - (u * a[:, None]).sum(0) / S)
        return float(ce + 0.5 * math.sqrt((S / S.sum() * gap**2).sum()))
    mixed = [q * (1 - 1e-5) + 1e-5 / K for q, _, _ in pixels]
    H = np.array([-(q * np.log(q)).sum() for q in mixed])
    h = H / np.log(K)
    q = h / (1 - h) / (1 + h / (1 - h))
    certain, uncertain = (1 - q) * (1 - np.tanh(H)), q * np.tanh(H)
    bad, good = (uncertain * a + certain * (1 - a)).sum(), (certain * a + uncertain * (1 - a)).sum()
    return float(ce + 0.5 * np.log(1 + bad / good))


@pytest.mark.parametrize("name", METHODS)
def test_four_classes_agree_with_the_definition(name):
    z, y = batch(4)
    loss = make(name, num_classes=4).loss(z, y).item()
    assert loss == single(brute_force(name, z.double().flatten(2).numpy(), y.flatten(1).numpy()))


def test_a_small_gamma_has_a_finite_gradient_at_saturation():
    z = torch.tensor([60.0, -60.0, 200.0, -200.0]).view(1, 1, 2, 2).requires_grad_()
    make("focal", gamma=0.5).loss(z, (z > 0).float()).backward()
    assert z.grad.isfinite().all()


def test_flsd_chooses_gamma_from_the_binarised_mask():
    z = torch.tensor([-3.0, 3.0]).view(1, 1, 1, 2)
    y = torch.tensor([0.8, 0.2]).view(1, 1, 1, 2)
    torch.testing.assert_close(make("flsd").loss(z, y), make("focal", gamma=5.0).loss(z, y))
    torch.testing.assert_close(make("flsd").loss(-z, y), make("focal", gamma=3.0).loss(-z, y))
