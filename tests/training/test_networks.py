"""The published networks and encoders in the loop: they train by recipe, resume to the same bits, predict, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from densecal.errors import InputError
from densecal.methods import Method
from densecal.prediction.predictor import load_predictor
from densecal.training import loop
from densecal.training import run as run_module
from densecal.training.config import Config, load_config
from densecal.training.loop import train
from densecal.training.schedule import learning_rate
from tests.training.common import command, end_state, log_lines, run_afresh

NETWORKS = ("edn", "icon", "ebmgsod")
ENCODERS = ("resnet50", "vgg16", "swin_tiny_patch4_window7_224")


def small(recipe: str, *overrides: str) -> Config:
    """Load a recipe for two generated scenes. Its augmentation, method and optimizers stay its own."""
    settings = [
        "data.images=null", "data.scenes.train=2", "data.scenes.validation=2", "data.size=64", "optim.batch=2",
        "model.encoder=test_resnet", "model.weights=null", "optim.epochs=2", "method.warmup=0", "method.eta=0.02",
        "method.lam=50",
    ]  # fmt: skip
    own = {
        "edn": ["data.sizes=[64, 96]", "optim.accumulate=1"],
        "icon": ["data.sizes=[64, 96]"],
        "ebmgsod": ["model.options={samples: 2}"],
    }
    return load_config(recipe, [*settings, *own.get(recipe, []), *overrides])


def train_interrupted(config: Config, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until the second epoch begins, as if killed there, and resume."""
    train_epoch = loop.train_epoch

    def one_epoch(run: loop.Run, epoch: int, progress: Any = None) -> float:
        if epoch == 1:
            raise KeyboardInterrupt
        return train_epoch(run, epoch, progress)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_epoch", one_epoch)
        with pytest.raises(KeyboardInterrupt):
            train(config, out)
    train(config, out, resume=True)


def optimizer_state(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(out / "checkpoints" / "last" / "optimizer.pt", weights_only=True)
    return state


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def assert_predicts_and_exports(out: Path) -> None:
    predictor = load_predictor(out)
    picture = np.random.default_rng(0).integers(0, 255, (70, 50, 3), dtype=np.uint8)
    first, again = predictor.probabilities([picture])[0], predictor.probabilities([picture])[0]
    assert first.shape == (70, 50)
    assert ((first >= 0) & (first <= 1)).all()
    assert torch.equal(first, again)
    images = torch.rand(1, 3, 64, 64)
    exported = torch.export.export(predictor.model, (images,)).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(images), predictor.model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [pytest.param("edn", marks=pytest.mark.slow), "icon", "ebmgsod"])
