"""Killing the commands: `python -m tests.soak.kills --kills 200`. Finished work stays, and the result is the same.

`train`, `benchmark`, `evaluate` and `data pack` are killed (SIGKILL) at random moments and started again. After every
kill what is on disk must be whole; when a command is allowed to end, its output must equal that of an undisturbed run.
Three of four kills are at file operations, each in turn (`operations.py`).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from densecal.benchmark.matrix import load_matrix
from densecal.benchmark.plan import Plan, is_finished
from densecal.data.packed import open_packed
from densecal.data.scenes import generate, write
from densecal.training import checkpoint
from tests.soak.operations import soak_operations
from tests.training.common import command, end_state, environment, log_lines, run, train_command

ORPHAN_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """A command that is killed.

    Attributes:
        name: Its name in the counts.
        arguments: The command, for an output folder.
        whole: Checks what a kill left in the folder, given what the last check returned.
        end: Returns what must be the same at the end.
        delay: Seconds after its first sign of life within which it is killed.
        shows: Whether it writes something before it ends.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    whole: Callable[[Path, object], object]
    end: Callable[[Path], object]
    delay: float
    shows: bool = True


def jobs(root: Path) -> list[Job]:
    """Return the four commands, with their own data in a folder."""
    write(generate(80, 48, seed=3), root / "scenes")
    rng = np.random.default_rng(0)
    (root / "maps").mkdir()
    for mask in sorted((root / "scenes" / "masks").iterdir()):
        levels = np.asarray(Image.open(mask)).astype(int)
        noisy = np.clip(levels + rng.integers(-120, 121, levels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(root / "maps" / mask.name)
    settings = {
        "recipe": "demo", "methods": ["bce", "brier"], "seeds": [0], "calibrators": ["temperature"],
        "overrides": ["data.size=32", "data.scenes.train=16", "data.scenes.validation=6", "optim.batch=4",
                      "optim.epochs=3", "model.options={decoder_channels: [16, 16, 8, 8, 8]}"],
    }  # fmt: skip
    matrix = root / "matrix.yaml"
    matrix.write_text(yaml.safe_dump(settings))
    scenes = root / "scenes"
    return [
        Job(
            "train", lambda out: [*train_command(out, "optim.epochs=25"), "--resume"], _whole_run, end_state, delay=2.0
        ),
        Job(
            "benchmark", lambda out: command("benchmark", matrix, "--out", out),
            lambda out, before: _whole_cells(matrix, out, before), _figures, delay=6.0,
        ),
        Job(
            "evaluate",
            lambda out: command("evaluate", root / "maps", scenes / "masks", "--json", out / "e.json", "--workers", 2),
            _whole_json, lambda out: json.loads((out / "e.json").read_text()), delay=0.3, shows=False,
        ),
        Job(
            "data pack", lambda out: command("data", "pack", scenes, "--size", "64", "--out", out / "cache"),
            _whole_cache, _cache_bytes, delay=0.5,
        ),
    ]  # fmt: skip


def _whole_run(out: Path, before: object) -> int:
    """Check that the newest checkpoint is whole and not older than the last one, and every line of the log readable."""
    found, problems = checkpoint.load_newest(out / "checkpoints")
    epoch = 0 if found is None else int(found.meta["epoch"])
    assert problems == [], problems
    assert epoch >= int(before or 0), f"epoch {epoch} after {before}"
    if (out / "log.jsonl").exists():
        lines = log_lines(out)
        assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
        assert len(lines) >= epoch
    return epoch


def _whole_cells(matrix: Path, out: Path, before: object) -> dict[str, bytes]:
    """Check that every result file is that of a finished cell, and that earlier ones are unchanged."""
    tasks = {str(cell.result): cell for cell in Plan(load_matrix(matrix), out).untuned}
    results = {str(path): path.read_bytes() for path in sorted(out.glob("cells/*/*/result.json"))}
    assert all(is_finished(tasks[path]) for path in results)
    kept = before if isinstance(before, dict) else {}
    assert {path: results.get(path) for path in kept} == kept
    return results


def _whole_json(out: Path, before: object) -> None:
    if (out / "e.json").exists():
        assert "calibration" in json.loads((out / "e.json").read_text())


def _whole_cache(out: Path, before: object) -> None:
    if (out / "cache").exists():
        open_packed(out / "cache", verify=True)


def _figures(out: Path) -> object:
    return json.loads((out / "results.json").read_text())["rows"], (out / "table.csv").read_text()


def _cache_bytes(out: Path) -> dict[str, bytes]:
    assert [path.name for path in out.iterdir()] == ["cache"], "what killed builds left is cleared up"
    return {path.name: path.read_bytes() for path in sorted((out / "cache").iterdir())}


def _snapshot(folder: Path) -> list[tuple[str, int]]:
    found = []
    for inner, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(inner, name)
            try:
                found.append((path, os.stat(path).st_mtime_ns))
            except FileNotFoundError:
                continue
    return sorted(found)


def kill_once(job: Job, out: Path, seconds: float, rng: random.Random) -> bool:
    """Start a command and kill it, alone or with the processes it started.

    Args:
        job: The command.
        out: Its folder.
        seconds: How long it takes undisturbed.
        rng: Chooses the moment.

    Returns:
        Whether it was killed before it ended.
    """
    before = _snapshot(out)
    process = subprocess.Popen(
        job.arguments(out), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    latest = time.monotonic() + (600.0 if job.shows else rng.uniform(0.4, 1.1) * seconds)
    while process.poll() is None and time.monotonic() < latest and _snapshot(out) == before:
        time.sleep(0.01)
    end = time.monotonic() + rng.uniform(0, job.delay)
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    killed = process.poll() is None
    if killed:
        if rng.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
    process.wait()
    _await_orphans(process.pid, job)
    assert process.stderr is not None
    errors = process.stderr.read().decode(errors="replace")
    process.stderr.close()
    if process.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"{job.name} ended with {process.returncode}: {errors[-2000:]}")
    return process.returncode != 0


def _await_orphans(group: int, job: Job) -> None:
    """Wait until the processes that a killed command started have ended by themselves."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    raise AssertionError(f"{job.name}: processes outlived the killed command by {ORPHAN_SECONDS:.0f} s")


def soak(job: Job, kills: int, root: Path, rng: random.Random) -> str:
    """Kill a command this many times, restarting it whenever it ends; then let it end.

    Returns:
        A line of counts.
    """
    undisturbed = root / "undisturbed"
    undisturbed.mkdir(parents=True)
    start = time.monotonic()
    done = run(job.arguments(undisturbed))
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    expected = job.end(undisturbed)
    count, rounds, kept = 0, 1, None
    out = root / f"round-{rounds}"
    out.mkdir()
    while count < kills:
        if kill_once(job, out, seconds, rng):
            count += 1
            kept = job.whole(out, kept)
            continue
        assert job.end(out) == expected, f"{job.name}: round {rounds} ended otherwise"
        rounds, kept = rounds + 1, None
        out = root / f"round-{rounds}"
        out.mkdir()
    done = run(job.arguments(out))
    assert done.returncode == 0, done.stderr
    assert job.end(out) == expected, f"{job.name}: round {rounds} ended otherwise"
    return (
        f"{job.name:10} {count:3} kills, {rounds:2} runs to the end, all equal to the undisturbed one ({seconds:.0f} s)"
    )


def main() -> None:
    """Kill every command, print the counts, and fail at the first loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="densecal-kills-") as name:
        root = Path(name)
        at_random = -(-options.kills // 4)
        (root / "operations").mkdir()
        rng = random.Random(f"{options.seed}/operations")
        print("\n".join(soak_operations(options.kills - at_random, root / "operations", rng)), flush=True)
        (root / "data").mkdir()
        chosen = jobs(root / "data")
        for number, job in enumerate(chosen):
            share = at_random // len(chosen) + (number < at_random % len(chosen))
            if share:
                print(soak(job, share, root / job.name.replace(" ", "-"), random.Random(f"{options.seed}/{job.name}")))
                sys.stdout.flush()
    print(f"{options.kills} kills, nothing lost; seed {options.seed}, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
