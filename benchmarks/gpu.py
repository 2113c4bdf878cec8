"""Images per second in training and evaluation on a CUDA GPU, written as JSON: the figures of docs/performance.md.

    python benchmarks/gpu.py --out measured.json                  # everything
    python benchmarks/gpu.py train-unet-256 --profile             # one entry, and the kernels that take its time

    python benchmarks/gpu.py --against compile --out measured.json   # each training entry beside torch.compile

Synthetic images, held on the device as training does it; the whole step counts: augmentation, method, optimizer.
`--set engine.kernels=false` and the like change the training entries, `engine.graphs=false` all of them. `--against
compile` trains every network a second time with `torch.compile(mode="reduce-overhead")` in place of our kernels and
graphs, epochs of both interleaved, and adds the ratio. `--tiny` runs on small images anywhere.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from densecal.evaluation.model import ImageSet, evaluate_model
from densecal.metrics import CalibrationMeter
from densecal.models import build
from densecal.prediction.predictor import prepare_model
from densecal.training.config import load_config
from densecal.training.loop import train_epoch, validate
from densecal.training.run import assemble, create_fabric
from densecal.training.samples import ArraySamples, Data

# architecture, encoder, size, and steps per epoch: as many as DUTS-TR has where that does not take long
TRAINED = {
    "train-unet-256": ("unet", "tf_efficientnet_lite2", 256, 150),
    "train-unet-lite2-384": ("unet", "tf_efficientnet_lite2", 384, 48),
    "train-unet-384": ("unet", "resnet50", 384, 48),
    "train-paper-unet-384": ("paper-unet", "resnet50", 384, 24),
}
EVALUATED = {"evaluate-256": 256, "evaluate-384": 384}
SHAPES = [(300, 400), (400, 300), (267, 400), (400, 400)]
"""Sizes of masks, as of photographs."""
PROFILED_STEPS = 8


class Bench:
    """What all entries share.

    Args:
        device: Where to measure.
        tiny: Small images and batches, to check that everything runs.
        overrides: Further settings of the training runs.
        profiled: Whether to print where the time goes.
    """

    def __init__(self, device: torch.device, tiny: bool, overrides: list[str], profiled: bool) -> None:
        self.device, self.tiny, self.overrides, self.profiled = device, tiny, overrides, profiled
        self.batch = 4 if tiny else 64

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rate(self, images: int, work) -> float:
        """Return the images per second of some work, on a device that is idle before and after."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return images / (time.perf_counter() - start)

    def show(self, work) -> None:
        """Print the kernels that take the time of some work."""
        if not self.profiled:
            return
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        with profile(activities=activities) as profiler:
            work()
            self.wait()
        key = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=60), flush=True)
        if self.device.type == "cuda":
            print(busy(profiler), flush=True)

    def train(self, arch: str, encoder: str, size: int, steps: int) -> dict:
        size, steps = (64, 3) if self.tiny else (size, steps)
        data = Data(samples(self.batch * steps, size), samples(4 * self.batch, size), [])
        run, first = self.start_run(arch, encoder, size, data)
        epoch = 1 + int(getattr(run.method, "warmup", 0))  # past the warm-up of a method's rule
        rates = {
            "first_epoch_seconds": first,
            "train_images_per_second": self.rate(len(data.train), lambda: train_epoch(run, epoch)),
            "validate_images_per_second": self.rate(len(data.validation), lambda: validate(run)),
        }
        run.data = Data(samples(self.batch * PROFILED_STEPS, size), data.validation, [])
        run.data.train.keep_on_device(self.device)
        self.show(lambda: train_epoch(run, epoch + 1))
        return rates

    def start_run(self, arch: str, encoder: str, size: int, data: Data, *, compiled: bool = False):
        """Return a run after its first epoch, and the seconds that it took."""
        plain = ["engine.kernels=false", "engine.graphs=false"] if compiled else []
        config = load_config(
            "demo",
            [
                f"data.size={size}", "data.augment=paper", f"model.arch={arch}", f"model.encoder={encoder}",
                "model.weights=null", "model.options={}", f"optim.batch={self.batch}", *self.overrides, *plain,
            ],
        )  # fmt: skip
        start = time.perf_counter()
        run = assemble(config, create_fabric(config), data)
        if compiled:
            # batches come in two sizes: one dynamic graph for both takes minutes to compile
            run.network.compile(mode="reduce-overhead", dynamic=False)
        train_epoch(run, 0)
        self.wait()
        first = time.perf_counter() - start
        run.method.after_epoch(validate(run))
        return run, first

    def against_compile(self, arch: str, encoder: str, size: int, steps: int) -> dict:
        """Return images per second of training by our kernels and by `torch.compile`, the best of three epochs."""
        size, steps = (64, 3) if self.tiny else (size, steps)
        data = Data(samples(self.batch * steps, size), samples(4 * self.batch, size), [])
        kinds = {"ours": False, "compile": True}
        runs = {name: self.start_run(arch, encoder, size, data, compiled=kind) for name, kind in kinds.items()}
        rates = dict.fromkeys(kinds, 0.0)
        for epoch in range(1, 4):
            for name, (run, _) in runs.items():
                rate = self.rate(len(data.train), lambda run=run, epoch=epoch: train_epoch(run, epoch))
                rates[name] = max(rates[name], rate)
        speeds = {f"{name}_images_per_second": rate for name, rate in rates.items()}
        starts = {f"{name}_first_epoch_seconds": first for name, (_, first) in runs.items()}
        return speeds | starts | {"ours_over_compile": rates["ours"] / rates["compile"]}

    def evaluate(self, size: int) -> dict:
        size, count = (64, 12) if self.tiny else (size, 1024)  # ECSSD has a thousand
        graphs = load_config("demo", self.overrides).engine.graphs
        network = prepare_model(build("unet", "tf_efficientnet_lite2", None, 1), self.device, graphs)

        @torch.inference_mode()
        def logits(x):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                return network(x.contiguous(memory_format=torch.channels_last))

        images = torch.rand(self.batch, 3, size, size, device=self.device)
        z = logits(images).float()
        y = (torch.rand_like(z) < 0.3).float()
        meter = CalibrationMeter(boundary=False)
        rates = {}
        for _ in range(2):  # the first round builds the kernels
            rates["forward_images_per_second"] = self.rate(4 * self.batch, lambda: [logits(images) for _ in range(4)])
            rates["meter_images_per_second"] = self.rate(
                4 * self.batch, lambda: [meter.update(logits=z, masks=y) for _ in range(4)]
            )
        rng = np.random.default_rng(0)
        pixels, names = noise(count, size), [str(i) for i in range(count)]
        for label, shapes in (("network", [(size, size)]), ("own", [(64, 80)] if self.tiny else SHAPES)):
            masks = [(rng.random(shapes[i % len(shapes)]) < 0.3).astype(np.uint8) for i in range(count)]
            images_of = ImageSet("synthetic", names, pixels, masks)
            for _ in range(2):
                rates[f"{label}_size_images_per_second"] = self.rate(
                    count, lambda data=images_of: evaluate_model(logits, data, device=self.device, batch=self.batch)
                )
            self.show(lambda data=images_of: evaluate_model(logits, data, device=self.device, batch=self.batch))
        for _ in range(2):  # as the commands do it, in float32
            rates["own_size_float32_images_per_second"] = self.rate(
                count, lambda: evaluate_model(network, images_of, device=self.device, batch=self.batch)
            )
        return rates


