"""Checkpoints are complete or refused, and nothing in them is executed."""

import json
import os
import pickle
import re
import resource
import shutil
import sys

import pytest
import torch

from densecal.errors import InputError
from densecal.training import checkpoint
from tests import forked

MODEL = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
METHOD = {"values": torch.rand(4)}
OPTIMIZER = {"main": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}}


def save(folder, epoch, model=MODEL, best=None):
    checkpoint.save(folder, model, METHOD, OPTIMIZER, {"epoch": epoch, "best": 0.5, "config": {}}, best)


def test_round_trip(tmp_path):
    save(tmp_path / "last", 3)
    loaded = checkpoint.load(tmp_path / "last")
    assert torch.equal(loaded.model["w"], MODEL["w"])
    assert torch.equal(loaded.method["values"], METHOD["values"])
    assert loaded.optimizer["main"]["param_groups"][0]["lr"] == 0.1
    assert loaded.meta["epoch"] == 3


def test_tied_and_transposed_weights_are_kept(tmp_path):
    weight = torch.rand(3, 4)
    save(tmp_path / "last", 1, {"a": weight, "b": weight, "c": weight.T})
    model = checkpoint.load(tmp_path / "last").model
    assert torch.equal(model["b"], weight)
    assert torch.equal(model["c"], weight.T)


def test_the_former_checkpoint_is_kept_as_previous(tmp_path):
    for epoch in (1, 2, 3):
        save(tmp_path / "last", epoch)
    assert checkpoint.load(tmp_path / "last").meta["epoch"] == 3
    assert checkpoint.load(tmp_path / "previous").meta["epoch"] == 2
    assert sorted(os.listdir(tmp_path)) == ["last", "previous"]


def edit(folder, **changes):
    """Change meta.json. A value of ``None`` removes the key."""
    path = folder / checkpoint.META
    meta = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))


def test_a_run_stopped_in_its_first_epoch_has_done_none_and_has_no_best_score(tmp_path):
    checkpoint.save(tmp_path / "last", MODEL, METHOD, OPTIMIZER, {"epoch": 0, "best": float("inf"), "config": {}})
    meta = checkpoint.load(tmp_path / "last").meta
    assert (meta["epoch"], meta["best"]) == (0, float("inf"))
    newest, problems = checkpoint.load_newest(tmp_path)
    assert newest.meta["epoch"] == 0
    assert problems == []


@pytest.mark.parametrize("best", [0, 1, 0.25, float("inf")])
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_whole_numbers_of_epochs_and_any_score_are_read(tmp_path, epoch, best):
    save(tmp_path / "last", 3)
    edit(tmp_path / "last", epoch=epoch, best=best)
    meta = checkpoint.load(tmp_path / "last").meta
    assert (meta["epoch"], meta["best"]) == (epoch, best)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epoch": -1}, "epoch -1 and best 0.5"),
        ({"epoch": -2}, "epoch -2 and best 0.5"),
        ({"epoch": 2.0}, "epoch 2.0 and best 0.5"),
        ({"epoch": 2.5}, "epoch 2.5 and best 0.5"),
        ({"epoch": "2"}, "epoch '2' and best 0.5"),
        ({"epoch": [2]}, "epoch [2] and best 0.5"),
        ({"best": "0.5"}, "epoch 3 and best '0.5'"),
        ({"best": [0.5]}, "epoch 3 and best [0.5]"),
        ({"epoch": -1, "best": "0.5"}, "epoch -1 and best '0.5'"),
        ({"epoch": None}, "unreadable ('epoch')"),
        ({"best": None}, "unreadable ('best')"),
        ({"sha256": None}, "unreadable ('sha256')"),
        ({"sha256": {}}, "unreadable ('model.safetensors')"),
        ({"sha256": [1]}, "unreadable"),
        ({"version": None}, "format version None; expected version 1"),
        ({"version": 2}, "format version 2; expected version 1"),
        ({"version": 0}, "format version 0; expected version 1"),
    ],
)
def test_a_wrong_meta_json_is_refused_and_the_previous_checkpoint_used(tmp_path, changes, problem):
    for epoch in (2, 3):
        save(tmp_path / "last", epoch)
    edit(tmp_path / "last", **changes)
    with pytest.raises(InputError, match=r"meta\.json: " + re.escape(problem)):
        checkpoint.load(tmp_path / "last")
    newest, problems = checkpoint.load_newest(tmp_path)
    assert newest.meta["epoch"] == 2
    assert len(problems) == 1
    assert problem in problems[0]


