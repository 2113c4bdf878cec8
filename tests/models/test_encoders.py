"""The layers after one of an encoder's maps, entered in the middle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from densecal.models.encoders import EncoderTail, FeaturePyramid, feature_strides


@pytest.mark.parametrize(
    "encoder",
    ["resnet10t", "vgg11", "swin_tiny_patch4_window7_224", "tf_efficientnet_lite0", "mobilenetv3_small_050"],
)
def test_the_tail_of_an_encoder_makes_its_deeper_maps(encoder: str) -> None:
    torch.manual_seed(0)
    pyramid = FeaturePyramid(encoder).eval()
    tail = EncoderTail(pyramid, level=1).eval()
    with torch.no_grad():
        _, c3, *deeper = pyramid(torch.rand(1, 3, 64, 96))
        maps = tail(c3)
    assert len(maps) == 2
    for own, expected in zip(maps, deeper, strict=True):
        torch.testing.assert_close(own, expected)


def test_the_tail_is_a_copy_to_which_weights_can_be_copied() -> None:
    pyramid = FeaturePyramid("resnet10t").eval()
    tail = EncoderTail(pyramid, level=1).eval()
    with torch.no_grad():
        for parameter in pyramid.parameters():
            nn.init.normal_(parameter, std=0.1)
        _, c3, c4, c5 = pyramid(torch.rand(1, 3, 64, 64))
        assert not torch.allclose(tail(c3)[1], c5)
        tail.copy_weights(pyramid)
        torch.testing.assert_close(tail(c3), [c4, c5])


def test_resnet50s_tail_has_the_parameters_of_its_last_two_stages() -> None:
    with torch.device("meta"):
        tail = EncoderTail(FeaturePyramid("resnet50"), level=1)
    assert sum(p.numel() for p in tail.parameters()) == 7_098_368 + 14_964_736


def test_an_encoder_that_is_not_a_chain_is_refused() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="cannot be entered in the middle"):
        EncoderTail(FeaturePyramid("hrnet_w18_small"), level=1)


def test_strides_are_listed() -> None:
    assert feature_strides("resnet50") == [2, 4, 8, 16, 32]
    assert feature_strides("swin_tiny_patch4_window7_224") == [4, 8, 16, 32]
