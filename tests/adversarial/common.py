"""A small valid setting for every command, to be damaged by the tests of this folder."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from densecal import posthoc
from tests.running import run

SECONDS = 60


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Fail a test that waits forever."""

    def stop(*_: object) -> None:
        raise AssertionError(f"not finished after {SECONDS} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def densecal(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Run a command in a folder; returns (exit code, stdout, stderr)."""
    with contextlib.chdir(folder), time_limit():
        return run(*arguments)


def assert_one_line(result: tuple[int, str, str], *words: str) -> None:
    """Check that the command refused its input: exit code 2, and one line that says what and where."""
    code, _, errors = result
    assert code == 2, errors
    lines = [line for line in errors.splitlines() if line]
    assert len(lines) == 1, errors
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
