"""EBMGSOD: parameter counts of the spec, Langevin steps against the formula, and the forward pass written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter
from scipy.signal import correlate2d
from torch import Tensor, nn
from torch.nn.functional import interpolate

from densecal.methods import create
from densecal.models import build
from densecal.models.ebmgsod import (
    EBMGSOD,
    ChannelAttention,
    EnergyPrior,
    HolisticAttention,
    boundary_weight,
    langevin,
    mean_probability,
)
from densecal.rng import Stream, normal


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def on_meta(encoder: str) -> EBMGSOD:
    with torch.device("meta"):
        network = build("ebmgsod", encoder).network
    assert isinstance(network, EBMGSOD)
    return network


@pytest.fixture
def network() -> EBMGSOD:
    torch.manual_seed(0)
    network = EBMGSOD("resnet10t").double().eval()
    for parameter in network.prior.parameters():
        nn.init.normal_(parameter, std=0.3)
    for name, parameter in network.named_parameters():
        if "decoder" in name or "lateral" in name:
            nn.init.normal_(parameter, std=0.05)
    return network


def test_resnet50_has_the_published_parameter_counts() -> None:
    network = on_meta("resnet50")
    assert count(network.prior) == 5_701
    assert count(network) - count(network.prior) == 55_872_397
    assert count(network.encoder, network.tail) == 45_571_136
    assert [count(lateral) for lateral in network.laterals] == [295_040, 589_952, 1_179_776, 2_359_424]
    assert [count(lateral) for lateral in network.refined_laterals] == [589_952, 1_179_776, 2_359_424]
    assert count(network.mix_latent) == 2_080
    assert count(network.decoder) == count(network.refined_decoder) == 872_438
    assert count(network.attention) == 31 * 31


@pytest.mark.parametrize("encoder", ["tf_efficientnet_lite2", "vgg16", "swin_tiny_patch4_window7_224"])
def test_logits_have_the_images_size_on_other_encoders(encoder: str) -> None:
    with torch.device("meta"):
        assert build("ebmgsod", encoder, samples=1)(torch.rand(2, 3, 75, 96)).shape == (2, 1, 75, 96)


def test_a_training_step_gets_two_maps_of_the_images_size_and_two_energies() -> None:
    model = build("ebmgsod", "resnet10t")
    outputs = model(torch.rand(2, 3, 75, 60), masks=torch.rand(2, 1, 75, 60), noise=torch.randn(2, 2, 6, 32))
    assert [tuple(output.shape) for output in outputs] == [(2, 1, 75, 60), (2, 1, 75, 60), (2,), (2,)]


# Langevin


def test_latents_are_sampled_in_single_precision_under_mixed_precision(network: EBMGSOD) -> None:
    images, masks = torch.rand(2, 3, 64, 64), (torch.rand(2, 1, 64, 64) > 0.5).float()
    noise = normal(0, 0, torch.arange(2), Stream.EBM_TRAINING, 2 * 6 * 32).view(2, 2, 6, 32).half()
    network.float()
    with torch.no_grad():
        expected = network(images, masks, noise.float())
        with torch.autocast("cpu", torch.float16):
            outputs = network(images.half(), masks.half(), noise)
    assert outputs[2].dtype == outputs[3].dtype == torch.float32
    torch.testing.assert_close(outputs[3], expected[3])  # the prior's samples do not depend on the network
    torch.testing.assert_close(outputs[2], expected[2], atol=0.01, rtol=0.01)


def test_the_gradient_of_the_energy_equals_that_of_autograd() -> None:
    torch.manual_seed(0)
    prior = EnergyPrior().double()
    z = 2 * torch.randn(7, 32, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(prior(z).sum(), z)
    torch.testing.assert_close(prior.gradient(z), expected, rtol=1e-12, atol=1e-12)


def test_a_prior_sample_follows_the_formula(network: EBMGSOD) -> None:
    noise = torch.randn(3, 6, 32, dtype=torch.float64)
    layers = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (network.prior.layer1, network.prior.layer2, network.prior.layer3)
    ]

    def energy(z: np.ndarray) -> float:
        for i, (weight, bias) in enumerate(layers):
            z = weight @ z + bias
            if i < 2:
                z = nn.functional.gelu(torch.from_numpy(z)).numpy()
        return float(z[0])

    def slope(z: np.ndarray) -> np.ndarray:
        steps = 1e-5 * np.eye(32)
        return np.array([(energy(z + step) - energy(z - step)) / 2e-5 for step in steps])

    expected = []
    for z, *steps in noise.numpy():
        for epsilon in steps:
            z = z - 0.4**2 / 2 * (slope(z) + z) + 0.4 * epsilon
        expected.append(z)
    np.testing.assert_allclose(network.sample_prior(noise).detach().numpy(), expected, rtol=1e-6, atol=1e-8)


def test_a_posterior_sample_follows_the_formula(network: EBMGSOD) -> None:
    torch.manual_seed(1)
    features = network.encoder(torch.randn(2, 3, 64, 64, dtype=torch.float64))
    f = [lateral(c).detach() for lateral, c in zip(network.laterals, features, strict=True)]
    masks = (torch.rand(2, 1, 64, 64) > 0.5).double()
    noise = torch.randn(2, 6, 32, dtype=torch.float64)

    def total(z: Tensor) -> Tensor:
        misfit = (torch.sigmoid(network.initial_map(f, z)) - masks).square().mean()
        return network.prior(z).sum() + misfit / (2 * 0.3**2) + z.square().sum() / 2

    z = noise[:, 0]
    for step in range(1, 6):
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(total(at), at)
        z = z - 0.1**2 / 2 * slope + 0.1 * noise[:, step]
    sample = network.sample_posterior(f, masks, noise)
    torch.testing.assert_close(sample, z, rtol=1e-10, atol=1e-10)
    assert not sample.requires_grad
    likelihood = network.likelihood_gradient(f, masks, z)
    assert float(likelihood.norm()) > 1e-6
    assert not torch.allclose(sample, langevin(noise, 0.1, network.prior.gradient), atol=1e-9)


def test_many_langevin_steps_sample_the_density() -> None:
    """For the energy 3/2 |z|^2 the density is a normal of variance 1/4, to which steps of 0.2 come close."""
    noise = torch.randn(4000, 61, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = langevin(noise, 0.2, lambda z: 3 * z)
    factor = 1 - 0.02 * 4
    assert float(z.var()) == pytest.approx(0.04 / (1 - factor**2), rel=0.01)
    assert float(z.mean()) == pytest.approx(0, abs=0.01)


# The forward pass


def test_attention_is_widened_and_rescaled_but_never_lowered() -> None:
    torch.manual_seed(0)
    holistic = HolisticAttention().double()
    kernel = holistic.kernel.detach()[0, 0].numpy()
    assert kernel.sum() == pytest.approx(1)
    np.testing.assert_allclose(kernel, kernel[::-1, ::-1])
    assert kernel[15, 30] / kernel[15, 15] == pytest.approx(np.exp(-8), rel=1e-5)
    attention, features = torch.rand(2, 1, 8, 12, dtype=torch.float64), torch.randn(2, 5, 8, 12, dtype=torch.float64)
    attended = holistic(attention, features)
    for b in range(2):
        wide = correlate2d(attention[b, 0].numpy(), kernel, mode="same")
        wide = (wide - wide.min()) / (wide.max() - wide.min() + 1e-8)
        expected = np.maximum(wide, attention[b, 0].numpy()) * features[b].numpy()
        np.testing.assert_allclose(attended[b].detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_channel_attention_adds_weighted_channels() -> None:
    torch.manual_seed(0)
    block = ChannelAttention(32).double()
    x = torch.randn(2, 32, 6, 6, dtype=torch.float64)
    y = block.conv2(block.conv1(x).clamp(min=0))
    hidden = (y.mean(dim=(2, 3)) @ block.squeeze.weight[:, :, 0, 0].T + block.squeeze.bias).clamp(min=0)
    w = torch.sigmoid(hidden @ block.widen.weight[:, :, 0, 0].T + block.widen.bias)
    torch.testing.assert_close(block(x), x + w[:, :, None, None] * y)


def test_forward_follows_the_published_order(network: EBMGSOD) -> None:
    torch.manual_seed(1)
    x, z = torch.randn(2, 3, 64, 96, dtype=torch.float64), torch.randn(2, 32, dtype=torch.float64)

    def up(t: Tensor, factor: float) -> Tensor:
        size = [round(side * factor) for side in t.shape[-2:]]
        return interpolate(t, size=size, mode="bilinear", align_corners=True)

    def decode(d: nn.Module, f1: Tensor, f2: Tensor, f3: Tensor, f4: Tensor) -> Tensor:
        a4 = up(f4, 2)
        a43 = up(d.reduce[0](d.attend[0](torch.cat((a4, f3), 1))), 2)
        a432 = up(d.reduce[1](d.attend[1](torch.cat((up(a4, 2), a43, f2), 1))), 2)
        a = d.reduce[2](d.attend[2](torch.cat((up(a4, 4), up(a43, 2), a432, f1), 1)))
        return up(d.head(a), 4)

    with torch.no_grad():
        c = network.encoder(x)
        f = [lateral(t) for lateral, t in zip(network.laterals, c, strict=True)]
        tiled = torch.zeros(2, 32, 2, 3, dtype=torch.float64) + z[:, :, None, None]
        noisy = network.mix_latent(torch.cat((f[3], tiled), 1))
        initial = decode(network.decoder, f[0], f[1], f[2], noisy)
        c3 = network.attention(torch.sigmoid(up(initial, 1 / 8)), c[1])
        layer3, layer4 = network.tail.layers
        c4 = layer3(c3)
        c5 = layer4(c4)
        g = [lateral(t) for lateral, t in zip(network.refined_laterals, (c3, c4, c5), strict=True)]
        refined = decode(network.refined_decoder, f[0], *g)
        maps = network.maps(c[1], f, z)
    assert initial.shape == refined.shape == (2, 1, 64, 96)
    torch.testing.assert_close(maps, (initial, refined))
    dilations = [conv.dilation[0] for conv in network.decoder.reduce[0].convs]
    assert dilations == [6, 12, 18, 24]


def test_predictions_average_probabilities_over_fixed_latents(network: EBMGSOD) -> None:
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        c = network.encoder(x)
        f = [lateral(t) for lateral, t in zip(network.laterals, c, strict=True)]
        latents = network.sample_prior(network.test_noise)
        assert latents.shape == (5, 32)
        p = torch.stack([network.maps(c[1], f, z.expand(2, -1))[1].sigmoid() for z in latents])
        assert float(p.std(dim=0).max()) > 1e-6, "the latent must matter"
        logits = network(x)
        torch.testing.assert_close(logits.sigmoid(), p.mean(dim=0))
        assert torch.equal(network(x), logits)
        torch.testing.assert_close(network(x[1:]), logits[1:])  # whatever else is in the batch


def test_a_mean_probability_keeps_its_logit_where_one_minus_p_rounds_to_zero() -> None:
    logits = torch.tensor([[40.0, -90.0, 3.0], [60.0, -90.0, -1.0]])
    p = torch.sigmoid(torch.tensor([3.0, -1.0])).mean()
    expected = torch.tensor([40.0 + np.log(2), -90.0, float(torch.logit(p))], dtype=torch.float32)
    torch.testing.assert_close(mean_probability(logits), expected)


def test_encoder_weights_reach_both_copies(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(5)
    save_file(timm.create_model("resnet10t").state_dict(), tmp_path / "encoder.safetensors")
    network = build("ebmgsod", "resnet10t", weights=tmp_path / "encoder.safetensors").network
    for own, copied in zip(
        (network.encoder.model.layer3, network.encoder.model.layer4), network.tail.layers, strict=True
    ):
        for a, b in zip(own.parameters(), copied.parameters(), strict=True):
            assert torch.equal(a, b)


# A training step


def test_boundaries_weigh_more() -> None:
    y = (torch.rand(1, 1, 40, 50, generator=torch.Generator().manual_seed(0)) > 0.5).double()
    mean = uniform_filter(y[0, 0].numpy(), 31, mode="constant")
    np.testing.assert_allclose(boundary_weight(y)[0, 0].numpy(), 1 + 5 * np.abs(mean - y[0, 0].numpy()), rtol=1e-9)


class FixedOutputs(nn.Module):
    """A model with given outputs that records its inputs."""

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs
        self.inputs: dict[str, Tensor] = {}

    def forward(self, images: Tensor, masks: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        self.inputs = {"masks": masks, "noise": noise}
        return self.outputs


def structure_loss(z: np.ndarray, y: np.ndarray, t: np.ndarray) -> float:
    """Return the published loss of one image, with t in place of its smoothed label."""
    w = 1 + 5 * np.abs(uniform_filter(y, 31, mode="constant") - y)
    p = 1 / (1 + np.exp(-z))
    bce = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    i, u = (w * p * y).sum(), (w * (p + y)).sum()
    return float((w * bce).sum() / w.sum() + 1 - (i + 1) / (u - i + 1))


@pytest.mark.parametrize("padded", [False, True])
def test_the_criterion_is_the_published_structure_loss(padded: bool) -> None:
    torch.manual_seed(0)
    initial, refined = torch.randn(3, 1, 40, 40), torch.randn(3, 1, 40, 40)
    positive, negative = torch.randn(3), torch.randn(3)
    y = (torch.rand(3, 1, 40, 40) > 0.6).float()
    method = create("label-smoothing", beta=0.001, num_samples=10, seed=4)
    method.start_epoch(2)
    index = torch.tensor([7, 3, -1 if padded else 5])
    _, targets = method.prepare(torch.rand(3, 3, 40, 40), y, index)
    model = FixedOutputs(initial, refined, positive, negative)
    weight = (index >= 0).float() if padded else None
    criterion = EBMGSOD("resnet10t").criterion()
    losses, logits = criterion.step(model, torch.rand(3, 3, 40, 40), y, targets, method, weight, index)
    real = slice(2 if padded else 3)
    t = 0.999 * y + 0.0005
    expected = np.mean([
        sum(structure_loss(*(v[b, 0].double().numpy() for v in (z, y, t))) for z in (initial, refined))
        for b in range(3)[real]
    ])  # fmt: skip
    assert float(losses["main"]) == pytest.approx(expected, rel=1e-5)
    assert float(losses["prior"]) == pytest.approx(float((positive - negative)[real].mean()), rel=1e-5)
    assert logits is refined
    assert torch.equal(model.inputs["masks"], y)
    noise = normal(4, 2, index, Stream.EBM_TRAINING, 2 * 6 * 32).view(3, 2, 6, 32)
    assert torch.equal(model.inputs["noise"], noise)


def test_each_loss_reaches_the_parameters_of_its_own_optimizer_only() -> None:
    torch.manual_seed(0)
    model = build("ebmgsod", "resnet10t").train()
    y = (torch.rand(2, 1, 64, 64) > 0.6).float()
    method = create("bce", num_samples=4)
    index = torch.tensor([0, 1])
    losses, _ = model.network.criterion().step(model, torch.rand(2, 3, 64, 64), y, y, method, None, index)
    assert list(losses) == ["main", "prior"]
    for name, loss in losses.items():
        loss.backward(retain_graph=True)
        reached = {key for key, p in model.network.named_parameters() if p.grad is not None}
        # the last bias of E cancels out, but its gradient of zero counts as one
        belongs = {key for key, _ in model.network.named_parameters() if key.startswith("prior.") == (name == "prior")}
        assert reached == belongs
        model.zero_grad(set_to_none=True)
