"""What the method and the packed cache cost in training, both sides interleaved in one run.

Prints a table and exits with 1 where a goal is missed by more than 20 per cent of what it allows (`make bench`).
"""

import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from densecal.data import open_source, pack
from densecal.data.scenes import generate, write
from densecal.training.config import load_config
from densecal.training.feed import ArraySamples, Data
from densecal.training.loop import _assemble, train_epoch, validate

SIZE, IMAGES, ROUNDS = 128, 32, 12


def runs(data, fabric, names):
    """One run a method, equal but for it, past its warm-up."""
    made = []
    for name in names:
        options = ["method.warmup=0"] if name != "bce" else []
        config = load_config(
            "demo", [f"method.name={name}", *options, f"data.size={SIZE}", "optim.batch=8", "data.augment=paper"]
        )
        run = _assemble(config, fabric, data)
        run.method.after_epoch(validate(run))
        made.append(run)
    return made


def interleaved(first, second, rounds=ROUNDS):
    """Median of time(second) / time(first) over alternating epochs; the order is swapped every round."""
    for run in (first, second):
        train_epoch(run, 0)
    ratios = []
    for i in range(rounds):
        times = {}
        for run in (first, second) if i % 2 else (second, first):
            start = time.perf_counter()
            train_epoch(run, 1 + i)
            times[id(run)] = time.perf_counter() - start
        ratios.append(times[id(second)] / times[id(first)])
    return statistics.median(ratios)


def main():
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(accelerator=device, devices=1)
    scenes = generate(IMAGES, SIZE, seed=0)
    names = [f"{i:05}" for i in range(IMAGES)]
    in_memory = ArraySamples(names, scenes.images, scenes.masks)
    data = Data(in_memory, ArraySamples(names[:8], scenes.images[:8], scenes.masks[:8]), [])
    bce, aslp = runs(data, fabric, ["bce", "aslp-mc"])
    step = interleaved(bce, aslp)
    with tempfile.TemporaryDirectory() as folder:
        write(scenes, Path(folder) / "scenes")
        source = open_source(Path(folder) / "scenes")
        packed = pack(source, source.names, SIZE, Path(folder) / "cache")
        assert np.array_equal(packed.masks, scenes.masks)
        from_cache = replace(bce, data=Data(packed, data.validation, []))
        speed = 1 / interleaved(bce, from_cache)
    rows = [
        ("time of an aslp-mc step over a bce step", step, 1.02, step <= 1.02, step > 1.024),
        ("loop speed from the packed cache over tensors in memory", speed, 0.95, speed >= 0.95, speed < 0.94),
    ]
    table = Table(title=f"Training a small U-Net at {SIZE} x {SIZE} on {device}")
    for heading in ("what", "measured", "goal"):
        table.add_column(heading)
    for what, value, goal, reached, _ in rows:
        table.add_row(what, f"{value:.3f}" + ("" if reached else " (missed)"), str(goal))
    Console(width=120).print(table)
    sys.exit(1 if any(failed for *_, failed in rows) else 0)


if __name__ == "__main__":
    main()
