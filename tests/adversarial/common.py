"""A small valid setting for every command, to be damaged by the tests of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from densecal import posthoc

TIMEOUT = 120


def densecal(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; one that hangs fails the test."""
    command = [sys.executable, "-W", "ignore", "-m", "densecal.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, **options)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command refused its input: exit code 2, and one line that says what and where."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def write_set(folder: Path, count: int = 4) -> Path:
    """Write folders `maps`, `masks` and `photos` with the same stems, and `cal.json`."""
    rng = np.random.default_rng(0)
    for i in range(count):
        y, x = np.mgrid[:24, :32]
        distance = 9 - np.hypot(y - 12, x - 16) + rng.normal(0, 3, (24, 32))
        levels = np.rint(255 / (1 + np.exp(-distance / 2))).astype(np.uint8)
        photo = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        for kind, pixels in (
            ("maps", levels), ("masks", (distance + rng.normal(0, 2, distance.shape) > 0) * np.uint8(255)),
            ("photos", photo),
        ):  # fmt: skip
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / kind / f"{i}.png")
    posthoc.save(posthoc.create("temperature"), folder / "cal.json")
    return folder
