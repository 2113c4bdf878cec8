"""Checkpoints: whole or refused, and nothing in them runs."""

import json
import os
import pickle
import resource
import subprocess
import sys

import pytest
import torch

from densecal.errors import InputError
from densecal.training import checkpoint

MODEL = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
METHOD = {"values": torch.rand(4)}
OPTIMIZER = {"main": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}}


def save(folder, epoch, model=MODEL, best=None):
    checkpoint.save(folder, model, METHOD, OPTIMIZER, {"epoch": epoch, "best": 0.5, "config": {}}, best)


def test_round_trip(tmp_path):
    save(tmp_path / "last", 3)
    found = checkpoint.load(tmp_path / "last")
    assert torch.equal(found.model["w"], MODEL["w"])
    assert torch.equal(found.method["values"], METHOD["values"])
    assert found.optimizer["main"]["param_groups"][0]["lr"] == 0.1
    assert found.meta["epoch"] == 3


def test_tied_and_transposed_weights_are_kept(tmp_path):
    weight = torch.rand(3, 4)
    save(tmp_path / "last", 1, {"a": weight, "b": weight, "c": weight.T})
    found = checkpoint.load(tmp_path / "last").model
    assert torch.equal(found["b"], weight)
    assert torch.equal(found["c"], weight.T)


def test_the_former_one_is_kept_as_previous(tmp_path):
    for epoch in (1, 2, 3):
        save(tmp_path / "last", epoch)
    assert checkpoint.load(tmp_path / "last").meta["epoch"] == 3
    assert checkpoint.load(tmp_path / "previous").meta["epoch"] == 2
    assert sorted(os.listdir(tmp_path)) == ["last", "previous"]


class Killed(BaseException):
    """What nobody catches."""


def killed_at(moment, original, calls):
    def call(*given, **options):
        if next(calls) == moment:
            raise Killed
        return original(*given, **options)

    return call


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path, monkeypatch):
    moments = 0
    while True:
        folder = tmp_path / str(moments)
        for epoch in (1, 2, 3):
            save(folder / "last", epoch, best=folder / "best")
        calls = iter(range(1000))
        with monkeypatch.context() as patch:
            for name in ("rename", "link", "unlink", "rmdir"):
                patch.setattr(os, name, killed_at(moments, getattr(os, name), calls))
            try:
                save(folder / "last", 4, best=folder / "best")
            except Killed:
                moments += 1
            else:
                break
        found, problems = checkpoint.load_newest(folder)
        assert problems == []
        assert found.meta["epoch"] in (3, 4)
        # where the epoch is not done again, the best one is in its place
        if found.meta["epoch"] == 4:
            assert checkpoint.load(folder / "best").meta["epoch"] == 4
        elif (folder / "best").exists():
            assert checkpoint.load(folder / "best").meta["epoch"] in (3, 4)
        for epoch in (5, 6):
            save(folder / "last", epoch, best=folder / "best")
        assert sorted(os.listdir(folder)) == ["best", "last", "previous"]
    assert moments > 15


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
    found, problems = checkpoint.load_newest(tmp_path)
    assert found.meta["epoch"] == 1
    assert len(problems) == 1
    assert name in problems[0]


@pytest.mark.parametrize("stage", ["nothing renamed", "last moved away", "new half written"])
def test_a_kill_between_the_renames_loses_nothing(tmp_path, stage):
    for epoch in (1, 2):
        save(tmp_path / "last", epoch)
    save(tmp_path / "other", 3)
    os.rename(tmp_path / "other", tmp_path / "last.new")
    if stage == "last moved away":
        import shutil

        shutil.rmtree(tmp_path / "previous")
        os.rename(tmp_path / "last", tmp_path / "previous")
    if stage == "new half written":
        (tmp_path / "last.new" / checkpoint.META).unlink()
    found, problems = checkpoint.load_newest(tmp_path)
    assert found.meta["epoch"] == (2 if stage == "new half written" else 3)
    assert problems == []


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.load_newest(tmp_path) == (None, [])
    with pytest.raises(InputError, match="no checkpoint"):
        checkpoint.find(tmp_path)
    with pytest.raises(InputError, match="nowhere: no such folder"):
        checkpoint.find(tmp_path / "nowhere")


def test_a_strangers_pickle_runs_nothing(tmp_path):
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


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 7, done.stderr
    assert "could not be written" in done.stdout
    found, problems = checkpoint.load_newest(tmp_path)
    assert found.meta["epoch"] == 1
    assert problems == []
    assert sorted(os.listdir(tmp_path)) == ["last"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000
