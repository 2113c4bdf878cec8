"""EDN: parameter counts of the spec, and the forward pass against one written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate

from densecal.models import build
from densecal.models.edn import EDN, LEVELS, ReceptiveConv


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def on_meta(encoder: str) -> EDN:
    with torch.device("meta"):
        network = build("edn", encoder).network
    assert isinstance(network, EDN)
    return network


def test_resnet50_has_the_published_parameter_counts() -> None:
    network = on_meta("resnet50")
    assert count(network) == 42_845_381
    assert count(network.extreme1) == 4_595_712
    assert count(network.extreme2) == 3_284_992
    assert [count(fusion) for fusion in network.fusions] == [
        27_264, 107_776, 1_060_864, 4_235_264, 4_235_264, 266_240, 266_240,
    ]  # fmt: skip
    frozen = {name for name, _ in network.encoder.named_buffers() if name.endswith((".weight", ".bias"))}
    assert sum(network.encoder.get_buffer(name).numel() for name in frozen) == 53_120


def test_the_maps_have_the_published_sizes() -> None:
    network = on_meta("resnet50")
    sizes: list[tuple[int, ...]] = []
    for fusion in network.fusions:
        fusion.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(output.shape[1:])))
    heads = network(torch.rand(1, 3, 384, 384, device="meta"), heads=True)
    assert sizes == [(d.channels, s, s) for d, s in zip(LEVELS[::-1], (3, 6, 12, 24, 48, 96, 192), strict=True)]
    assert [tuple(head.shape) for head in heads] == [(1, 1, 384, 384)] * 5


@pytest.mark.parametrize(
    ("encoder", "heads"),
    [("tf_efficientnet_lite2", 5), ("vgg16", 5), ("swin_tiny_patch4_window7_224", 4)],
)
def test_it_builds_on_other_encoders_and_takes_sizes_that_are_not_multiples(encoder: str, heads: int) -> None:
    with torch.device("meta"):
        model = build("edn", encoder)
        assert [tuple(head.shape) for head in model(torch.rand(2, 3, 75, 100), heads=True)] == [(2, 1, 75, 100)] * heads


def test_the_encoders_batch_norms_are_frozen() -> None:
    model = build("edn", "resnet10t").train()
    before = {name: buffer.clone() for name, buffer in model.network.encoder.named_buffers()}
    x = torch.rand(2, 3, 64, 64)
    in_training = model.network.encoder(x)
    torch.testing.assert_close(in_training, model.eval().network.encoder(x))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.network.encoder.named_buffers())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.network.encoder.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.network.extreme1.modules())


def test_a_frozen_encoder_has_the_features_it_was_trained_with() -> None:
    """EfficientNet's norms have an eps of 1e-3 and an activation of their own."""
    import timm

    torch.manual_seed(0)
    source = timm.create_model("tf_efficientnet_lite0", features_only=True).double().eval()
    network = build("edn", "tf_efficientnet_lite0").network.double().train()
    for module in source.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(1e-3, 2)
    network.encoder.model.load_state_dict(source.state_dict(), strict=False)
    x = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network.encoder(x), source(x))


def bn(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Batch normalisation with running statistics, by its formula."""
    shape = (1, -1, 1, 1)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return (x - norm.running_mean.view(shape)) * scale.view(shape) + norm.bias.view(shape)


def cbr(x: Tensor, block: nn.Sequential, dilation: int = 1) -> Tensor:
    conv, norm = block[0], block[1]
    padding = dilation * (conv.weight.shape[-1] // 2)
    return bn(conv2d(x, conv.weight, conv.bias, padding=padding, dilation=dilation), norm).clamp(min=0)


def receptive_by_hand(x: Tensor, block: ReceptiveConv, dilations: tuple[int, ...]) -> Tensor:
    x1, x2, x3, x4 = cbr(x, block.split).chunk(4, dim=1)
    s1 = cbr(x1, block.branches[0], dilations[0])
    s2 = cbr(s1 + x2, block.branches[1], dilations[1])
    s3 = cbr(s2 + x3, block.branches[2], dilations[2])
    s4 = cbr(s3 + x4, block.branches[3], dilations[3])
    joined = conv2d(torch.cat((s1, s2, s3, s4), 1), block.join[0].weight)
    return (bn(joined, block.join[1]) + x).clamp(min=0)


def test_forward_equals_one_written_out_in_float64() -> None:
    torch.manual_seed(0)
    network = EDN("resnet10t").double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    x = torch.randn(1, 3, 96, 64, dtype=torch.float64)

    def up(x: Tensor, size: torch.Size) -> Tensor:
        return interpolate(x, size=tuple(size[-2:]), mode="bilinear", align_corners=False)

    with torch.no_grad():
        c = network.encoder(x)
        e6 = network.extreme1(c[4])
        e7 = network.extreme2(e6)
        att = 1 / (1 + torch.exp(-e7.mean(dim=(2, 3), keepdim=True)))
        inputs = [*c, e6 * att, e7 * att]
        d = cbr(inputs[6], network.laterals[6])
        maps: dict[int, Tensor] = {}
        for i in range(7, 0, -1):
            if i < 7:
                top = up(cbr(d, network.tops[i - 1]), inputs[i - 1].shape)
                d = torch.cat((top, cbr(inputs[i - 1], network.laterals[i - 1])), dim=1)
            for block in network.fusions[i - 1]:
                d = receptive_by_hand(d, block, LEVELS[i - 1].dilations)
            maps[i] = d
        heads = [network.head, *network.side_heads]
        expected = [up(conv2d(maps[i + 1], h.weight, h.bias), x.shape) for i, h in enumerate(heads)]
        outputs = network(x, heads=True)
        test = network(x)
    assert len(outputs) == 5
    for own, by_hand in zip(outputs, expected, strict=True):
        assert float(by_hand.std()) > 1e-4
        torch.testing.assert_close(own, by_hand, rtol=1e-9, atol=1e-9)
    assert torch.equal(test, outputs[0])


@pytest.mark.parametrize(
    ("options", "message"), [({"classes": 3}, "classes is 3; expected 1"), ({"region_weight": -1.0}, "region_weight")]
)
def test_unsupported_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("edn", "resnet10t", **options)  # type: ignore[arg-type]
