"""The paper's U-Net: parameter counts of the spec, and the forward pass against an independent float64 one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from densecal.models import build
from densecal.models.encoders import FeaturePyramid
from densecal.models.paper_unet import Fusion, Lateral, PaperUNet, ResidualConvUnit


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)


def paper_unet(encoder: str, channels: int = 256) -> PaperUNet:
    with torch.device("meta"):
        network = build("paper-unet", encoder, channels=channels).network
    assert isinstance(network, PaperUNet)
    return network


def rectify(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def conv3(x: Tensor, conv: nn.Conv2d) -> Tensor:
    return conv2d(x, conv.weight, conv.bias, padding=1)


def rcu_by_hand(x: Tensor, unit: ResidualConvUnit) -> Tensor:
    return conv3(rectify(conv3(rectify(x), unit.conv1)), unit.conv2) + rectify(x)


def lateral_by_hand(x: Tensor, lateral: Lateral) -> Tensor:
    """One 37x37 kernel that holds the four dilated 3x3 kernels."""
    first = lateral.convs[0].weight
    kernel = torch.zeros(*first.shape[:2], 37, 37, dtype=first.dtype)
    bias = torch.zeros(first.shape[0], dtype=first.dtype)
    for conv, dilation in zip(lateral.convs, (3, 6, 12, 18), strict=True):
        steps = torch.arange(-1, 2) * dilation + 18
        kernel[:, :, steps[:, None], steps] += conv.weight
        bias += conv.bias
    return conv2d(x, kernel, bias, padding=18)


def interpolation(n: int, align_corners: bool) -> Tensor:
    """Return the matrix that doubles n samples linearly."""
    out = np.arange(2 * n)
    source = out * (n - 1) / (2 * n - 1) if align_corners else (out + 0.5) / 2 - 0.5
    source = source.clip(0, n - 1)
    low = np.minimum(np.floor(source).astype(int), max(n - 2, 0))
    matrix = np.zeros((2 * n, n))
    matrix[out, low] += 1 - (source - low)
    matrix[out, np.minimum(low + 1, n - 1)] += source - low
    return torch.from_numpy(matrix)


def double(x: Tensor, align_corners: bool) -> Tensor:
    height, width = (interpolation(n, align_corners) for n in x.shape[-2:])
    return height @ x @ width.T


def test_parameter_counts_are_those_of_the_spec() -> None:
    network = paper_unet("resnet50")
    assert count(network) == 67_494_657
    assert count(network.encoder) == 23_508_032
    assert [count(lateral) for lateral in network.laterals] == [2_360_320, 4_719_616, 9_438_208, 18_875_392]
    assert [count(fusion) for fusion in network.fusions] == [2_360_320] * 3
    # The deepest fusion has no skip, so its RCU1 (1,180,160 unused parameters in the authors' class) is left out.
    assert count(Fusion(256)) - count(network.deepest) == 1_180_160
    assert count(network.head1, network.head2, network.head3) == 331_969
    # With the parts that the authors' class never uses, this is its total.
    assert count(network) + 1_180_160 + 7_098_368 + 14_964_736 == 90_737_921


def test_fewer_channels_make_only_the_decoder_smaller() -> None:
    network = paper_unet("resnet50", channels=64)
    assert count(network.encoder) == 23_508_032
    assert count(network.laterals[3]) == 4 * (2048 * 64 * 9 + 64)
    assert count(network) < 36_000_000


@pytest.mark.parametrize(
    ("encoder", "channels"),
    [
        ("resnet50", [256, 512, 1024, 2048]),
        ("vgg16", [256, 512, 512, 512]),
        ("swin_tiny_patch4_window7_224", [96, 192, 384, 768]),
        ("swin_base_patch4_window12_384", [128, 256, 512, 1024]),
    ],
)
def test_features_have_strides_4_to_32_channels_first(encoder: str, channels: list[int]) -> None:
    with torch.device("meta"):
        pyramid = FeaturePyramid(encoder)
        features = pyramid(torch.rand(1, 3, 64, 96))
    assert pyramid.channels == channels
    expected = [(1, c, 64 // s, 96 // s) for c, s in zip(channels, (4, 8, 16, 32), strict=True)]
    assert [tuple(feature.shape) for feature in features] == expected


def test_resnet_features_equal_those_of_the_classifier() -> None:
    import timm

    pyramid = FeaturePyramid("resnet18").eval()
    classifier = timm.create_model("resnet18").eval()
    classifier.load_state_dict(pyramid.model.state_dict(), strict=False)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        c5 = pyramid(x)[-1]
        torch.testing.assert_close(c5, classifier.forward_features(x))


def test_laterals_start_small_and_with_default_biases() -> None:
    torch.manual_seed(0)
    for conv in Lateral(64, 64).convs:
        weight, bias = conv.weight.detach(), conv.bias.detach()
        assert float(weight.std()) == pytest.approx(0.01, rel=0.03)
        assert abs(float(weight.mean())) < 2e-4
        assert 0 < float(bias.abs().max()) <= 1 / (64 * 9) ** 0.5


def test_a_residual_unit_without_convolutions_rectifies() -> None:
    unit = ResidualConvUnit(2)
    for parameter in unit.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(unit(x), rectify(x))
    assert (x < 0).any(), "the input must not be changed in place"


def test_forward_equals_an_independent_float64_implementation() -> None:
    torch.manual_seed(1)
    network = PaperUNet("resnet18", classes=2, channels=8).double().eval()
    for parameter in network.laterals.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        laterals = [lateral_by_hand(f, m) for f, m in zip(network.encoder(x), network.laterals, strict=True)]
        p = double(rcu_by_hand(laterals[3], network.deepest), align_corners=True)
        for level, fusion in zip((2, 1, 0), network.fusions, strict=True):
            u = p + rcu_by_hand(laterals[level], fusion.rcu1)
            p = double(rcu_by_hand(u, fusion.rcu2), align_corners=True)
        p = double(conv3(p, network.head1), align_corners=False)
        p = rectify(conv3(p, network.head2))
        expected = conv2d(p, network.head3.weight, network.head3.bias)
        logits = network(x)
    assert logits.shape == (1, 2, 64, 96)
    assert float(expected.std()) > 1e-3
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
