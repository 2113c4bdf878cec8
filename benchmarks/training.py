"""What methods and the packed cache cost in training, and what prediction gains, with both sides interleaved.

Prints two tables. Exits with 1 if a goal of the first is missed by more than 20 per cent of what it allows, or if a
method of the second takes more than its limit. Run it with `make bench`.
"""

import copy
import gc
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from densecal.data import open_source, pack
from densecal.data.scenes import Scenes, generate, write
from densecal.kernels.graphs import EAGER_BATCHES
from densecal.methods import names, options
from densecal.models import build
from densecal.prediction.predictor import prepare_model
from densecal.training.config import load_config
from densecal.training.loop import train_epoch, validate
from densecal.training.run import assemble, create_fabric
from densecal.training.samples import ArraySamples, Data

ROUNDS = 12


class Setting(NamedTuple):
    """What is trained: a network, images for the first table, and images per block and rounds for the second."""

    what: str
    size: int
    batch: int
    network: list[str]
    images: int
    block: int
    rounds: int


# A GPU runs asynchronously, so a small batch or a block of one step would measure Python instead.
LITE2 = ["model.encoder=tf_efficientnet_lite2", "model.options={}"]
SCENES = 64
"""Number of different scenes; more images repeat them."""
SETTINGS = {
    "cpu": Setting("the demo's U-Net", 128, 8, [], 32, 8, 21),
    "cuda": Setting("the U-Net of `sod`", 256, 64, LITE2, 640, 640, 7),
}
LIMIT = 1.10
# Work of the method itself, which a small network cannot hide.
UNLIMITED = {
    "mmce": "draws a random key for every pixel and takes the largest, to sample correct and wrong pixels",
    "mixup": "blends the images and masks of the batch before the network sees them",
}


def assemble_run(data, fabric, name, *further):
    """Return a run of a method, past its warm-up, with further settings."""
    setting = SETTINGS[fabric.device.type]
    past_warmup = ["method.warmup=0"] if "warmup" in options(name) else []
    others = [f"data.size={setting.size}", f"optim.batch={setting.batch}", "data.augment=paper", *setting.network]
    run = assemble(load_config("demo", [f"method.name={name}", *past_warmup, *others, *further]), fabric, data)
    run.method.after_epoch(validate(run))
    return run


def seconds(device, work, *given):
    """Return the seconds of some work. A GPU is idle before and after."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work(*given)
    wait()
    return time.perf_counter() - start


def interleaved_ratio(first, second, rounds=ROUNDS):
    """Return the median of time(second) / time(first) over alternating epochs, in an order swapped every round."""
    for run in (first, second):
        train_epoch(run, 0)
    ratios = []
    for i in range(rounds):
        order = (first, second) if i % 2 else (second, first)
        times = {id(run): seconds(run.fabric.device, train_epoch, run, 1 + i) for run in order}
        ratios.append(times[id(second)] / times[id(first)])
    return statistics.median(ratios)


@torch.inference_mode()
def preparation_gain(device, batch):
    """Return the speed of prediction with a prepared network over that with an unprepared one."""
    plain = build("unet", "tf_efficientnet_lite2").to(device).to(memory_format=torch.channels_last).eval()
    networks = plain, prepare_model(copy.deepcopy(plain), device, graphs=True)
    images = torch.rand(batch, 3, 256, 256, device=device).to(memory_format=torch.channels_last)
    ratios = []
    unsettled = EAGER_BATCHES + 1
    for _ in range(unsettled + ROUNDS):
        before, after = (seconds(device, network, images) for network in networks)
        ratios.append(before / after)
    return statistics.median(ratios[unsettled:])


def step_table(data, fabric, rounds):
    """Return a table of the time of every method's step over that of bce, and the methods above the limit."""
    bce = assemble_run(data, fabric, "bce")
    measured = {}
    for name in names():
        if name != "bce":
            measured[name] = interleaved_ratio(bce, assemble_run(data, fabric, name), rounds)
            gc.collect()  # a GPU holds the activations of every network that is alive
    slow = [name for name, value in measured.items() if value > LIMIT and name not in UNLIMITED]
    table = Table(title="Time of a step over a bce step")
    for heading in ("method", "measured", "limit"):
        table.add_column(heading)
    for name, value in sorted(measured.items(), key=lambda item: item[1]):
        table.add_row(name, f"{value:.3f}" + " (above)" * (name in slow), "*" if name in UNLIMITED else f"{LIMIT:.2f}")
    return table, slow


def main():
    warnings.simplefilter("ignore")
    fabric = create_fabric(load_config("demo"))
    setting = SETTINGS[fabric.device.type]
    size = setting.size
    drawn = generate(min(SCENES, setting.images), size, seed=0)
    which = np.arange(setting.images) % SCENES
    scenes = Scenes(drawn.images[which], drawn.masks[which], drawn.probability[which])
    files = [f"{i:05}" for i in range(setting.images)]

    def samples(count):
        return ArraySamples(files[:count], scenes.images[:count], scenes.masks[:count])

    data = Data(samples(setting.images), samples(setting.batch), [])
    bce = assemble_run(data, fabric, "bce")
    sod = interleaved_ratio(
        bce, assemble_run(data, fabric, "bce", "data.informationless=0.1", "optim.ema=0.998", "optim.ema_start=0.05")
    )
    print(f"a step of `sod` over one of bce: {sod:.3f}", flush=True)
    step = interleaved_ratio(bce, assemble_run(data, fabric, "aslp-mc"))
    print(f"a step of aslp-mc over one of bce: {step:.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write(scenes, Path(folder) / "scenes")
        source = open_source(Path(folder) / "scenes")
        packed = pack(source, source.names, size, Path(folder) / "cache")
        assert np.array_equal(packed.masks, scenes.masks)
        from_cache = replace(bce, data=Data(packed, data.validation, []))
        speed = 1 / interleaved_ratio(bce, from_cache)
    gain = preparation_gain(fabric.device, setting.batch)
    rows = [
        ("time of an aslp-mc step over a bce step", step, 1.02, step <= 1.02, step > 1.024),
        (
            "time of a bce step with informationless images and averaged weights, as in `sod`, over one without",
            sod,
            1.15,
            sod <= 1.15,
            sod > 1.18,
        ),
        ("loop speed from the packed cache over tensors in memory", speed, 0.95, speed >= 0.95, speed < 0.94),
        ("speed of prediction with a prepared network over an unprepared one", gain, 1.1, gain >= 1.1, gain < 1.08),
    ]
    table = Table(title=f"Training {setting.what} at {size} x {size} on {fabric.device.type}")
    for heading in ("what", "measured", "goal"):
        table.add_column(heading)
    for what, value, goal, reached, _ in rows:
        table.add_row(what, f"{value:.3f}" + ("" if reached else " (missed)"), str(goal))
    console = Console(width=120)
    console.print(table)
    steps, slow = step_table(Data(samples(setting.block), samples(setting.batch), []), fabric, setting.rounds)
    console.print(steps)
    for name, why in UNLIMITED.items():
        console.print(f"* no limit: {name} {why}")
    sys.exit(1 if slow or any(failed for *_, failed in rows) else 0)


if __name__ == "__main__":
    main()
