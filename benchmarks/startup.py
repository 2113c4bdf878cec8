"""How fast the command starts: seconds of short commands and of their imports, with limits that fail.

    python benchmarks/startup.py

Every command is started several times and the fastest counts, because other work on the machine can only slow it down.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

RUNS = 7
LIMITS = {"--version": 0.15, "--help": 0.15, "evaluate, ten maps": 1.0}
"""Seconds on two quiet cores."""


def write_maps(folder: Path, images: int = 10, shape: tuple[int, int] = (300, 400)) -> None:
    for name in ("maps", "masks"):
        (folder / name).mkdir()
    rng = np.random.default_rng(0)
    for i in range(images):
        p = rng.random((shape[0] // 20, shape[1] // 20)).repeat(20, 0).repeat(20, 1)
        Image.fromarray(np.rint(255 * p).astype(np.uint8)).save(folder / f"maps/{i}.png")
        Image.fromarray(rng.random(shape) < p).save(folder / f"masks/{i}.png")


def fastest(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the shortest wall time and the shortest CPU time, in seconds."""
    walls, processors = [], []
    for _ in range(RUNS):
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        after = os.times()
        walls.append(time.perf_counter() - start)
        used = after.children_user + after.children_system - before.children_user - before.children_system
        processors.append(used)
    return min(walls), min(processors)


def slowest_imports(arguments: list[str], folder: Path, count: int = 4) -> str:
    """Return the packages whose imports take longest, by -X importtime, with their milliseconds."""
    command = [sys.executable, "-X", "importtime", "-m", "densecal", *arguments]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    own: dict[str, int] = {}
    for microseconds, module in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", text, flags=re.MULTILINE):
        package = module.partition(".")[0]
        own[package] = own.get(package, 0) + int(microseconds)
    largest = sorted(own.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{package} {microseconds / 1000:.0f}" for package, microseconds in largest)


def main() -> int:
    commands = {
        "--version": ["--version"],
        "--help": ["--help"],
        "evaluate, ten maps": ["evaluate", "maps", "masks", "--json", "scores.json", "--force"],
    }
    late = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_maps(folder)
        idle = fastest([sys.executable, "-c", "pass"], folder)
        print(f"{'command':<20} {'seconds':>8} {'of the CPU':>11} {'limit':>6}   imports, ms")
        print(f"{'python -c pass':<20} {idle[0]:>8.3f} {idle[1]:>11.2f}")
        for label, arguments in commands.items():
            wall, processor = fastest([sys.executable, "-m", "densecal", *arguments], folder)
            late += wall > LIMITS[label]
            imports = slowest_imports(arguments, folder)
            print(f"{label:<20} {wall:>8.3f} {processor:>11.2f} {LIMITS[label]:>6.2f}   {imports}")
    print(f"{late} of {len(commands)} are slower than their limit" if late else "all are within their limits")
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
