"""Training on a busy machine: the speed of the demo's U-Net, quiet and with one core taken by another process.

Compares the default, which trains with a thread for each core that others leave free, with a thread for every core.
Both are measured in turn, in one run, once the default has noticed the other process. Prints a table. Exits with 1 if
the busy speed is below 55 per cent of the quiet one, or if the quiet one is slower than with a thread for every core.
Run it with `python benchmarks/busy.py` on a machine with nothing else to do; it takes two minutes.
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

ROUNDS = 5
SECONDS = 2.0
"""Least length of a measurement."""
SETTLE = 8.0
"""How long training runs before a measurement, so that the number of threads can follow the load."""
IMAGES = 24
BUSY_GOAL = 0.55
QUIET_GOAL = 0.97
"""Share of the speed with a thread for every core, which is the same but for noise."""
VARIABLES = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT", "KMP_LIBRARY", "OMP_NUM_THREADS")
BUSY_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""
"""Ends with its parent, however that ends."""


def train(threads: str) -> None:
    """A process that trains whenever it reads a number of seconds, and prints images per second and threads."""
    import torch

    from densecal.training.config import load_config
    from densecal.training.loop import train_epoch
    from densecal.training.run import assemble, create_fabric
    from densecal.training.samples import open_data
    from densecal.training.threads import choose_threads

    sizes = [f"data.scenes.train={IMAGES}", "data.scenes.validation=4"]
    config = load_config("demo", [*sizes, "engine.accelerator=cpu", f"engine.threads={threads}"])
    fabric = create_fabric(config)
    run = assemble(config, fabric, open_data(config.data))
    run.threads = choose_threads(config.engine, fabric.device)
    train_epoch(run, 0)
    print("ready", flush=True)
    for epoch, line in enumerate(sys.stdin, start=1):
        images, start = 0, time.perf_counter()
        while time.perf_counter() - start < float(line):
            train_epoch(run, epoch)
            images += IMAGES
        print(images / (time.perf_counter() - start), torch.get_num_threads(), flush=True)


class Trainer:
    """A process that trains on request."""

    def __init__(self, threads: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "train", threads], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def train(self, seconds: float) -> tuple[float, int]:
        """Return images per second and the number of threads at the end."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        speed, threads = self._answer().split()
        return float(speed), int(threads)

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


def measure(trainers: dict[str, Trainer], busy: subprocess.Popen) -> dict[tuple[str, str], list[tuple[float, int]]]:
    """Return speeds and numbers of threads by trainer and state of the machine."""
    measured: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for number in range(ROUNDS):
        for state, request in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
            busy.send_signal(request)
            trainers["auto"].train(SETTLE)
            for name in sorted(trainers, reverse=number % 2 == 1):
                measured.setdefault((name, state), []).append(trainers[name].train(SECONDS))
    return measured


def main() -> None:
    """Measure, print the table, and fail if a goal is missed."""
    load = foreign_load()
    trainers = {threads: Trainer(threads) for threads in ("auto", str(cores()))}
    busy = subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(max(os.sched_getaffinity(0)))])
    try:
        measured = measure(trainers, busy)
    finally:
        for process in (busy, *(trainer.process for trainer in trainers.values())):
            process.kill()
    table = Table(title=f"Images per second (threads), medians of {ROUNDS} rounds, {cores()} cores")
    for column in ("engine.threads", "quiet", "one core busy", "busy / quiet"):
        table.add_column(column, justify="left" if column == "engine.threads" else "right")
    speeds: dict[tuple[str, str], float] = {}
    for name in trainers:
        shown = []
        for state in ("quiet", "busy"):
            speeds[name, state] = statistics.median(speed for speed, _ in measured[name, state])
            threads = statistics.median_low(number for _, number in measured[name, state])
            shown.append(f"{speeds[name, state]:.1f} ({threads})")
        table.add_row(name, *shown, f"{100 * speeds[name, 'busy'] / speeds[name, 'quiet']:.0f} %")
    Console(width=100).print(table)
    # rounds are compared with each other, so that other load on the machine cancels out
    pairs = zip(measured["auto", "quiet"], measured[str(cores()), "quiet"], strict=True)
    quiet = statistics.median(own[0] / other[0] for own, other in pairs)
    taken = speeds["auto", "busy"] / speeds["auto", "quiet"]
    print(f"auto, quiet: {100 * quiet:.0f} % of the speed of {cores()} threads (goal: {100 * QUIET_GOAL:.0f} %)")
    print(f"auto, one core busy: {100 * taken:.0f} % of the quiet speed (goal: {100 * BUSY_GOAL:.0f} %)")
    if load > 0.1:
        print(f"Other processes used {100 * load:.0f} % of this machine: these are not the figures of a quiet one.")
    sys.exit(0 if taken >= BUSY_GOAL and quiet >= QUIET_GOAL else 1)


if __name__ == "__main__":
    train(sys.argv[2]) if sys.argv[1:2] == ["train"] else main()