def test_an_optimizer_state_that_is_not_a_dictionary_is_refused(tmp_path):
    checkpoint.save(tmp_path / "last", MODEL, METHOD, [1, 2], {"epoch": 1, "best": 0.5, "config": {}})
    with pytest.raises(InputError, match=r"optimizer\.pt: a list; expected the state of the optimizers"):
        checkpoint.load(tmp_path / "last")


def test_the_hashes_are_those_of_the_files_whatever_else_meta_holds(tmp_path):
    meta = {"epoch": 1, "best": 0.5, "sha256": "that of another checkpoint", "config": {}}
    checkpoint.save(tmp_path / "last", MODEL, METHOD, OPTIMIZER, meta)
    assert torch.equal(checkpoint.load(tmp_path / "last").model["w"], MODEL["w"])


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("last", "previous"), "last"),
        (("last.new", "previous"), "last.new"),
        (("previous",), "previous"),
    ],
)
def test_of_checkpoints_after_the_same_epoch_the_one_written_last_is_used(tmp_path, folders, expected):
    """A run stopped inside an epoch has finished as many epochs as before, and some more steps."""
    run = tmp_path / "run"
    for name in folders:
        model = {"w": torch.tensor(float(sum(map(ord, name))))}
        checkpoint.save(tmp_path / "saved", model, {}, {}, {"epoch": 1, "best": 0.5, "config": {}})
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        os.rename(tmp_path / "saved", run / "checkpoints" / name)
    newest, _ = checkpoint.load_newest(run / "checkpoints")
    assert float(newest.model["w"]) == sum(map(ord, expected))
    assert checkpoint.find(run) == run / "checkpoints" / expected
    assert checkpoint.find(run / "checkpoints" / folders[-1]) == run / "checkpoints" / folders[-1]


def test_a_folder_without_meta_json_is_skipped(tmp_path):
    for epoch in (1, 2):
        save(tmp_path / "checkpoints" / "last", epoch)
    (tmp_path / "checkpoints" / "last" / checkpoint.META).unlink()
    assert checkpoint.find(tmp_path) == tmp_path / "checkpoints" / "previous"
    with pytest.raises(InputError, match="last: no checkpoint"):
        checkpoint.find(tmp_path / "checkpoints" / "last")


def test_the_best_checkpoint_is_a_copy_where_files_cannot_be_linked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    save(tmp_path / "last", 3, best=tmp_path / "best")
    for name in (checkpoint.MODEL, checkpoint.METHOD, checkpoint.OPTIMIZER, checkpoint.META):
        assert (tmp_path / "best" / name).read_bytes() == (tmp_path / "last" / name).read_bytes()
    assert checkpoint.load(tmp_path / "best").meta["epoch"] == 3


def test_a_best_checkpoint_that_cannot_be_written_leaves_no_files(tmp_path, monkeypatch):
    save(tmp_path / "last", 1, best=tmp_path / "best")

    def refuse(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copy2", refuse)
    with pytest.raises(InputError, match=r"last: the checkpoint could not be written \(no space\)"):
        save(tmp_path / "last", 2, best=tmp_path / "best")
    assert sorted(os.listdir(tmp_path)) == ["best", "last"]
    assert checkpoint.load(tmp_path / "best").meta["epoch"] == 1
    assert checkpoint.load_newest(tmp_path)[0].meta["epoch"] == 1


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.METHOD, checkpoint.OPTIMIZER, checkpoint.META])
@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped"])
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_used(tmp_path, name, damage):
    for epoch in (1, 2):
        save(tmp_path / "last", epoch)
    path = tmp_path / "last" / name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(InputError):
        checkpoint.load(tmp_path / "last")
    newest, problems = checkpoint.load_newest(tmp_path)
    assert newest.meta["epoch"] == 1
    assert len(problems) == 1
    assert name in problems[0]


