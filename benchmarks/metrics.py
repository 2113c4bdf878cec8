"""Scoring speed and memory against other libraries, interleaved in one run, with one thread each.

Prints a table and exits with 1 if a goal is missed by more than 20 per cent. Run it with `make bench`.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import py_sod_metrics as sod
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from scipy.ndimage import gaussian_filter
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError, MulticlassConfusionMatrix

from densecal.evaluation.folders import CHUNK, evaluate
from densecal.evaluation.worker import Settings
from densecal.metrics import CalibrationMeter, SegmentationMeter, compiled
from densecal.metrics.confusion import ConfusionMeter, winners
from densecal.metrics.levels import level_rows
from densecal.metrics.segmentation import count_levels

torch.set_num_threads(1)
SIZE = (300, 400)
CLASSES, CLASS_SIZE = 19, (1024, 2048)
TOLERANCE = 0.8


def blob_map(seed):
    """Return an 8-bit map like a saliency map and its mask: one soft object, a confident background, some doubt."""
    rng = np.random.default_rng(seed)
    height, width = SIZE
    y, x = np.mgrid[:height, :width]
    radius = rng.uniform(40, 110)
    distance = radius - np.hypot(y - rng.uniform(80, 220), (x - rng.uniform(100, 300)) * rng.uniform(0.6, 1.4))
    z = distance / 6 + gaussian_filter(rng.normal(size=SIZE), 12) * 60
    mask = distance + gaussian_filter(rng.normal(size=SIZE), 8) * 60 > 0
    return (255 / (1 + np.exp(-z))).round().astype(np.uint8), mask


def ours(pairs, full):
    """Compute calibration and segmentation figures of decoded 8-bit maps."""
    meter, scores = CalibrationMeter(boundary=False), SegmentationMeter(full=full)
    counts = np.stack([count_levels(p, y)[0] for p, y in pairs])
    meter.sketch.add_levels(counts.sum(axis=0)[None])
    meter.sketch.add_rows(level_rows(counts, 10))
    for (p, y), own in zip(pairs, counts, strict=True):
        scores.update(p, y, own)
    return meter.compute(), scores.compute()


def peers(pairs, full):
    """Compute the same figures with torchmetrics and PySODMetrics."""
    parts = [sod.Fmeasure(), sod.Emeasure(), sod.MAE()]
    if full:
        parts += [sod.Smeasure(), sod.WeightedFmeasure()]
    else:
        error = BinaryCalibrationError(n_bins=10)
    for p, y in pairs:
        if not full:
            error.update(torch.from_numpy(p.astype(np.float32) / 255).flatten(), torch.from_numpy(y).flatten())
        for part in parts:
            part.step(pred=p, gt=y.astype(np.uint8) * 255)
    if not full:
        error.compute()
    return [part.get_results() for part in parts]


def class_map(seed):
    """Return softmax probabilities of K classes in float32 and labels, like a street scene of smooth regions."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(CLASSES, CLASS_SIZE[0] // 16, CLASS_SIZE[1] // 16)).astype(np.float32) * 3
    z = z.repeat(16, axis=1).repeat(16, axis=2) + rng.random((1, *CLASS_SIZE), dtype=np.float32)
    z[rng.integers(CLASSES)] += 2 * rng.random(CLASS_SIZE, dtype=np.float32)
    p = np.exp(z - z.max(axis=0))
    p /= p.sum(axis=0)
    wrong = rng.random(CLASS_SIZE) < 0.15
    labels = np.where(wrong, rng.integers(0, CLASSES, CLASS_SIZE), p.argmax(axis=0)).astype(np.uint8)
    return p, labels


def ours_by_class(p, y):
    """Compute top-label, top-k and class-wise calibration, Brier score, NLL and the confusion matrix."""
    meter, confusion = CalibrationMeter(num_classes=CLASSES, boundary=False), ConfusionMeter(CLASSES)
    meter.update(p[None], y[None])
    confusion.update(winners(p)[0], y, 255)
    return meter, confusion.compute()


def peers_by_class(p, y):
    """Compute top-label and class-wise ECE and the confusion matrix with torchmetrics."""
    p, y = torch.from_numpy(p)[None], torch.from_numpy(y)[None].long()
    top, matrix = MulticlassCalibrationError(CLASSES, n_bins=10), MulticlassConfusionMatrix(CLASSES)
    top.update(p, y)
    matrix.update(p, y)
    by_class = []
    for k in range(CLASSES):
        error = BinaryCalibrationError(n_bins=10)
        error.update(p[:, k], (y == k).long())
        by_class.append(error.compute())
    return top.compute(), matrix.compute(), by_class


def ratio(first, second, rounds):
    """Return the medians over rounds of time(second) / time(first), run alternately, and of time(first)."""
    first(), second()
    ratios, times = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        ratios.append((time.perf_counter() - middle) / (middle - start))
        times.append(middle - start)
    return statistics.median(ratios), statistics.median(times)


def decode(pairs):
    for pair in pairs:
        for path in pair:
            np.asarray(Image.open(path))


def decode_all(pairs, pool):
    chunks = [pairs[i : i + CHUNK] for i in range(0, len(pairs), CHUNK)]
    list(pool.map(decode, chunks))


def write_pairs(folder, count):
    """Write PNG pairs: 50 different ones, linked under many names."""
    for part in ("maps", "masks"):
        (folder / part).mkdir()
    for i in range(count):
        if i < 50:
            p, y = blob_map(i)
            Image.fromarray(p).save(folder / "maps" / f"{i:04}.png")
            Image.fromarray(y).save(folder / "masks" / f"{i:04}.png")
        else:
            for part in ("maps", "masks"):
                os.link(folder / part / f"{i % 50:04}.png", folder / part / f"{i:04}.png")
    return [(folder / "maps" / f"{i:04}.png", folder / "masks" / f"{i:04}.png") for i in range(count)]