def busy(profiler: profile) -> str:
    """Return for what share of the time the device was busy, and with how many kernels, in words."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    )
    total, end = 0.0, spans[0][0]
    for first, last in spans:
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return f"busy {total / 1e3:.1f} of {(end - spans[0][0]) / 1e3:.1f} ms, {len(spans)} kernels and copies"


def noise(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, size, size, 3), dtype=np.uint8)


def samples(count: int, size: int) -> ArraySamples:
    """Return images of noise, with masks of a square."""
    masks = np.zeros((count, size, size), np.uint8)
    masks[:, size // 4 : size // 2, size // 4 : size // 2] = 255
    return ArraySamples([str(i) for i in range(count)], noise(count, size), masks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "entries", nargs="*", metavar="ENTRY", help=f"default: all of {', '.join([*TRAINED, *EVALUATED])}"
    )
    parser.add_argument("--set", action="append", default=[], help="a setting of the training runs; may be repeated")
    parser.add_argument("--against", choices=["compile"], help="train beside torch.compile and compare")
    parser.add_argument("--out", type=Path, help="JSON file, written after every entry")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take the time")
    parser.add_argument("--tiny", action="store_true", help="small images and batches; runs without a GPU")
    given = parser.parse_args()
    for name in given.entries:
        if name not in (*TRAINED, *EVALUATED):
            parser.error(f"{name}: expected one of {', '.join([*TRAINED, *EVALUATED])}")
    if not (torch.cuda.is_available() or given.tiny):
        parser.error("expected a CUDA GPU, got none; --tiny runs without one")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", message=".* kernels ")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = Bench(device, given.tiny, given.set, given.profile)
    measured = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "set": given.set}
    everything = list(TRAINED) if given.against else [*TRAINED, *EVALUATED]
    for name in given.entries or everything:
        if given.against:
            if name not in TRAINED:
                parser.error(f"{name}: --against compares trainings; expected one of {', '.join(TRAINED)}")
            measured[name] = bench.against_compile(*TRAINED[name])
        elif name in TRAINED:
            measured[name] = bench.train(*TRAINED[name])
        else:
            measured[name] = bench.evaluate(EVALUATED[name])
        print(name, json.dumps(measured[name]), flush=True)
        if given.out:
            given.out.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
