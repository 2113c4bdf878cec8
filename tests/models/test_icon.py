"""ICON: parameter counts of the spec, EM routing against loops in float64, and the forward pass written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate, unfold

from densecal.errors import InputError
from densecal.models import build
from densecal.models.icon import ICON, CapsuleRouting, ChannelEnhancement, em_routing

Floats = NDArray[np.float64]


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def on_meta(encoder: str) -> ICON:
    with torch.device("meta"):
        network = build("icon", encoder).network
    assert isinstance(network, ICON)
    return network


def test_resnet50_has_the_published_parameter_counts() -> None:
    network = on_meta("resnet50")
    assert count(network) == 33_047_513
    idle_gate, idle_conv = 41_216, 65  # in the authors' class; nothing flows through them
    assert count(network) + idle_gate + 2 * idle_conv == 33_088_859
    assert [count(dfa) for dfa in network.aggregate] == [652_097, 1_192_769, 2_274_113, 4_436_801]
    assert count(network.enhance_deep) == count(network.enhance_fine) == 111_897 - idle_conv
    assert count(network.verify) == 757_152 - idle_gate
    assert count(network.verify.routing) == 72 * 8 * 4 * 4 + 8 + 8


@pytest.mark.parametrize(("size", "pose"), [(352, 10), (384, 11)])
def test_the_maps_have_the_published_sizes(size: int, pose: int) -> None:
    network = on_meta("resnet50")
    seen: list[tuple[int, ...]] = []
    network.verify.register_forward_hook(lambda module, inputs, outputs: seen.extend(tuple(o.shape) for o in outputs))
    heads = network(torch.rand(1, 3, size, size, device="meta"), heads=True)
    assert seen == [(1, 64, size // 16, size // 16)] * 3 + [(1, 64, pose, pose)]
    assert [tuple(head.shape) for head in heads] == [(1, 1, size, size)] * 5


@pytest.mark.parametrize("encoder", ["tf_efficientnet_lite2", "vgg16", "swin_tiny_patch4_window7_224"])
def test_it_builds_on_other_encoders_and_takes_sizes_that_are_not_square(encoder: str) -> None:
    with torch.device("meta"):
        model = build("icon", encoder)
        assert [tuple(head.shape) for head in model(torch.rand(2, 3, 75, 100), heads=True)] == [(2, 1, 75, 100)] * 5


def test_images_too_small_for_its_capsules_are_refused() -> None:
    with pytest.raises(InputError, match="at least 33"):
        build("icon", "resnet10t").eval()(torch.rand(1, 3, 32, 64))


# Routing


def em_by_loops(votes: Floats, a: Floats, beta_u: Floats, beta_a: Floats) -> Floats:
    """Hinton et al. 2018, procedure 1, for one position: votes (I, J, 16), a (I,)."""
    I, J, H = votes.shape  # noqa: E741
    R = np.full((I, J), 1 / J)
    mu, sigma2, a_j = np.zeros((J, H)), np.zeros((J, H)), np.zeros(J)
    for t in range(3):
        lam = 0.01 * (1 - 0.95 ** (t + 1))
        for j in range(J):
            r = [R[i, j] * a[i] for i in range(I)]
            cost = 0.0
            for h in range(H):
                mu[j, h] = sum(r[i] * votes[i, j, h] for i in range(I)) / sum(r)
                sigma2[j, h] = sum(r[i] * (votes[i, j, h] - mu[j, h]) ** 2 for i in range(I)) / sum(r)
                cost += (beta_u[j] + math.log(math.sqrt(sigma2[j, h]))) * sum(r)
            a_j[j] = 1 / (1 + math.exp(-lam * (beta_a[j] - cost)))
        for i in range(I):
            p = np.array([
                np.prod(np.exp(-((votes[i, j] - mu[j]) ** 2) / (2 * sigma2[j])) / np.sqrt(2 * np.pi * sigma2[j]))
                for j in range(J)
            ])  # fmt: skip
            R[i] = a_j * p / (a_j * p).sum()
    return mu


def test_em_routing_equals_the_published_procedure_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densecal.models.icon.ROUTING_EPSILON", 1e-14)
    rng = np.random.default_rng(0)
    votes, a = rng.normal(size=(2, 9, 4, 16, 3)), rng.uniform(0.1, 1, size=(2, 9, 3))
    beta_u, beta_a = rng.normal(size=4), rng.normal(size=4)
    poses = em_routing(*(torch.from_numpy(x) for x in (votes, a, beta_u, beta_a))).numpy()
    for b in range(2):
        for i in range(3):
            expected = em_by_loops(votes[b, ..., i], a[b, :, i], beta_u, beta_a)
            np.testing.assert_allclose(poses[b, ..., i], expected, rtol=1e-9)


def test_routing_follows_votes_that_agree() -> None:
    """A convolution would give the mean of all votes; routing ignores the one that disagrees."""
    torch.manual_seed(0)
    votes = 3 * torch.randn(1, 12, 2, 16, 1)
    agreed = torch.randn(16)
    votes[0, :11, 0, :, 0] = agreed + 0.05 * torch.randn(11, 16)
    a = torch.ones(1, 12, 1)
    pose = em_routing(votes, a, torch.zeros(2), torch.zeros(2))[0, 0, :, 0]
    mean = votes[0, :, 0, :, 0].mean(dim=0)
    assert (pose - agreed).norm() < 0.3 * (mean - agreed).norm()
    a[0, 0] = 0  # a capsule with activation 0 has no vote
    without = em_routing(votes[:, 1:], a[:, 1:], torch.zeros(2), torch.zeros(2))
    torch.testing.assert_close(em_routing(votes, a, torch.zeros(2), torch.zeros(2)), without, rtol=1e-4, atol=1e-5)


def test_votes_are_the_neighbours_poses_times_matrices() -> None:
    torch.manual_seed(0)
    routing = CapsuleRouting().double()
    activation, pose = torch.rand(2, 8, 5, 7, dtype=torch.float64), torch.randn(2, 128, 5, 7, dtype=torch.float64)
    poses = routing(activation, pose)
    assert poses.shape == (2, 128, 3, 4)
    # unfold orders by (channel, position in the kernel), the votes by (position in the kernel, capsule)
    a = unfold(activation, 3, padding=1, stride=2).view(2, 8, 9, 12).transpose(1, 2).reshape(2, 72, 12)
    M = unfold(pose, 3, padding=1, stride=2).view(2, 8, 4, 4, 9, 12).permute(0, 4, 1, 2, 3, 5).reshape(2, 72, 4, 4, 12)
    votes = torch.zeros(2, 72, 8, 4, 4, 12, dtype=torch.float64)
    for i in range(12):
        votes[..., i] = M[:, :, None, :, :, i] @ routing.weight
    expected = em_routing(votes.flatten(3, 4), a, routing.beta_u, routing.beta_a)
    torch.testing.assert_close(poses.flatten(2), expected.flatten(1, 2))


def test_every_parameter_of_the_routing_learns() -> None:
    torch.manual_seed(0)
    routing = CapsuleRouting()
    routing(torch.rand(2, 8, 6, 6), torch.randn(2, 128, 6, 6)).square().mean().backward()
    for parameter in routing.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


# The rest


def test_channels_are_weighted_by_their_norms() -> None:
    torch.manual_seed(0)
    ice = ChannelEnhancement().double().eval()
    x, second, third = (torch.randn(2, 64, s, s, dtype=torch.float64) for s in (8, 4, 16))

    def up(t: Tensor) -> Tensor:
        return interpolate(t, size=(8, 8), mode="bilinear", align_corners=False)

    with torch.no_grad():
        for neighbours, joined in (((second, third), (x, up(second), up(third))), ((second,), (x, up(second), x))):
            u = ice.cross(torch.cat(joined, dim=1))
            norms = torch.stack([torch.linalg.vector_norm(u[b].flatten(1), dim=1) for b in range(2)])
            context = (norms.square() + 1e-5).sqrt()
            hidden = context @ ice.squeeze.weight[:, :, 0, 0].T + ice.squeeze.bias
            centred = hidden - hidden.mean(dim=1, keepdim=True)
            scaled = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
            w = scaled.clamp(min=0) @ ice.widen.weight[:, :, 0, 0].T + ice.widen.bias
            torch.testing.assert_close(ice(x, *neighbours), u * w[:, :, None, None])


def test_forward_follows_the_published_order() -> None:
    torch.manual_seed(0)
    network = ICON("resnet10t").double().eval()
    x = torch.randn(1, 3, 96, 128, dtype=torch.float64)

    def like(t: Tensor, other: Tensor) -> Tensor:
        return interpolate(t, size=tuple(other.shape[-2:]), mode="bilinear", align_corners=False)

    with torch.no_grad():
        c2, c3, c4, c5 = network.encoder(x)
        x4, x3, x2, x1 = (network.aggregate[i](c) for i, c in enumerate((c2, c3, c4, c5)))
        ice_a, ice_b, pwv = network.enhance_deep, network.enhance_fine, network.verify
        x1 = ice_a(x1, x2)
        x2 = ice_a(x2, x1, x3)
        x3 = ice_b(x3, x2, x4)
        x4 = ice_b(x4, x3)
        x1, x3 = like(x1, x2), like(x3, x2)
        joined = pwv.join(torch.cat((x1, x2, x3), 1))
        pose = pwv.whole(pwv.norm(pwv.routing(torch.sigmoid(pwv.activation(joined)), pwv.pose(joined))))
        o1, o2, o3 = (pwv.refine[i](torch.cat((t, like(pose, x2)), 1)) for i, t in enumerate((x1, x2, x3)))
        o2 = pwv.gate2(o2 * o1) + o2
        o3 = like(pwv.gate3(o3 * o2) + o3, x4)
        x4 = network.gate(x4 * o3) + x4
        sides = [head(t) for head, t in zip(network.side_heads, (o1, o2, o3, pose), strict=True)]
        expected = [like(t, x) for t in (network.head(x4), *sides)]
        outputs = network(x, heads=True)
        test = network(x)
    torch.testing.assert_close(list(outputs), expected)
    torch.testing.assert_close(test, outputs[0])
    assert pose.shape[-2:] == (2, 3)


def test_new_layers_start_with_kaiming_normal_weights() -> None:
    torch.manual_seed(0)
    network = ICON("resnet10t")
    weight = network.aggregate[3].plain.weight.detach()
    assert float(weight.std()) == pytest.approx((2 / (weight.shape[1] * 9)) ** 0.5, rel=0.02)
    assert float(network.head.bias.detach().abs().max()) == 0