def command_speed(folder, rounds=5):
    """Return the decoding time over that of `evaluate --metrics fast` and `full`, two workers each, without start-up.

    The three take turns.
    """
    pairs = write_pairs(folder, 1000)
    ratios = []
    context = get_context("forkserver")
    context.set_forkserver_preload(["densecal.evaluation.worker"])
    for _ in range(rounds):
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            decode_all(pairs[:64], pool)
            start = time.perf_counter()
            decode_all(pairs, pool)
            decoding = time.perf_counter() - start
        ratios.append([decoding / evaluation_seconds(folder, Settings(full=full)) for full in (False, True)])
    return [statistics.median(column) for column in zip(*ratios, strict=True)]


def evaluation_seconds(folder, settings):
    """Return the time of an evaluation after its first chunk, when start-up is over, scaled to all pairs."""
    stamps = []
    evaluate(
        folder / "maps", folder / "masks", settings=settings, workers=2,
        progress=lambda _, done, total: stamps.append((done, time.perf_counter())),
    )  # fmt: skip
    (first, begin), (last, end) = stamps[0], stamps[-1]
    return (end - begin) * last / (last - first)


def peak_memory(folder, count):
    """Return the peak resident memory in MiB of an evaluation of `count` pairs, in a separate process."""
    pairs_folder = folder / f"n{count}"
    pairs_folder.mkdir()
    write_pairs(pairs_folder, count)
    code = (
        "import sys, resource\nfrom pathlib import Path\nfrom densecal.evaluation.folders import evaluate\n"
        "root = Path(sys.argv[1])\nevaluate(root / 'maps', root / 'masks', workers=1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(pairs_folder)], check=True, capture_output=True, text=True)
    return float(out.stdout)


def class_speed():
    """Return by how much a map of K classes is counted faster than by torchmetrics, and the seconds it takes."""
    p, y = class_map(0)
    return ratio(lambda: ours_by_class(p, y), lambda: peers_by_class(p, y), 3)


def class_memory(folder, count):
    """Return the peak resident memory in MiB of an evaluation of `count` maps of K classes, in a separate process."""
    root = folder / f"k{count}"
    for part in ("maps", "masks"):
        (root / part).mkdir(parents=True)
    for i in range(count):
        p, y = class_map(i)
        np.save(root / "maps" / f"{i}.npy", p)
        Image.fromarray(y).save(root / "masks" / f"{i}.png")
    code = (
        "import sys, resource\nfrom pathlib import Path\nfrom densecal.evaluation.folders import evaluate\n"
        "from densecal.evaluation.worker import Settings\nroot = Path(sys.argv[1])\n"
        f"evaluate(root / 'maps', root / 'masks', settings=Settings(classes={CLASSES}, full=False))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(root)], check=True, capture_output=True, text=True)
    return float(out.stdout)


def main():
    if compiled.native is None:
        print("the compiled extension is missing: NumPy is measured")
    pairs = [blob_map(seed) for seed in range(100)]
    rows = []
    speed, seconds = ratio(lambda: ours(pairs, False), lambda: peers(pairs, False), 5)
    rows.append(("calibration + F + E + MAE, times faster than torchmetrics + PySODMetrics", speed, 15, "at least"))
    fast_ms = 1000 * seconds / len(pairs)
    speed, seconds = ratio(lambda: ours(pairs, True), lambda: peers(pairs, True), 3)
    rows.append(("full set with S and weighted F, times faster than PySODMetrics' five", speed, 10, "at least"))
    full_ms = 1000 * seconds / len(pairs)
    with tempfile.TemporaryDirectory() as folder:
        fast, full = command_speed(Path(folder))
        rows.append(("evaluate --metrics fast over decoding alone, 1,000 PNG pairs, 2 workers", fast, 0.85, "at least"))
        rows.append(("evaluate with the full set over decoding alone", full, 0.45, "at least"))
    speed, seconds = class_speed()
    rows.append(
        (f"19 classes at 1024 x 2048 ({seconds:.2f} s per map), times faster than torchmetrics", speed, 10, "at least")
    )
    with tempfile.TemporaryDirectory() as folder:
        memory = class_memory(Path(folder), 4) / class_memory(Path(folder), 1)
        rows.append(("peak memory, 4 maps of 19 classes over 1", memory, 1.2, "at most"))
    with tempfile.TemporaryDirectory() as folder:
        memory = peak_memory(Path(folder), 3000) / peak_memory(Path(folder), 100)
        rows.append(("peak memory, 3,000 maps over 100 maps", memory, 1.2, "at most"))
    table = Table(title=f"Scoring 400 x 300 maps ({fast_ms:.2f} ms per map fast, {full_ms:.2f} ms full)")
    for heading in ("what", "measured", "goal"):
        table.add_column(heading)
    missed = []
    for what, value, goal, sense in rows:
        reached = value >= goal if sense == "at least" else value <= goal
        failed = value < TOLERANCE * goal if sense == "at least" else value > goal / TOLERANCE
        table.add_row(what, f"{value:.2f}" + ("" if reached else " (missed)"), f"{sense} {goal}")
        missed += [what] if failed else []
    Console(width=140).print(table)
    print(json.dumps({what: round(value, 3) for what, value, _, _ in rows}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
