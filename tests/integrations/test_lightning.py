"""The callback does in a trainer what a plain loop does, keeps its state in checkpoints, and is clear when misused."""

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import pytorch_lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from densecal.errors import InputError
from densecal.integrations.lightning import CalibrationCallback
from densecal.methods import create
from densecal.metrics import CalibrationMeter

SAMPLES = 10
METHODS: dict[str, dict[str, Any]] = {
    "aslp-mc": {"lam": 50.0, "warmup": 1, "eta": 0.01},
    "adafocal": {"bins": 4},
    "bce": {"num_classes": 3},
}


def data(count: int = SAMPLES, classes: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    noisy = images.mean(1) + 0.3 * torch.randn(count, 8, 8, generator=generator)
    masks = (noisy > 0).float()[:, None] if classes == 1 else (noisy > 0).long() + (noisy > 0.5).long()
    if classes > 1:
        masks[:, 0] = 255
    return TensorDataset(images, masks, torch.arange(count))


class Steps:
    """What a user writes, for the module class of either package."""

    def __init__(self, name: str = "aslp-mc") -> None:
        super().__init__()
        torch.manual_seed(0)
        options = METHODS[name]
        self.network = nn.Conv2d(3, options.get("num_classes", 1), 3, padding=1)
        with torch.no_grad():
            self.network.weight[:, :, 1, 1] += 1  # not bad from the start, so that probabilities climb
        self.method = create(name, num_samples=SAMPLES, **options)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        images, masks, index = batch
        images, targets = self.method.prepare(images, masks, index)
        logits = self.network(images)
        return {"loss": self.method.loss(logits, targets), "logits": logits, "masks": masks, "index": index}

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        return {"logits": self.network(batch[0]), "masks": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=0.02)


class Segmenter(Steps, lightning.LightningModule):
    pass


class OlderSegmenter(Steps, pytorch_lightning.LightningModule):
    pass


def trainer(package: Any = lightning, epochs: int = 3, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet |= {"enable_checkpointing": False, "callbacks": [CalibrationCallback()]} | options
    return package.Trainer(max_epochs=epochs, **quiet)


def fit(trainer: Any, module: Any, **options: Any) -> Any:
    classes = module.method.num_classes
    with warnings.catch_warnings(action="ignore"):
        trainer.fit(module, DataLoader(data(SAMPLES, classes), 4), DataLoader(data(6, classes), 3), **options)
    return module


def in_order(epoch: int) -> list[list[int]]:
    return [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def plain_loop(module: Segmenter, epochs: int, batches: Callable[[int], list[list[int]]] = in_order) -> list[float]:
    """The same training by hand, as the methods' documentation has it."""
    classes, optimizer, eces = module.method.num_classes, module.configure_optimizers(), []
    for epoch in range(epochs):
        module.method.start_epoch(epoch)
        for samples in batches(epoch):
            batch = data(SAMPLES, classes)[samples]
            made = module.training_step(batch, 0)
            optimizer.zero_grad()
            made["loss"].backward()
            optimizer.step()
            module.method.after_step(made["logits"].detach(), batch[1], batch[2])
        meter = CalibrationMeter(num_classes=classes)
        with torch.no_grad():
            meter.update(logits=module.network(data(6, classes).tensors[0]), masks=data(6, classes).tensors[1])
        module.method.after_epoch(meter.compute())
        eces.append(meter.compute().ece_ew)
    return eces


def same_state(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(value.nan_to_num(-1), states[1][name].nan_to_num(-1)) for name, value in states[0].items()
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_callback_does_what_a_plain_loop_does(name: str):
    by_hand = Segmenter(name)
    eces = plain_loop(by_hand, epochs=3)
    assert not same_state(by_hand.method, Segmenter(name).method) or name == "bce"
    run = trainer()
    assert same_state(fit(run, Segmenter(name)), by_hand)
    assert float(run.callback_metrics["val_ece_ew"]) == pytest.approx(eces[-1], abs=1e-6)
    for statistic, value in by_hand.method.statistics().items():
        assert float(run.callback_metrics[f"method_{statistic}"]) == pytest.approx(value, abs=1e-6)


def test_it_works_in_the_other_package_too():
    run = trainer(pytorch_lightning)
    assert same_state(fit(run, OlderSegmenter()), fit(trainer(), Segmenter()))
    assert 0 < float(run.callback_metrics["val_ece_ew"]) < 1


def test_a_resumed_fit_ends_the_same(tmp_path: Path):
    whole = fit(trainer(epochs=4), Segmenter())
    first = trainer(epochs=2)
    fit(first, Segmenter())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = fit(trainer(epochs=4), Segmenter(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert whole.method.alpha.max() > 0
    assert same_state(resumed, whole)


@pytest.mark.parametrize("on_train_epoch_end", [True, False])
def test_checkpoints_hold_the_method_after_it_has_learned_from_the_validation(tmp_path: Path, on_train_epoch_end: bool):
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, monitor="val_brier", save_top_k=-1, save_on_train_epoch_end=on_train_epoch_end
    )
    run = trainer(epochs=1, callbacks=[saving, CalibrationCallback()], enable_checkpointing=True)
    module = fit(run, Segmenter())
    (saved,) = tmp_path.glob("*.ckpt")
    state = torch.load(saved, weights_only=True)["state_dict"]
    assert 0 < state["method.last_accuracy"] == module.method.last_accuracy


def test_measuring_alone_teaches_nothing():
    module = fit(trainer(), Segmenter())
    before = Segmenter()
    before.load_state_dict(module.state_dict())
    with warnings.catch_warnings(action="ignore"):
        (figures,) = trainer().validate(module, DataLoader(data(8), 4), verbose=False)
    meter = CalibrationMeter()
    with torch.no_grad():
        meter.update(logits=module.network(data(8).tensors[0]), masks=data(8).tensors[1])
    assert figures["val_ece_ew"] == pytest.approx(meter.compute().ece_ew, abs=1e-6)
    assert same_state(module, before)


def test_a_module_without_a_method_is_told_so():
    module = Segmenter()
    module.method = nn.Identity()
    module.method.num_classes = 1
    with pytest.raises(InputError, match=r"Segmenter: 0 densecal methods.*self\.method = "):
        fit(trainer(), module)


def test_steps_that_return_too_little_are_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Segmenter, "validation_step", lambda self, batch, batch_idx: self.network(batch[0]).mean())
    with pytest.raises(InputError, match="validation_step: it returned Tensor; expected a dictionary with logits"):
        fit(trainer(), Segmenter())


# ------------------------------------------------------------------ packages


def imported_without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> Any:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "densecal.integrations.lightning")
    return importlib.import_module("densecal.integrations.lightning")


def test_either_package_will_do(monkeypatch: pytest.MonkeyPatch):
    module = imported_without(monkeypatch, "lightning", "lightning.pytorch")
    assert issubclass(module.CalibrationCallback, pytorch_lightning.Callback)


def test_without_both_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ImportError, match="needs lightning or pytorch_lightning: pip install lightning"):
        imported_without(monkeypatch, "lightning", "lightning.pytorch", "pytorch_lightning")


# ------------------------------------------------------------------ processes


class Save(lightning.Callback):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        torch.save((pl_module.state_dict(), figures), f"{self.folder}/{trainer.global_rank}.pt")


def shared_by_two(epoch: int) -> list[list[int]]:
    """The batches of two processes joined; Lightning shuffles by this sampler."""
    samplers = [DistributedSampler(data(), 2, rank, seed=0) for rank in (0, 1)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    first, second = map(list, samplers)
    return [first[:4] + second[:4], first[4:] + second[4:]]


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_from_batches_twice_as_large(tmp_path: Path):
    fit(trainer(devices=2, strategy="ddp_spawn", callbacks=[CalibrationCallback(), Save(str(tmp_path))]), Segmenter())
    (first, figures), (second, others) = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert figures == others
    module, by_hand = Segmenter(), Segmenter()
    eces = plain_loop(by_hand, epochs=3, batches=shared_by_two)
    assert (by_hand.method.alpha > 0).sum() > SAMPLES / 2
    for state in (first, second):
        module.load_state_dict(state)
        torch.testing.assert_close(module.method.alpha, by_hand.method.alpha, rtol=1e-4, atol=1e-6)
    assert figures["val_ece_ew"] == pytest.approx(eces[-1], abs=1e-4)
