"""Training on a busy machine: the speed of the demo's U-Net, quiet and with one core taken by another process.

Compares how torch's threads wait by default, which is what densecal uses, with passive waiting. Both are measured in
turn, in one run. Prints a table. Exits with 1 if the busy speed is below 55 per cent of the quiet one. Run it with
`python benchmarks/busy.py` on a machine with nothing else to do.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from densecal.runtime.cores import cores

ROUNDS = 9
SECONDS = 1.5
"""Length of a measurement, at least."""
IMAGES = 24
BUSY_GOAL = 0.55
VARIABLES = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT", "KMP_LIBRARY", "OMP_NUM_THREADS")
BUSY_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""
"""Ends with its parent, however that ends."""


def train() -> None:
    """A process that trains whenever it reads a number of seconds, and prints images per second."""
    import torch

    from densecal.training.config import load_config
    from densecal.training.loop import train_epoch
    from densecal.training.run import assemble, create_fabric, limit_threads
    from densecal.training.samples import open_data

    overrides = [f"data.scenes.train={IMAGES}", "data.scenes.validation=4", "engine.accelerator=cpu"]
    config = load_config("demo", overrides)
    run = assemble(config, create_fabric(config), open_data(config.data))
    limit_threads(1)
    train_epoch(run, 0)
    print(torch.get_num_threads(), flush=True)
    for epoch, line in enumerate(sys.stdin, start=1):
        images, start = 0, time.perf_counter()
        while time.perf_counter() - start < float(line):
            train_epoch(run, epoch)
            images += IMAGES
        print(images / (time.perf_counter() - start), flush=True)


class Trainer:
    """A process with its own environment, which trains when told to."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "train"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.threads = int(self._answer())

    def speed(self) -> float:
        assert self.process.stdin is not None
        print(SECONDS, file=self.process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def foreign_load() -> float:
    """Return the share of the machine's cores that others use while this program sleeps for a second."""

    def idle_and_all() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return numbers[3] + numbers[4], sum(numbers)

    idle, total = idle_and_all()
    time.sleep(1)
    idle_after, total_after = idle_and_all()
    return 1 - (idle_after - idle) / (total_after - total)


def measure(trainers: dict[str, Trainer], busy: subprocess.Popen) -> dict[tuple[str, str], list[float]]:
    speeds: dict[tuple[str, str], list[float]] = {}
    for number in range(ROUNDS):
        for state, request in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
            busy.send_signal(request)
            time.sleep(0.1)
            for name in sorted(trainers, reverse=number % 2 == 1):
                speeds.setdefault((name, state), []).append(trainers[name].speed())
    return speeds


def main() -> None:
    """Measure, print the table, and fail if a goal is missed."""
    load = foreign_load()
    default = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    passive = {**default, "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    trainers = {"default": Trainer(default), "passive": Trainer(passive)}
    core = max(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(core)])
    try:
        speeds = measure(trainers, busy)
    finally:
        for process in (busy, *(trainer.process for trainer in trainers.values())):
            process.kill()
    table = Table(title=f"Images per second, medians of {ROUNDS} rounds, {cores()} cores")
    for column in ("waiting", "threads", "quiet", "one core busy", "busy / quiet"):
        table.add_column(column, justify="left" if column == "waiting" else "right")
    ratios = {}
    for name, trainer in trainers.items():
        quiet, taken = (statistics.median(speeds[name, state]) for state in ("quiet", "busy"))
        ratios[name] = taken / quiet
        table.add_row(name, str(trainer.threads), f"{quiet:.1f}", f"{taken:.1f}", f"{100 * ratios[name]:.0f} %")
    Console(width=100).print(table)
    # neighbours in time, so that what else the machine does cancels out
    pairs = zip(speeds["passive", "quiet"], speeds["default", "quiet"], strict=True)
    quiet_ratio = statistics.median(own / other for own, other in pairs)
    print(f"passive waiting, quiet: {100 * quiet_ratio:.0f} % of the default's speed")
    print(f"default, one core busy: {100 * ratios['default']:.0f} % of the quiet speed (goal: {100 * BUSY_GOAL:.0f} %)")
    if load > 0.1:
        print(f"Other processes used {100 * load:.0f} % of this machine: these are not the figures of a quiet one.")
    sys.exit(0 if ratios["default"] >= BUSY_GOAL else 1)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
