"""Kills at every file operation of what writes files: the old content or the new one is there, and nothing else.

A child process overwrites the old content and is killed (SIGKILL) before its n-th file operation, for every n. Then
another child finishes the work. In every second round it is killed too, and a third one finishes.
"""

import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from densecal import posthoc
from densecal.data import open_source, pack
from densecal.data.packed import open_packed
from densecal.data.scenes import generate, write
from densecal.errors import InputError
from densecal.io.atomic import write_json
from densecal.io.documents import read_json
from densecal.io.map_files import read_map, write_plane
from densecal.training import checkpoint

OPERATIONS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate", "shutil.rmtree")
TARGETS = ("last", "previous", "best", "cache")


@dataclass(frozen=True)
class Writer:
    """Something that writes files.

    Attributes:
        name: Its name in the counts.
        write: Writes a version, 0 or 1, into a folder.
        version: Checks that the content is whole, and returns its version.
    """

    name: str
    write: Callable[[Path, int], object]
    version: Callable[[Path], int | None]


def writers(scratch: Path) -> list[Writer]:
    """Return everything that replaces what it wrote before."""
    scratch.mkdir()
    write(generate(6, 32, seed=1), scratch / "scenes")
    source = open_source(scratch / "scenes")

    def save_checkpoint(folder: Path, version: int) -> None:
        state = {"w": torch.full((64,), float(version))}
        optimizer = {"main": {"state": {}, "param_groups": []}}
        meta = {"epoch": version + 1, "best": 0.1, "config": {}}
        folder.mkdir(exist_ok=True)
        checkpoint.save(folder / "last", state, state, optimizer, meta, best=folder / "best")

    def saved_epoch(folder: Path) -> int:
        newest, problems = checkpoint.load_newest(folder)
        assert newest is not None, problems
        assert (newest.model["w"] == newest.meta["epoch"] - 1).all()
        return int(newest.meta["epoch"]) - 1

    def cached_names(folder: Path) -> int | None:
        # a stale cache is moved away before the new one takes its place; it can be built again
        return len(open_packed(folder / "cache", verify=True).names) - 4 if (folder / "cache").exists() else None

    return [
        Writer("checkpoint", save_checkpoint, saved_epoch),
        Writer("JSON", lambda folder, version: write_json(folder / "a.json", [version] * 10_000),
               lambda folder: int(read_json(folder / "a.json", "JSON")[-1])),
        Writer("map", lambda folder, version: write_plane(folder / "a", _levels(version), "predict"),
               lambda folder: int(read_map(folder / "a.png")[-1, -1])),
        Writer("calibrator", lambda folder, version: posthoc.save(_temperature(version), folder / "cal.json"),
               lambda folder: round(float(posthoc.load(folder / "cal.json").temperature)) - 1),
        Writer("packed cache", lambda folder, version: pack(source, source.names[: 4 + version], 16, folder / "cache",
               workers=1), cached_names),
    ]  # fmt: skip


def _levels(version: int) -> np.ndarray:
    return np.full((40, 40), version, np.uint8)


def _temperature(version: int) -> posthoc.Calibrator:
    calibrator = posthoc.create("temperature")
    calibrator.set_table("temperature", 1.0 + version)
    return calibrator


def run_and_kill(writer: Writer, folder: Path, number: int | None) -> bool:
    """Write version 1 in a child process, killed before its n-th operation.

    Returns:
        Whether it was killed; if not, it had fewer operations.
    """
    child = os.fork()
    if child == 0:
        try:
            if number is not None:
                sys.addaudithook(_killer(folder, number))
            writer.write(folder, 1)
        except BaseException as error:
            print(f"{writer.name}: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"{writer.name}: ended with status {status}"
    return False


def _killer(folder: Path, number: int) -> Callable[[str, tuple[object, ...]], None]:
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        is_writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (event in OPERATIONS or is_writing) or not str(arguments[0]).startswith(str(folder)):
            return
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def kill_at_operations(writer: Writer, scratch: Path, rng: random.Random) -> Iterator[int]:
    """Kill a writer before each of its operations in turn, and yield the number of kills each time."""
    number = rounds = 0
    while True:
        folder = scratch / f"{writer.name.replace(' ', '-')}-{rounds}"
        folder.mkdir(parents=True)
        writer.write(folder, 0)
        kills = int(run_and_kill(writer, folder, number))
        before = _check(writer, folder)
        if not kills:
            number, rounds = 0, rounds + 1  # start again, with second kills at other moments
            continue
        if rounds % 2:
            kills += run_and_kill(writer, folder, rng.randrange(12))
            after = _check(writer, folder)
            assert before is None or after is None or after >= before, f"{writer.name}: {after} after {before}"
        assert not run_and_kill(writer, folder, None)
        assert _check(writer, folder) == 1, f"{writer.name}: not the new content"
        # a temporary file of a few bytes may stay, a large one may not
        left = [path.name for path in folder.iterdir() if path.is_dir() and path.name not in TARGETS]
        assert not left, f"{writer.name}: {left} left"
        number, rounds = number + 1, rounds + 1
        yield kills


def _check(writer: Writer, folder: Path) -> int | None:
    try:
        version = writer.version(folder)
    except InputError as error:
        raise AssertionError(f"{writer.name}: {error}") from None
    assert version in (None, 0, 1)
    return version


def soak_operations(kills: int, scratch: Path, rng: random.Random) -> list[str]:
    """Kill all writers this many times in turn.

    Returns:
        Lines of counts.
    """
    logging.disable(logging.WARNING)  # a cache that is rebuilt warns
    every = writers(scratch / "data")
    running = [kill_at_operations(writer, scratch, rng) for writer in every]
    counts = [0] * len(every)
    turn = 0
    while sum(counts) < kills:
        counts[turn % len(every)] += next(running[turn % len(every)])
        turn += 1
    return [
        f"{writer.name:12} {count:3} kills at file operations, old or new content whole every time"
        for writer, count in zip(every, counts, strict=True)
    ]
