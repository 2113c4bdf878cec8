"""A run says what state it is in, counts perturbed labels, can be extended, and serves as initial weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from densecal.errors import InputError
from densecal.methods import create
from densecal.models import build
from densecal.training.loop import train
from densecal.training.state import perturbed_labels, unfinished
from tests import running
from tests.training.common import SMALL, log_lines, small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small_config("optim.epochs=2", "optim.schedule=constant"), out)
    return out


def unfinished_copy(finished, tmp_path):
    """Copy a run and pretend that it was meant to be longer."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    meta_file = run / "checkpoints" / "last" / "meta.json"
    meta = json.loads(meta_file.read_text())
    meta["config"]["optim"]["epochs"] = 30
    meta_file.write_text(json.dumps(meta))
    return run


def test_a_run_that_has_not_finished_says_where_it_stopped(finished, tmp_path):
    assert unfinished(finished) is None
    run = unfinished_copy(finished, tmp_path)
    assert unfinished(run) == "stopped in epoch 3 of 30"
    assert unfinished(run / "checkpoints" / "best") is None


def test_the_commands_that_use_a_run_say_it_too(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path)
    note = f"note: {run}: stopped in epoch 3 of 30; densecal train ... --out {run} --resume continues it"
    none, out = tmp_path / "none", tmp_path / "out"
    for arguments in (
        ("predict", run, none, "--out", out),
        ("evaluate", run, none),
        ("calibrate", "fit", "temperature", run, "--out", tmp_path / "cal.json"),
        ("calibrate", "select", run, "--methods", "no-such", "--out", tmp_path / "cal.json"),
        ("report", run, "--out", tmp_path / "report.html"),
        ("shift", run, none),
        ("export", run, "--calibrator", none, "--out", tmp_path / "model.onnx"),
    ):
        assert note in running.run(*arguments)[2].splitlines(), arguments
    settings = tmp_path / "small.yaml"
    settings.write_text(f"data: {{images: {none}}}\nmodel: {{weights: {run}}}\n")
    assert note in running.run("train", settings, "--out", out)[2].splitlines()
    assert "stopped in" not in running.run("predict", finished, none, "--out", out)[2]


def test_more_epochs_extend_a_finished_run_as_if_it_had_been_longer_from_the_start(finished, tmp_path):
    whole, extended = tmp_path / "whole", tmp_path / "extended"
    shutil.copytree(finished, extended)
    longer = small_config("optim.epochs=3", "optim.schedule=constant")
    train(longer, whole)
    train(longer, extended, resume=True)
    a, b = (load_file(run / "checkpoints" / "last" / "model.safetensors") for run in (whole, extended))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [line["epoch"] for line in log_lines(extended)] == [1, 2, 3]
    assert unfinished(extended) is None
    with pytest.raises(InputError, match=r"optim\.epochs = 3, not 2"):
        train(small_config("optim.epochs=2", "optim.schedule=constant"), extended, resume=True)


def test_perturbed_labels_are_counted(finished, tmp_path):
    counted = log_lines(finished)[-1]["method"]["perturbed"]
    assert perturbed_labels(finished) in (
        f"{counted:,} times the labels of an image were perturbed, in 2 epochs",
        "no label was perturbed in 2 epochs: the method did nothing, and this is plain cross entropy",
    )
    always = ["method.name=slp", "method.technique=m", "method.alpha=0.999", "optim.epochs=1"]
    train(small_config(*always), tmp_path / "always")
    assert perturbed_labels(tmp_path / "always") == "18 times the labels of an image were perturbed, in 1 epoch"
    train(small_config("method.name=slp", "method.alpha=0.0", "optim.epochs=1"), tmp_path / "never")
    assert perturbed_labels(tmp_path / "never").startswith("no label was perturbed in 1 epoch: the method did nothing")
    train(small_config("method.name=bce", "optim.epochs=1"), tmp_path / "bce")
    assert perturbed_labels(tmp_path / "bce") is None


@pytest.mark.parametrize("name", ["slp", "aslp-mc", "als"])
def test_the_count_is_that_of_the_perturbed_targets(name):
    method = create(name, num_samples=40, **({"alpha": 0.3} if name == "slp" else {}))
    if name != "slp":
        method.values[:40] = torch.linspace(0, 0.9, 40)
    masks, index = torch.ones(41, 1, 2, 2), torch.tensor([*range(40), -1])
    total = 0
    for epoch in range(3):
        method.start_epoch(epoch)
        _, targets = method.prepare(torch.zeros(41, 3, 2, 2), masks, index)
        total += int((targets != masks).flatten(1).any(dim=1).sum())
        assert method.statistics()["perturbed"] == total > 0


def test_state_from_before_labels_were_counted_still_loads():
    method = create("aslp-mc", num_samples=4)
    state = method.state_dict()
    del state["perturbed"]
    create("aslp-mc", num_samples=4).load_state_dict(state)


def test_a_run_folder_serves_as_initial_weights(finished, tmp_path):
    options = {"encoder": "test_efficientnet", "decoder_channels": [16, 16, 8, 8, 8]}
    trained = load_file(finished / "checkpoints" / "last" / "model.safetensors")
    for folder in (finished, finished / "checkpoints" / "last"):
        loaded = build("unet", weights=folder, **options).state_dict()
        assert all(torch.equal(loaded[name], trained[name]) for name in trained)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without weights; expected a run folder"):
        build("unet", weights=tmp_path / "empty", **options)


def test_training_outside_a_terminal_prints_a_line_per_epoch_and_how_it_ended(tmp_path):
    code, out, err = running.run("train", "demo", *SMALL, "optim.epochs=2", "--out", tmp_path / "run")
    assert code == 0, err
    lines = [line for line in err.splitlines() if line.startswith("Epoch")]
    assert [line.partition(":")[0] for line in lines] == ["Epoch 1 of 2", "Epoch 2 of 2"]
    for figure in ("loss ", "ECE ", "accuracy ", "alpha ", " images/s", " left"):
        assert all(figure in line for line in lines), figure
    assert lines[-1].endswith("0:00:00 left")
    assert "aslp-mc: " in out
    assert "perturbed" in out


def test_weights_that_were_not_given_are_mentioned(tmp_path):
    settings = tmp_path / "own.yaml"
    settings.write_text("data: {scenes: {}}\nmodel: {encoder: mobilenetv3_small_050}\noptim: {batch: 0}\n")
    assert "note" not in running.run("train", settings, "--out", tmp_path / "run")[2]
    settings.write_text("data: {images: nowhere}\nmodel: {encoder: mobilenetv3_small_050}\n")
    notes = running.run("train", settings, "--out", tmp_path / "run")[2].splitlines()
    assert notes[0].startswith("note: model.weights is not given, so mobilenetv3_small_050 starts from random weights")
    assert "note" not in running.run("train", settings, "model.weights=null", "--out", tmp_path / "run")[2]