@pytest.mark.parametrize("damage", [b"", b"cut short", None])
def test_the_model_of_a_checkpoint_is_read_without_the_state_of_training(tmp_path, damage):
    save(tmp_path / "last", 3)
    for name in (checkpoint.METHOD, checkpoint.OPTIMIZER):
        (tmp_path / "last" / name).unlink()
        if damage is not None:
            (tmp_path / "last" / name).write_bytes(damage)
    model, meta = checkpoint.load_model(tmp_path / "last")
    assert torch.equal(model["w"], MODEL["w"])
    assert meta["epoch"] == 3


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.META])
@pytest.mark.parametrize("damage", [b"", b"cut short", None])
def test_a_damaged_model_is_refused(tmp_path, name, damage):
    save(tmp_path / "last", 3)
    (tmp_path / "last" / name).unlink()
    if damage is not None:
        (tmp_path / "last" / name).write_bytes(damage)
    with pytest.raises(InputError, match=re.escape(name)):
        checkpoint.load_model(tmp_path / "last")


@pytest.mark.parametrize("stage", ["nothing renamed", "last moved away", "new half written"])
def test_a_kill_between_the_renames_loses_nothing(tmp_path, stage):
    for epoch in (1, 2):
        save(tmp_path / "last", epoch)
    save(tmp_path / "other", 3)
    os.rename(tmp_path / "other", tmp_path / "last.new")
    if stage == "last moved away":
        shutil.rmtree(tmp_path / "previous")
        os.rename(tmp_path / "last", tmp_path / "previous")
    if stage == "new half written":
        (tmp_path / "last.new" / checkpoint.META).unlink()
    newest, problems = checkpoint.load_newest(tmp_path)
    assert newest.meta["epoch"] == (2 if stage == "new half written" else 3)
    assert problems == []


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.load_newest(tmp_path) == (None, [])
    with pytest.raises(InputError, match="no checkpoint"):
        checkpoint.find(tmp_path)
    with pytest.raises(InputError, match="nowhere: no such folder"):
        checkpoint.find(tmp_path / "nowhere")


def test_an_untrusted_pickle_executes_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/owned",)

    save(tmp_path / "last", 1)
    path = tmp_path / "last" / checkpoint.OPTIMIZER
    path.write_bytes(pickle.dumps(Evil()))
    meta = json.loads((tmp_path / "last" / checkpoint.META).read_text())
    meta["sha256"][checkpoint.OPTIMIZER] = checkpoint._sha256(path)
    (tmp_path / "last" / checkpoint.META).write_text(json.dumps(meta))
    with pytest.raises(InputError, match="unreadable"):
        checkpoint.load(tmp_path / "last")
    assert not (tmp_path / "owned").exists()


_FULL_DISK = """
import resource, signal, sys, torch
from pathlib import Path
from densecal.errors import InputError
from densecal.training import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
def save(size, epoch):
    meta = {"epoch": epoch, "best": 1, "config": {}}
    checkpoint.save(folder / "last", {"w": torch.rand(size)}, {}, {}, meta)
save(1000, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save(1_000_000, 2)
except InputError as error:
    print(error)
    sys.exit(7)
"""


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path):
    done = forked.run([sys.executable, "-c", _FULL_DISK, tmp_path])
    assert done.returncode == 7, done.stderr
    assert "could not be written" in done.stdout
    newest, problems = checkpoint.load_newest(tmp_path)
    assert newest.meta["epoch"] == 1
    assert problems == []
    assert sorted(os.listdir(tmp_path)) == ["last"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


def test_a_folder_is_removed_also_where_an_earlier_removal_was_cut_short(tmp_path):
    for name in ("last", "last.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    checkpoint._remove(tmp_path / "last")
    assert not list(tmp_path.iterdir())
