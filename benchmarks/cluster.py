"""What a Ray cluster costs on one machine: `evaluate` on logical nodes of one CPU each, against plain processes.

`python benchmarks/cluster.py` writes 20,000 maps of 96 x 96 and prints wall times and CPU times, the clusters already
started. Two nodes and two processes are run in turn. It exits with 1 where the median wall time of two nodes is more
than 1.25 times that of two processes. Needs Linux and `pip install 'densecal[ray]'`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from scipy.ndimage import gaussian_filter

MOST = 1.25
SIZE = 96
STARTING = 10.0  # seconds in which the agents of the nodes are still starting
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent ended stay below this one, and are counted


def write_maps(root: Path, count: int) -> list[str]:
    """Write maps and masks, and return their folders."""
    rng = np.random.default_rng(0)
    smooth = [1 / (1 + np.exp(-gaussian_filter(rng.normal(size=(SIZE, SIZE)), 4) * 30 + 1)) for _ in range(50)]
    folders = [root / "maps", root / "masks"]
    for folder in folders:
        folder.mkdir()
    for i in range(count):
        p = np.roll(smooth[i % 50], (i % SIZE, i // 7 % SIZE), (0, 1))
        y = rng.random(p.shape) < p
        for folder, image in zip(folders, ((p * 255).round().astype(np.uint8), y), strict=True):
            Image.fromarray(image).save(folder / f"im{i:05}.png", compress_level=1)
    return [str(folder) for folder in folders]


@contextmanager
def cluster_of(nodes: int) -> Iterator[str]:
    """Start a cluster of nodes with one CPU each, and yield its address."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        time.sleep(STARTING)
        yield cluster.address
    finally:
        cluster.shutdown()


class CpuClock(threading.Thread):
    """CPU seconds of all processes below this one, read twice a second, because Ray's workers end unseen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lock, self.used = threading.Lock(), {}

    def read(self) -> float:
        """Return the CPU seconds of all processes so far, also of those that have ended."""
        with self.lock:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self.used[process.pid, process.create_time()] = times.user + times.system
            return sum(self.used.values())

    def run(self) -> None:
        """Read the times until the benchmark ends."""
        while True:
            self.read()
            time.sleep(0.5)


def evaluate(folders: list[str], options: list[str], clock: CpuClock) -> tuple[float, float]:
    """Return the wall time and the CPU time of the command, with that of the cluster meanwhile."""
    used, start = clock.read(), time.perf_counter()
    command = [sys.executable, "-m", "densecal.cli", "evaluate", *folders, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    return wall, clock.read() - used


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=5, help="Runs of two processes and two nodes, taken in turn.")
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    clock = CpuClock()
    clock.start()
    times: dict[str, list[tuple[float, float]]] = {}

    def note(what: str, *options: str) -> None:
        wall, cpu = evaluate(folders, list(options), clock)
        times.setdefault(what, []).append((wall, cpu))
        print(f"{what}: {wall:.1f} s, {given.maps / wall:.0f} maps per second, {cpu:.1f} s of CPU", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        folders = write_maps(Path(folder), given.maps)
        with cluster_of(2) as address:
            runs = {"2 processes": ["--workers", "2"], "2 nodes": ["--engine", "ray", "--address", address]}
            for i in range(given.rounds):
                for what in list(runs)[:: 1 if i % 2 else -1]:
                    note(what, *runs[what])
        for nodes in (1, 4):
            with cluster_of(nodes) as address:
                note(f"{nodes} nodes", "--engine", "ray", "--address", address)
    (process_wall, process_cpu), (node_wall, node_cpu) = (
        map(statistics.median, zip(*times[what], strict=True)) for what in ("2 processes", "2 nodes")
    )
    ratio = node_wall / process_wall
    print(f"medians: 2 processes {process_wall:.1f} s and {process_cpu:.1f} s of CPU, ", end="")
    print(f"2 nodes {node_wall:.1f} s and {node_cpu:.1f} s of CPU")
    print(f"2 nodes take {ratio:.2f} times as long as 2 processes ({node_cpu / process_cpu:.2f} in CPU time); ", end="")
    print(f"expected at most {MOST}")
    return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
