"""What a Ray cluster costs on one machine: `evaluate` on logical nodes of one CPU each, against plain processes.

`python benchmarks/cluster.py` writes 20,000 maps of 96 x 96 and prints wall times, the clusters already started. It
exits with 1 where two nodes take more than 1.25 times as long as two processes. Needs `pip install 'densecal[ray]'`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

MOST = 1.25
SIZE = 96


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
        yield cluster.address
    finally:
        cluster.shutdown()


def seconds(folders: list[str], *options: str) -> float:
    """Return the wall time of the command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "densecal.cli", "evaluate", *folders, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=2, help="Runs of two processes and two nodes, taken in turn.")
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    times: dict[str, list[float]] = {}

    def note(what: str, wall: float) -> None:
        times.setdefault(what, []).append(wall)
        print(f"{what}: {wall:.1f} s, {given.maps / wall:.0f} maps per second", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        folders = write_maps(Path(folder), given.maps)
        with cluster_of(2) as address:
            for _ in range(given.rounds):
                note("2 processes", seconds(folders, "--workers", "2"))
                note("2 nodes", seconds(folders, "--engine", "ray", "--address", address))
        for nodes in (1, 4):
            with cluster_of(nodes) as address:
                note(f"{nodes} nodes", seconds(folders, "--engine", "ray", "--address", address))
    ratio = min(times["2 nodes"]) / min(times["2 processes"])
    print(f"2 nodes take {ratio:.2f} times as long as 2 processes; expected at most {MOST}")
    return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
