"""build(): every architecture on every kind of encoder maps raw images of any size to logits of that size."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from densecal.models import SegmentationModel, architectures, build
from densecal.models import registry as registry_module
from tests import forked

SWIN = "swin_tiny_patch4_window7_224"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def pad_edges(x: Tensor, height: int, width: int) -> Tensor:
    below, right = height - x.shape[2], width - x.shape[3]
    return torch.from_numpy(np.pad(x.numpy(), ((0, 0), (0, 0), (0, below), (0, right)), mode="edge"))


def test_architectures_are_listed_by_name() -> None:
    assert {"unet", "fpn", "deeplabv3plus", "paper-unet"} <= set(architectures())


@pytest.mark.parametrize(
    ("arch", "encoder", "options"),
    [
        ("unet", "resnet18", {}),
        ("fpn", "resnet18", {}),
        ("deeplabv3plus", "resnet18", {}),
        ("paper-unet", "resnet18", {"channels": 16}),
        ("unet", "tf_efficientnet_lite0", {}),
        ("fpn", "tf_efficientnet_lite0", {}),
        ("deeplabv3plus", "tf_efficientnet_lite0", {}),
        ("paper-unet", "tf_efficientnet_lite0", {"channels": 16}),
        ("unet", "vgg11", {}),
        ("paper-unet", "vgg11", {"channels": 16}),
    ],
)
def test_logits_have_the_images_size_and_every_parameter_learns(
    arch: str, encoder: str, options: dict[str, int]
) -> None:
    model = build(arch, encoder, classes=3, **options)
    logits = model(images(2, 3, 45, 70))
    assert logits.shape == (2, 3, 45, 70)
    logits.square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert (model.arch, model.encoder, model.classes) == (arch, encoder, 3)


@pytest.mark.parametrize(("arch", "options"), [("unet", {}), ("fpn", {}), ("paper-unet", {"channels": 16})])
def test_swin_takes_sizes_other_than_its_own(arch: str, options: dict[str, int]) -> None:
    model = build(arch, SWIN, **options).eval()
    with torch.no_grad():
        for height, width in ((96, 96), (224, 224), (75, 100)):
            logits = model(images(1, 3, height, width))
            assert logits.shape == (1, 1, height, width)
            assert logits.isfinite().all()


def test_swin_takes_the_papers_sizes() -> None:
    model = build("paper-unet", SWIN, channels=8).eval()
    with torch.no_grad():
        assert model(images(1, 3, 352, 384)).shape == (1, 1, 352, 384)


def test_vgg16_is_an_encoder() -> None:
    with torch.device("meta"):
        model = build("unet", "vgg16")
        assert model(torch.rand(1, 3, 64, 64)).shape == (1, 1, 64, 64)


@pytest.mark.parametrize(
    ("encoder", "mean", "std"),
    [("resnet18", IMAGENET_MEAN, IMAGENET_STD), ("tf_efficientnet_lite0", (0.5,) * 3, (0.5,) * 3)],
)
def test_normalisation_inside_equals_normalisation_by_hand(
    encoder: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    model = build("unet", encoder).eval()
    x = images(1, 3, 64, 96)
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.network(by_hand))


def test_a_tag_of_the_encoder_brings_its_own_statistics() -> None:
    assert build("fpn", "tf_efficientnet_b0.ap_in1k").mean.flatten().tolist() == [0.5, 0.5, 0.5]
    assert build("fpn", "tf_efficientnet_b0.aa_in1k").mean.flatten().tolist() == pytest.approx(IMAGENET_MEAN)


def test_odd_sizes_are_padded_by_their_edges_and_cropped_back() -> None:
    model = build("fpn", "resnet18").eval()
    x = images(1, 3, 40, 70)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(pad_edges(x, 64, 96))[:, :, :40, :70])


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 100), width=st.integers(1, 100))
def test_any_size_reaches_the_network_as_a_multiple_of_32(height: int, width: int) -> None:
    class Pointwise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[2] % 32 == 0
            assert x.shape[3] % 32 == 0
            return x.sum(1, keepdim=True)

    model = SegmentationModel(Pointwise(), "unet", "resnet18", 1)
    x = images(2, 3, height, width)
    expected = ((x - model.mean) / model.std).sum(1, keepdim=True)
    torch.testing.assert_close(model(x), expected)


def test_there_is_no_padding_operation_when_sizes_fit() -> None:
    model = SegmentationModel(nn.Conv2d(3, 1, 1), "unet", "resnet18", 1)

    def operations(height: int) -> str:
        return torch.export.export(model, (images(1, 3, height, 64),)).graph_module.code

    assert "pad" not in operations(64)
    assert "slice" not in operations(64)
    assert "pad" in operations(65)


def test_a_state_dict_carries_the_normalisation() -> None:
    model = SegmentationModel(nn.Conv2d(3, 1, 1), "unet", "resnet18", 1)
    model.mean.fill_(0.25)
    other = SegmentationModel(nn.Conv2d(3, 1, 1), "unet", "tf_efficientnet_lite0", 1)
    other.load_state_dict(model.state_dict())
    x = images(1, 3, 8, 8)
    torch.testing.assert_close(other(x), model(x))


def test_the_whole_model_compiles_into_one_graph() -> None:
    model = build("paper-unet", "resnet18", channels=8).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    x = images(1, 3, 40, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_decoder_options_reach_smp() -> None:
    model = build("unet", "resnet18", decoder_channels=(64, 32, 16, 8, 4))
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in build("unet", "resnet18").parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "unett"}, r"architecture: 'unett'; expected one of .*unet \(did you mean .*unet"),
        ({"arch": "zzz"}, "expected one of deeplabv3plus, .*fpn, .*paper-unet, .*unet"),
        ({"encoder": "resnet5"}, "unknown encoder 'resnet5'; did you mean .*resnet50"),
        ({"encoder": "resnet50.tv_in1"}, "unknown weights tag 'tv_in1' .*did you mean tv_in1k"),
        ({"encoder": "hf-hub:timm/resnet18"}, "unknown encoder"),
        ({"encoder": "vit_tiny_patch16_224"}, "unet cannot be built on the encoder 'vit_tiny_patch16_224'"),
        ({"arch": "paper-unet", "encoder": "vit_tiny_patch16_224"}, r"strides \[16, 16, 16\]"),
        ({"arch": "deeplabv3plus", "encoder": SWIN}, "timm cannot dilate it to stride 16"),
        ({"arch": "deeplabv3plus", "encoder": "vgg11"}, "timm cannot dilate it to stride 16"),
        ({"encoder": "resnet18", "activation": "sigmoid"}, "unknown option 'activation'; expected .*decoder_"),
        ({"arch": "paper-unet", "encoder": "resnet18", "chanels": 64}, "chanels"),
        ({"arch": "paper-unet", "encoder": "resnet18", "channels": 1}, "channels is 1"),
        ({"encoder": "resnet18", "classes": 0}, "classes is 0; expected at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["timm", "segmentation_models_pytorch"])
def test_a_missing_extra_says_how_to_install_it(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*pip install 'densecal\[train\]'"):
        build("unet", "resnet18")


def test_importing_the_package_needs_no_extra() -> None:
    done = forked.run_without(
        ["timm", "segmentation_models_pytorch", "safetensors"],
        "import densecal.models; print(densecal.models.architectures())",
    )
    assert done.returncode == 0, done.stderr
    assert "paper-unet" in done.stdout


def test_one_decorator_adds_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module.ARCHITECTURES, "_items", dict(registry_module.ARCHITECTURES._items))

    @registry_module.architecture("pointwise")
    def pointwise(encoder: str, classes: int) -> nn.Module:
        return nn.Conv2d(3, classes, 1)

    assert build("pointwise", "resnet18", classes=5)(images(1, 3, 9, 9)).shape == (1, 5, 9, 9)
    with pytest.raises(ValueError, match="already registered"):
        registry_module.architecture("pointwise")(pointwise)