def test_a_recipe_trains_resumes_predicts_and_exports(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(name)
    train(config, tmp_path / "whole")
    train_interrupted(config, tmp_path / "parts", monkeypatch)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")
    assert_same(optimizer_state(tmp_path / "parts"), optimizer_state(tmp_path / "whole"))
    assert_predicts_and_exports(tmp_path / "whole")


def test_the_optimizer_of_the_prior_is_saved_and_moves_the_prior_alone(tmp_path: Path) -> None:
    config = small("ebmgsod", "optim.epochs=1")
    train(config, tmp_path / "run")
    state = optimizer_state(tmp_path / "run")
    assert list(state) == ["main", "prior"]
    (prior,) = state["prior"]["param_groups"]
    assert len(prior["params"]) == 6
    assert prior["lr"] == pytest.approx(1e-5)
    assert state["main"]["param_groups"][0]["lr"] == pytest.approx(2.5e-5)
    assert any(float(moments["exp_avg"].abs().max()) > 0 for moments in state["prior"]["state"].values())


def test_the_stem_of_icon_keeps_its_weights_while_its_statistics_move(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from densecal.models import build

    config = small("icon", "optim.epochs=1", "model.encoder=resnet18")
    train(config, tmp_path / "run")
    torch.manual_seed(config.engine.seed)
    before = build("icon", "resnet18").state_dict()
    after = load_file(tmp_path / "run" / "checkpoints" / "last" / "model.safetensors")
    stem = "network.encoder.model."
    assert torch.equal(after[f"{stem}conv1.weight"], before[f"{stem}conv1.weight"])
    assert not torch.equal(after[f"{stem}bn1.running_mean"], before[f"{stem}bn1.running_mean"])
    assert not torch.equal(after[f"{stem}layer1.0.conv1.weight"], before[f"{stem}layer1.0.conv1.weight"])


@pytest.mark.parametrize("name", NETWORKS)
def test_one_draw_serves_all_heads_and_alpha_learns_from_the_test_head(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[Any]] = {"prepare": [], "loss": [], "after": []}

    class Spy(Method):
        def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            targets = (masks + 0.25 * self.uniform(index, 10).view(-1, 1, 1, 1)).clamp(max=1)
            seen["prepare"].append(targets)
            return images, targets

        def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
            seen["loss"].append((logits.detach(), targets))
            return super().loss(logits, targets, weight)

        def after_step(self, logits: Tensor, masks: Tensor, index: Tensor) -> None:
            seen["after"].append(logits)

    monkeypatch.setattr(run_module, "create", lambda name, **options: Spy(num_samples=2))
    train(small(name, "optim.epochs=1"), tmp_path / "run")
    (targets,) = seen["prepare"]
    heads = {"edn": 5, "icon": 5, "ebmgsod": 2}[name]
    assert len(seen["loss"]) == heads
    assert all(given is targets for _, given in seen["loss"])
    test_head = 1 if name == "ebmgsod" else 0  # its refined map
    (logits,) = seen["after"]
    assert torch.equal(logits, seen["loss"][test_head][0])
    assert not torch.equal(logits, seen["loss"][1 - test_head][0])


def test_mixup_is_refused_for_networks_with_region_losses(tmp_path: Path) -> None:
    config = load_config("edn", ["data.images=null", "data.scenes.train=4", "model.weights=null",
                                 "model.encoder=resnet10t", "data.size=64", "method.name=mixup"])  # fmt: skip
    with pytest.raises(InputError, match=r"method\.name: mixup for edn"):
        train(config, tmp_path / "run")


def test_recipes_have_the_published_settings() -> None:
    edn, icon, ebmgsod = (load_config(name) for name in NETWORKS)
    for name, config in zip(NETWORKS, (edn, icon, ebmgsod), strict=True):
        assert (config.model.arch, config.model.encoder) == (name, "resnet50.tv_in1k")
        assert config.data.augment == name
        assert config.method.name == "aslp-mc"
        assert config.method.options["warmup"] * 6 == config.optim.epochs
    assert (edn.data.size, edn.data.sizes) == (384, [320, 352, 384])
    assert edn.optim.batch * edn.optim.accumulate == 24
    assert edn.optim.epochs == 30 * len(edn.data.sizes or ())
    assert edn.optim.betas == (0.9, 0.99)
    assert (edn.optim.lr, edn.optim.weight_decay, edn.optim.warmup_steps) == (5e-5, 1e-4, 200)
    assert learning_rate(edn.optim, 45, 800) == pytest.approx(5e-5 * 0.5**0.9)
    assert (icon.data.size, icon.data.sizes) == (352, [224, 256, 288, 320, 352])
    assert (icon.optim.optimizer, icon.optim.batch, icon.optim.epochs) == ("sgd", 32, 60)
    assert icon.optim.lrs["encoder"] == pytest.approx(0.1 * icon.optim.lr)
    assert (icon.optim.lr, icon.optim.weight_decay, icon.optim.schedule) == (0.05, 1e-4, "triangular")
    assert (ebmgsod.data.size, ebmgsod.data.sizes, ebmgsod.optim.batch) == (352, None, 29)
    assert (ebmgsod.optim.lr, ebmgsod.optim.lrs) == (2.5e-5, {"prior": 1e-5})
    assert learning_rate(ebmgsod.optim, 29) == pytest.approx(2.5e-5 * 0.9**10)


def encoder_config(arch: str, encoder: str) -> Config:
    options = "{channels: 16}" if arch == "paper-unet" else "{decoder_channels: [32, 16, 16, 8, 8]}"
    return small("sod-paper", f"model.arch={arch}", f"model.encoder={encoder}", f"model.options={options}",
                 "method.name=aslp-mc", "method.warmup=0", "method.eta=0.02", "method.lam=50")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("arch", ["unet", "paper-unet"])
def test_an_encoder_trains_resumes_predicts_and_exports(
    arch: str, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = encoder_config(arch, encoder)
    train(config, tmp_path / "whole")
    train_interrupted(config, tmp_path / "parts", monkeypatch)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")
    assert_predicts_and_exports(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_train_one_energy_based_model(tmp_path: Path) -> None:
    done = run_afresh(command(
        "train", "ebmgsod", "data.images=null", "data.scenes.train=6", "data.scenes.validation=2", "data.size=64",
        "model.encoder=resnet10t", "model.weights=null", "optim.batch=4", "optim.epochs=2", "engine.devices=2",
        "engine.accelerator=cpu", "--out", str(tmp_path / "run"),
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [np.isfinite(line["loss"]) for line in log_lines(tmp_path / "run")] == [True, True]
