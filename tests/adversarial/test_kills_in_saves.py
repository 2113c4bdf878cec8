"""A kill at any file operation of a save, and a second one: no finished epoch is lost, and `best` is never absent."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from densecal.training import checkpoint
from densecal.training.loop import train
from tests.soak.moments import Killed, Operations, kill_at
from tests.training.common import end_state, small_config

FILES = (checkpoint.MODEL, checkpoint.METHOD, checkpoint.OPTIMIZER, checkpoint.META)


@pytest.fixture(params=["exchange", "two renames"])
def system(request, monkeypatch):
    """Run on systems that can exchange two names, and on others."""
    if request.param == "two renames":
        monkeypatch.setattr(checkpoint, "exchange", lambda *_: False)
    return request.param


def save(run: Path, epoch: int) -> None:
    number = torch.tensor(float(epoch))
    meta = {"epoch": epoch, "best": 1 / epoch, "config": {}}
    checkpoints = run / "checkpoints"
    checkpoint.save(checkpoints / "last", {"w": number}, {"v": number}, {"o": number}, meta, checkpoints / "best")


def content(folder: Path) -> tuple[bytes, ...]:
    return tuple((folder / name).read_bytes() for name in FILES)


@pytest.fixture(scope="module")
def epochs(tmp_path_factory) -> dict[tuple[bytes, ...], int]:
    """Return the epoch of every checkpoint by its bytes."""
    run = tmp_path_factory.mktemp("epochs")
    known = {}
    for epoch in range(1, 7):
        save(run, epoch)
        known[content(run / "checkpoints" / "last")] = epoch
    return known


def seen(run: Path, epochs: dict[tuple[bytes, ...], int]) -> tuple[int, int]:
    """Return the epochs of the newest and of the best checkpoint, which all readers see alike."""
    newest = epochs[content(checkpoint.find(run))]
    loaded, problems = checkpoint.load_newest(run / "checkpoints")
    assert problems == []
    assert loaded.meta["epoch"] == newest
    last = run / "checkpoints" / "last"
    if last.exists():
        assert checkpoint.find(last) == last
        assert epochs[content(last)] == newest
    return newest, epochs[content(checkpoint.find(run / "checkpoints" / "best"))]


def state(run: Path, epochs: dict[tuple[bytes, ...], int]) -> str:
    """Return what a kill left: the names, and the epoch of each complete checkpoint."""
    folders = sorted((run / "checkpoints").iterdir())
    complete = {path.name: all((path / name).exists() for name in FILES) for path in folders}
    return str([(path.name, epochs.get(content(path)) if complete[path.name] else None) for path in folders])


def killed_runs(before: Path, epochs: dict[tuple[bytes, ...], int], action: Callable[[Path], None]) -> Iterator[Path]:
    """Yield copies of a run folder after a kill at every file operation of an action, each different state once."""
    known = set()
    for moment in itertools.count():
        run = shutil.copytree(before, before.with_name(f"{before.name}-{moment}"), copy_function=os.link)
        killed = True
        with contextlib.suppress(Killed), kill_at(moment):
            action(run)
            killed = False
        if (left := state(run, epochs)) not in known:
            known.add(left)
            yield run
        shutil.rmtree(run)
        if not killed:
            return


def recover(run: Path) -> None:
    checkpoint.recover(run / "checkpoints")


def check_two_kills(folder: Path, epochs: dict[tuple[bytes, ...], int], system: str, second_save: bool) -> int:
    """Kill the save of epoch 4, then the next start at every operation, in each state the first kill left."""
    whole, states = folder / "run", 0
    for epoch in (1, 2, 3):
        save(whole, epoch)
    for run in killed_runs(whole, epochs, lambda run: save(run, 4)):
        states += 1
        first, best = seen(run, epochs)
        assert first in (3, 4)
        # an epoch whose checkpoint is not complete is repeated, and its best checkpoint written again
        assert best == 4 if first == 4 else best in (3, 4)
        assert (run / "checkpoints" / "best").exists() or system == "two renames"
        start = (lambda run, epoch=first + 1: save(run, epoch)) if second_save else recover
        for again in killed_runs(run, epochs, start):
            second, best = seen(again, epochs)
            assert second in ((first, first + 1) if second_save else (first,))
            assert best >= second
            assert (again / "checkpoints" / "best").exists() or system == "two renames"
            recover(again)
            assert seen(again, epochs) == (second, best)
            assert set(os.listdir(again / "checkpoints")) in ({"last", "best"}, {"last", "best", "previous"})
    return states


def test_kills_in_a_save_and_in_the_next_start_lose_nothing(tmp_path, epochs, system):
    assert check_two_kills(tmp_path, epochs, system, second_save=False) > 7


@pytest.mark.slow
def test_kills_in_two_saves_lose_nothing(tmp_path, epochs, system):
    check_two_kills(tmp_path, epochs, system, second_save=True)


def left_by_version_0_1(run: Path, stage: str) -> None:
    """Write what a kill in a save of version 0.1 left: `last.new` is newer than `last`."""
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints / "last", checkpoints / "last.new")
    for name in ("last", "best"):
        shutil.rmtree(checkpoints / name)
    os.rename(checkpoints / "previous", checkpoints / "last")
    os.rename(shutil.copytree(checkpoints / "last.new", checkpoints / "copy"), checkpoints / "best.new")
    if stage == "last moved away":
        os.rename(checkpoints / "last", checkpoints / "previous")


@pytest.mark.parametrize("stage", ["before the renames", "last moved away"])
def test_leftovers_of_version_0_1_are_read_and_completed(tmp_path, epochs, system, stage):
    for epoch in (1, 2):
        save(tmp_path / "run", epoch)
    left_by_version_0_1(tmp_path / "run", stage)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert epochs[content(checkpoint.find(tmp_path / "run"))] == 2
    assert checkpoint.find(checkpoints / "last") == checkpoints / "last.new"
    assert epochs[content(checkpoint.find(checkpoints / "best"))] == 2
    for run in killed_runs(tmp_path / "run", epochs, recover):
        recover(run)
        assert seen(run, epochs) == (2, 2)
        assert sorted(os.listdir(run / "checkpoints")) == ["best", "last", "previous"]


def test_a_run_killed_in_its_last_save_ends_with_the_model_of_its_last_epoch(tmp_path, monkeypatch):
    config = small_config("optim.epochs=2")
    train(config, tmp_path / "whole")
    expected = end_state(tmp_path / "whole")
    saves = []

    def keep_last_save(folder, *arguments, save=checkpoint.save):
        if arguments[3]["epoch"] == 2:
            saves.append(arguments)
            raise Killed
        save(folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", keep_last_save)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed")
    for moment in itertools.count():  # one round per rename of the last save
        out = shutil.copytree(tmp_path / "killed", tmp_path / f"killed-{moment}", copy_function=os.link)
        checkpoints, operations = out / "checkpoints", Operations(moment)
        *arguments, best = saves[0]
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", operations.plain(os.rename))
            patch.setattr(checkpoint, "exchange", operations.plain(checkpoint.exchange))
            try:
                checkpoint.save(checkpoints / "last", *arguments, None if best is None else checkpoints / "best")
                break
            except Killed:
                pass
        train(config, out, resume=True)
        assert end_state(out) == expected
        assert content(checkpoint.find(out)) == content(checkpoints / "last")
    assert moment > 2
