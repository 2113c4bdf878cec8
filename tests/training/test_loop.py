"""The loop: the run folder, kills that lose nothing, two processes that equal one, clear errors for bad input."""

import csv
import dataclasses
import itertools
import json
import math
import os
import random
import shutil
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from densecal.data.informationless import choose_samples
from densecal.data.scenes import generate, write
from densecal.errors import InputError, Preempted
from densecal.methods import Method
from densecal.training import loop
from densecal.training.loop import train, train_epoch, validate
from densecal.training.run import assemble, create_fabric, initial_network
from densecal.training.samples import Batch, epoch_batches, open_data
from tests.training.common import (
    command,
    end_state,
    log_lines,
    run,
    run_afresh,
    run_here,
    run_signalled,
    small_config,
    train_command,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train by the command, without interruption."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = run(train_command(out))
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_folder_has_the_files_of_the_contract(finished):
    for checkpoint in ("last", "best"):
        names = set(os.listdir(finished / "checkpoints" / checkpoint))
        assert names == {"model.safetensors", "method.safetensors", "meta.json", "optimizer.pt"}
    lines = log_lines(finished)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["validation"]["accuracy"] > 0
    assert lines[0]["method"]["alpha_mean"] == 0  # warm-up
    assert lines[-1]["method"]["alpha_mean"] > 0
    rows = list(csv.reader((finished / "alpha.csv").open()))
    assert rows[0] == ["name", "value"]
    assert [row[0] for row in rows[1:]] == [f"train-{i:05}" for i in range(18)]
    values = load_file(finished / "checkpoints" / "last" / "method.safetensors")["values"]
    assert [float(row[1]) for row in rows[1:]] == pytest.approx(values[:18].tolist(), rel=1e-6)


def test_a_finished_run_says_so(finished):
    done = run_here([*train_command(finished), "--resume"])
    assert done.returncode == 0
    assert "finished" in done.stdout


def test_a_folder_with_a_run_is_not_overwritten(finished):
    done = run_here(train_command(finished))
    assert done.returncode == 2
    assert "--resume" in done.stderr
    done = run_here([*train_command(finished, "optim.lr=0.5"), "--resume"])
    assert done.returncode == 2
    assert "optim.lr" in done.stderr


def test_a_run_killed_at_any_moment_ends_the_same(tmp_path):
    # more short epochs than three kills can reach, on a machine of any speed
    whole, killed = (train_command(tmp_path / name, "optim.epochs=12") for name in ("whole", "killed"))
    assert run(whole).returncode == 0
    out = tmp_path / "killed"
    rng = random.Random(0)
    for _ in range(3):
        # it writes a checkpoint shortly after a line of the log, and later takes the steps of the next epoch
        delay = rng.choice((rng.uniform(0, 0.05), rng.uniform(0.05, 0.2)))
        ended = run_signalled([*killed, "--resume"], out, signal.SIGKILL, 1, delay)
        assert ended.returncode == -signal.SIGKILL, "the run ended before it could be killed"
    done = run([*killed, "--resume"])
    assert done.returncode == 0, done.stderr
    assert end_state(out) == end_state(tmp_path / "whole")


def test_a_truncated_checkpoint_falls_back_to_the_previous_one(finished, tmp_path):
    out = tmp_path / "cut"
    shutil.copytree(finished, out)
    model = out / "checkpoints" / "last" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    done = run([*train_command(out), "--resume"])
    assert done.returncode == 0, done.stderr
    assert "model.safetensors: cut short or changed" in done.stderr
    assert end_state(out) == end_state(finished)


def test_bce_is_aslp_that_never_leaves_its_warmup(tmp_path):
    train(small_config("method.name=bce", "optim.epochs=1"), tmp_path / "a")
    with pytest.warns(UserWarning, match=r"method\.warmup is 1 and the number of epochs is 1: alpha never moves"):
        train(small_config("method.warmup=1", "optim.epochs=1"), tmp_path / "b")
    a, b = (load_file(tmp_path / x / "checkpoints" / "last" / "model.safetensors") for x in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("method", "epochs", "warned"),
    [
        (["method.name=als", "method.preset=stable"], 2, 1),  # the default of 5
        (["method.warmup=2"], 2, 1),
        (["method.warmup=1"], 2, 0),
        (["method.name=bce"], 1, 0),
        (["method.name=aslp-mc", "method.schedule=two-stage", "method.lam=50", "optim.second_epochs=1"], 1, 0),
    ],
)
def test_a_warmup_as_long_as_the_run_is_warned_of_once(tmp_path, method, epochs, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(small_config(*method, f"optim.epochs={epochs}", "data.scenes.train=4"), tmp_path / "run")
    messages = [str(warning.message) for warning in caught if "method.warmup" in str(warning.message)]
    assert len(messages) == warned
    assert all(f"number of epochs is {epochs}" in message for message in messages)


@pytest.mark.parametrize("name", ["aslp-mc", "als"])
def test_the_table_holds_the_values_of_adaptive_methods(tmp_path, name):
    train(small_config(f"method.name={name}", "method.lam=50", "method.warmup=0", "optim.epochs=2"), tmp_path / "run")
    values = load_file(tmp_path / "run" / "checkpoints" / "last" / "method.safetensors")["values"][:18].tolist()
    assert len(set(values)) > 1
    lines = ["name,value", *(f"train-{i:05},{value:.9g}" for i, value in enumerate(values))]
    assert (tmp_path / "run" / "alpha.csv").read_text() == "\n".join(lines) + "\n"


def test_other_methods_have_no_table(tmp_path):
    train(small_config("method.name=slp", "optim.epochs=1"), tmp_path / "run")
    assert not (tmp_path / "run" / "alpha.csv").exists()


@pytest.mark.parametrize(("briers", "best"), [([0.3, 0.1, 0.2], 2), ([0.1, 0.2, 0.3], 1), ([0.3, 0.2, 0.1], 3)])
def test_the_best_checkpoint_is_that_of_the_lowest_brier_score(tmp_path, monkeypatch, briers, best):
    validate, kept = loop.validate, []

    def validate_with_given_score(run, progress):
        kept.append({name: value.clone() for name, value in run.network.state_dict().items()})
        return dataclasses.replace(validate(run, progress), brier=briers[len(kept) - 1])

    monkeypatch.setattr(loop, "validate", validate_with_given_score)
    train(small_config(), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    for name, epoch in (("best", best), ("last", 3)):
        meta = json.loads((folder / name / "meta.json").read_text())
        assert (meta["epoch"], meta["best"]) == (epoch, min(briers[:epoch]))
        weights = load_file(folder / name / "model.safetensors")
        assert all(torch.equal(weights[key], value) for key, value in kept[epoch - 1].items())


def test_two_stages_freeze_the_accuracy(tmp_path):
    out = tmp_path / "two"
    config = small_config(
        "method.name=aslp-mc", "method.schedule=two-stage", "method.eta=0.02", "method.lam=50", "optim.epochs=2",
        "optim.second_epochs=2",
    )  # fmt: skip
    train(config, out)
    lines = log_lines(out)
    assert len(lines) == 4
    assert lines[1]["method"]["alpha_mean"] == 0
    assert lines[3]["method"]["alpha_mean"] > 0
    frozen = lines[1]["validation"]["accuracy"]
    assert lines[3]["method"]["accuracy"] == pytest.approx(frozen, rel=1e-6)


@pytest.mark.parametrize(("accumulate", "start"), [(1, 0.0), (2, 0.0), (1, 0.25)])
def test_averaged_weights_are_those_of_the_last_steps_and_of_the_start(tmp_path, monkeypatch, accumulate, start):
    after_steps, update = [], loop._update_weights

    def update_and_record(run, *when):
        update(run, *when)
        after_steps.append({name: value.clone() for name, value in run.network.state_dict().items()})

    monkeypatch.setattr(loop, "_update_weights", update_and_record)
    settings = ["optim.ema=0.4", f"optim.ema_start={start}", "optim.epochs=2", f"optim.accumulate={accumulate}"]
    train(small_config(*settings), tmp_path / "run")
    began = initial_network(small_config(*settings), torch.device("cpu")).state_dict()
    kept = load_file(tmp_path / "run" / "checkpoints" / "last" / "model.safetensors")
    rates = [max(1 - 0.4, 3 / (2 + step)) for step in range(1, len(after_steps) + 1)]
    assert rates[0] == 1  # nothing but that share is left of the weights that training began with
    assert rates[-1] == 1 - 0.4
    shares = torch.tensor([rate * math.prod(1 - later for later in rates[i + 1 :]) for i, rate in enumerate(rates)])
    for name, value in kept.items():
        if value.is_floating_point():
            values = torch.stack([weights[name].double() for weights in after_steps])
            wanted = (1 - start) * torch.tensordot(shares.double(), values, dims=1) + start * began[name].double()
            torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(value, after_steps[-1][name])


def test_averaged_weights_are_resumed_too(tmp_path):
    average = ("optim.ema=0.9", "optim.ema_start=0.1", "optim.schedule=constant")
    for name, epochs in (("whole", 3), ("parts", 2)):
        train(small_config(*average, f"optim.epochs={epochs}"), tmp_path / name)
    text = (tmp_path / "parts" / "config.yaml").read_text().replace("epochs: 2\n", "epochs: 3\n", 1)
    (tmp_path / "parts" / "config.yaml").write_text(text)
    train(small_config(*average, "optim.epochs=3"), tmp_path / "parts", resume=True)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")


def test_accumulated_gradients_equal_a_larger_batch(tmp_path):
    shared = (
        "method.name=bce", "optim.epochs=1", "data.scenes.train=16", "model.encoder=vgg11", "model.arch=paper-unet",
        "model.options={channels: 4}", "optim.schedule=constant", "optim.lr=1e-4",
    )  # fmt: skip
    train(small_config(*shared, "optim.batch=8"), tmp_path / "large")
    train(small_config(*shared, "optim.batch=4", "optim.accumulate=2"), tmp_path / "parts")
    a, b = (load_file(tmp_path / x / "checkpoints" / "last" / "model.safetensors") for x in ("large", "parts"))
    different = torch.cat([(a[name] - b[name]).abs().flatten() > 1e-6 for name in a])
    # Adam moves every weight by the learning rate, in the direction of its gradient's sign, however small that is
    assert different.float().mean() < 0.01


def test_two_processes_equal_one(tmp_path):
    train_scenes = 11  # odd batches, so that one process is padded
    shared = (
        "model.arch=paper-unet", "model.encoder=vgg11", "model.options={channels: 16}", "optim.lr=5e-4",
        f"data.scenes.train={train_scenes}", "optim.epochs=2", "engine.accelerator=cpu",
    )  # fmt: skip
    for devices in (1, 2):
        start = run if devices == 1 else run_afresh  # several processes are started from the command line
        done = start(train_command(tmp_path / str(devices), *shared, f"engine.devices={devices}"))
        assert done.returncode == 0, done.stderr
    one, two = (log_lines(tmp_path / name) for name in ("1", "2"))
    for a, b in zip(one, two, strict=True):
        for name, value in a["validation"].items():
            assert b["validation"][name] == pytest.approx(value, abs=1e-5), name
    alphas = [
        load_file(tmp_path / name / "checkpoints" / "last" / "method.safetensors")["values"] for name in ("1", "2")
    ]
    assert alphas[0][:train_scenes].max() > 0
    assert torch.allclose(*alphas, atol=1e-5)


def test_a_loss_that_is_not_finite_names_the_images_and_keeps_the_checkpoint(tmp_path):
    out = tmp_path / "nan"
    train(small_config("optim.epochs=1", "optim.schedule=constant", "method.warmup=0"), out)
    text = (
        (out / "config.yaml").read_text().replace("epochs: 1\n", "epochs: 2\n", 1).replace("lr: 0.001", "lr: 1.0e+30")
    )
    (out / "config.yaml").write_text(text)
    before = end_state(out)
    with pytest.raises(InputError, match=r"loss: (nan|inf).* on train-\d+, train-\d+"):
        train(
            small_config("optim.epochs=2", "optim.schedule=constant", "optim.lr=1e30", "method.warmup=0"),
            out,
            resume=True,
        )
    after = end_state(out)
    assert after["model.safetensors"] == before["model.safetensors"]


@pytest.fixture(scope="module")
def assembled():
    """An untrained run of 18 images in batches of 4, 4, 4, 3 and 3."""
    config = small_config("method.name=bce")
    return assemble(config, create_fabric(config), open_data(config.data))


@pytest.mark.parametrize(
    ("epoch", "step", "value"), [(0, 1, math.nan), (0, 3, math.inf), (1, 3, -math.inf), (2, 5, math.nan)]
)
def test_the_first_step_whose_loss_is_not_finite_is_named_with_its_images(assembled, monkeypatch, epoch, step, value):
    plain, steps = assembled.criterion, itertools.count(1)

    def step_with_bad_loss(*arguments):
        losses, logits = plain.step(*arguments)
        return {"main": losses["main"] + (value if next(steps) >= step else 0)}, logits

    monkeypatch.setattr(assembled, "criterion", SimpleNamespace(step=step_with_bad_loss))
    batch = epoch_batches(18, 4, epoch, 0, 0, 1)[step - 1]
    names = ", ".join(f"train-{i:05}" for i in batch.ids)
    with pytest.raises(InputError, match=f"^loss: {value} at step {step} on {names}; expected a finite loss"):
        train_epoch(assembled, epoch)


class FabricLike:
    """A Fabric of which a test sets some attributes."""

    def __init__(self, fabric, **attributes):
        self.fabric = fabric
        vars(self).update(attributes)

    def __getattr__(self, name):
        return getattr(self.fabric, name)


def test_a_device_that_runs_ahead_has_its_losses_checked_by_the_end_of_the_epoch(assembled, monkeypatch):
    class RunsAhead(str):
        type = "cuda"

    plain, steps = assembled.criterion, itertools.count(1)

    def spoiled(*arguments):
        losses, logits = plain.step(*arguments)
        return {"main": losses["main"] + (math.nan if next(steps) == 2 else 0)}, logits

    monkeypatch.setattr(assembled, "criterion", SimpleNamespace(step=spoiled))
    monkeypatch.setattr(assembled, "fabric", FabricLike(assembled.fabric, device=RunsAhead("cpu")))
    with pytest.raises(InputError, match=r"^loss: nan at step 2 on "):
        train_epoch(assembled, 0)
    assert next(steps) == 6, "all five steps of the epoch were made"


def test_processes_validate_every_image_once_though_they_are_more_than_the_images_of_a_batch(assembled, monkeypatch):
    images = 0
    for rank in range(5):
        monkeypatch.setattr(assembled, "fabric", FabricLike(assembled.fabric, global_rank=rank, world_size=5))
        images += validate(assembled).images
        monkeypatch.undo()
    assert images == len(assembled.data.validation) == 6
    assert assembled.config.optim.batch == 4


def test_of_several_losses_that_are_not_finite_the_first_is_named_without_padding():
    """On a device that runs ahead, the losses of many steps are checked together."""
    batches = [Batch(np.array(ids), len(ids)) for ids in ([4, 1], [2, -1], [0, 3])]
    run = SimpleNamespace(data=SimpleNamespace(train=SimpleNamespace(names=list("abcde"))))
    loop._check_losses(run, torch.tensor([0.5, 0.1, 3e38]), batches)
    with pytest.raises(InputError, match=r"^loss: inf at step 2 on c;"):
        loop._check_losses(run, torch.tensor([0.5, math.inf, math.nan]), batches)


def test_dropout_is_drawn_from_the_seed_the_epoch_and_the_process():
    class SeededError(Exception):
        pass

    def begin():
        raise SeededError

    def first_draws(seed, epoch, rank, world):
        """Return the first draws of an epoch, whatever was drawn before."""
        run = SimpleNamespace(
            config=SimpleNamespace(engine=SimpleNamespace(seed=seed)),
            fabric=SimpleNamespace(global_rank=rank, world_size=world),
            method=SimpleNamespace(start_epoch=lambda _: None),
            model=SimpleNamespace(train=begin),
        )
        with pytest.raises(SeededError):
            train_epoch(run, epoch)
        return tuple(torch.rand(3).tolist())

    with torch.random.fork_rng(devices=[]):
        for world in (1, 3):
            cases = list(itertools.product(range(4), range(6), range(world), [world]))
            draws = [first_draws(*case) for case in cases]
            assert len(set(draws)) == len(cases)
            assert [first_draws(*case) for case in cases] == draws


# ------------------------------------------------------------------ data from files


@pytest.fixture
def folder(tmp_path):
    write(generate(14, 32, seed=3), tmp_path / "scenes")
    return tmp_path / "scenes"


def folder_command(tmp_path, folder, *overrides):
    return command(
        "train", "demo", "data.scenes=null", f"data.images={folder}", "data.validation=4", "data.size=32",
        f"data.cache={tmp_path / 'cache'}", "model.options={decoder_channels: [8, 8, 8, 8, 8]}", "optim.batch=5",
        "optim.epochs=1", "method.warmup=0", *overrides, "--out", str(tmp_path / "run"),
    )  # fmt: skip


def test_a_folder_of_pairs_trains_and_its_predictions_can_be_evaluated(tmp_path, folder):
    done = run_here(folder_command(tmp_path, folder))
    assert done.returncode == 0, done.stderr
    assert "validation on 4 images: ECE" in done.stdout
    rows = (tmp_path / "run" / "alpha.csv").read_text().splitlines()
    assert len(rows) == 11
    for name, size in (("00000", (51, 37)), ("00001", (16, 90))):  # any size, also one the network never saw
        for part in ("images", "masks"):
            path = folder / part / f"{name}.png"
            Image.open(path).resize(size, Image.Resampling.NEAREST).save(path)
    done = run_here(
        command("predict", tmp_path / "run", folder / "images", "--out", tmp_path / "maps", "--uncertainty")
    )
    assert done.returncode == 0, done.stderr
    maps = sorted((tmp_path / "maps").glob("*.png"))
    assert len(maps) == 14
    levels = np.asarray(Image.open(maps[0]))
    assert levels.dtype == np.uint16
    assert levels.shape == (37, 51)
    confidence = np.asarray(Image.open(tmp_path / "maps" / "confidence" / maps[0].name))
    assert np.abs(np.maximum(levels, 65535 - levels.astype(int)) - confidence.astype(int)).max() <= 1
    done = run_here(command("evaluate", tmp_path / "maps", folder / "masks", "--metrics", "fast"))
    assert done.returncode == 0, done.stderr


def cut(path):
    path.write_bytes(path.read_bytes()[:-300])


def test_other_images_than_at_the_start_are_refused(tmp_path, folder):
    done = run_here(folder_command(tmp_path, folder))
    assert done.returncode == 0, done.stderr
    for part in ("images", "masks"):
        (folder / part / "00003.png").rename(folder / part / "other.png")
    resume = [*folder_command(tmp_path, folder), "--resume"]
    assert "finished" in run_here(resume).stdout  # a finished run needs no data
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 2\n", 1))
    done = run_here([argument.replace("optim.epochs=1", "optim.epochs=2") for argument in resume])
    assert done.returncode == 2
    assert "other images" in done.stderr


def test_a_split_without_validation_images_is_reported(tmp_path, folder):
    done = run_here(
        [argument.replace("data.validation=4", "data.validation=0") for argument in folder_command(tmp_path, folder)]
    )
    assert done.returncode == 2
    assert "data.validation" in done.stderr


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "masks" / "00003.png").unlink(), "1 image without a mask (00003)"),
        (lambda f: cut(f / "images" / "00003.png"), "00003.png: unreadable"),
        (lambda f: f.rename(f.with_name("elsewhere")), "scenes: does not exist"),
    ],
    ids=["no mask", "truncated", "wrong path"],
)  # fmt: skip
def test_bad_data_are_reported_in_one_line(tmp_path, folder, spoil, message):
    spoil(folder)
    done = run_here(folder_command(tmp_path, folder))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_start_removes_only_a_folder_of_its_own(tmp_path):
    config = small_config(f"model.weights={tmp_path / 'nowhere.pth'}")
    (tmp_path / "existing").mkdir()
    for name in ("new", "existing"):
        with pytest.raises(InputError, match="nowhere"):
            train(config, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["existing"]


def test_a_grey_mask_is_warned_of(tmp_path, folder):
    mask = np.asarray(Image.open(folder / "masks" / "00003.png")).copy()
    mask[:4] = 90
    Image.fromarray(mask).save(folder / "masks" / "00003.png")
    done = run_here(folder_command(tmp_path, folder))
    assert done.returncode == 0, done.stderr
    assert "hold grey values" in done.stderr


def test_images_without_information_have_no_index_and_empty_masks(tmp_path, monkeypatch):
    seen = []
    prepare = Method.prepare

    def prepare_and_record(self, images, masks, index):
        seen.append((self.epoch, index.clone(), masks.flatten(1).sum(dim=1)))
        return prepare(self, images, masks, index)

    monkeypatch.setattr(Method, "prepare", prepare_and_record)
    train(small_config("data.informationless=0.5", "data.augment=none", "method.name=bce"), tmp_path / "run")
    for epoch in range(3):
        stripped = choose_samples(torch.arange(18), epoch, 0, 0.5)
        kept = torch.cat([index for when, index, _ in seen if when == epoch])
        assert sorted(kept.tolist()) == sorted([-1] * int(stripped.sum()) + torch.arange(18)[~stripped].tolist())
    index, foreground = (torch.cat([entry[i] for entry in seen]) for i in (1, 2))
    assert not foreground[index < 0].any()
    assert foreground[index >= 0].any()


def test_images_without_information_need_foreground_masks():
    with pytest.raises(InputError, match="informationless"):
        small_config(
            "data.scenes=null", "data.images=x", "data.informationless=0.1", "data.classes=3", "method.name=bce"
        )


def test_a_resumed_epoch_logs_the_speed_of_its_rest_and_the_loss_of_all_steps(tmp_path, monkeypatch):
    config = small_config("optim.epochs=2")  # five batches of 4, 4, 4, 3 and 3 images
    train(config, tmp_path / "whole")

    def stop(title, done, total, **figures):
        if (title, done, total) == ("Epoch 2 of 2", 3, 5):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted, match="after step 3 of epoch 2"):
        train(config, tmp_path / "stopped", progress=stop)
    # a clock that advances by a second with every call
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    train(config, tmp_path / "stopped", resume=True)
    assert log_lines(tmp_path / "stopped")[1]["images_per_second"] == 6
    assert end_state(tmp_path / "stopped") == end_state(tmp_path / "whole")


def test_a_stopped_epoch_has_the_mean_loss_of_the_steps_done():
    config = small_config()
    run = assemble(config, create_fabric(config), open_data(config.data))
    run.stop.set()
    loss = train_epoch(run, 0)
    assert run.position.step == 1
    assert loss == float(run.position.losses[0]) > 0


def test_sigterm_saves_between_steps_and_resumes_to_the_bit(tmp_path):
    whole, stopped = (
        train_command(tmp_path / name, "optim.epochs=5", "optim.batch=2") for name in ("whole", "stopped")
    )
    assert run(whole).returncode == 0
    done = run_signalled(stopped, tmp_path / "stopped", signal.SIGTERM, 2)
    assert done.returncode == 143, done.stderr
    assert "--resume continues from there" in done.stderr
    meta = json.loads((tmp_path / "stopped" / "checkpoints" / "last" / "meta.json").read_text())
    assert 2 <= meta["epoch"] < 5
    done = run([*stopped, "--resume"])
    assert done.returncode == 0, done.stderr
    assert end_state(tmp_path / "stopped") == end_state(tmp_path / "whole")
