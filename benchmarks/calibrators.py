"""All calibrators on one folder of maps: fitted on every other image, judged on the rest, beside those of fiducio.

    python benchmarks/calibrators.py MAPS MASKS [--classes K] [--ignore-index I] [--every N] [--pixels N] [--out FILE]

Each fit is a process of its own, with one thread, so that its seconds and its memory are its own. Ours include reading
the maps. fiducio 0.2 (`pip install fiducio`, left out where it is missing) needs all pixels in memory, so it gets the
same sample of pixels, with its default settings, and reading is not counted.

Exits with 1 if one of ours takes longer than fiducio's, or has a higher NLL by more than 0.001.

`--growth` prints the memory of every fit on an eighth, a quarter, half and all of the images instead, for fiducio on
as many parts of the sample. It exits with 1 if one of ours needs 16 MB more for all images than for a quarter.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.special import expit

from densecal.calibrate.folders import MapData
from densecal.calibrate.select import NONE
from densecal.metrics import CalibrationMeter
from densecal.posthoc import applicable, create, find, load, save
from densecal.posthoc.pixel_sample import PixelSample

THEIRS = {
    "temperature": ("TemperatureScaling", {}),
    "ensemble-temperature": ("EnsembleTemperatureScaling", {}),
    "vector": ("VectorScaling", {}),
    "matrix": ("TranslationInvariantMatrixScaling", {}),
    "dirichlet": ("DirichletCalibration", {"lambda_reg": 1e-3, "mu_reg": 1e-3}),
    "class-matrix": ("ClassConditionalMatrixScaling", {}),
    "argmax-preserving": ("ArgmaxPreservingMatrixScaling", {}),
    "order-preserving": ("OrderPreservingMatrixScaling", {}),
}
"""Names in fiducio of the calibrators that both have, with the settings that make them the same."""
THEIRS_BINARY = ("temperature", "ensemble-temperature")
NLL_TOLERANCE = 1e-3
SHARES = (8, 4, 2, 1)
MOST_GROWTH = 16.0
"""MB more for four times the images, of which each needs a few until its arrays are freed."""


def memory():
    """Return the largest resident size so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def half(args, first):
    """Return every other image: those to fit on (0) or those to judge on (1)."""
    data = MapData(args.maps, args.masks, args.classes, args.ignore_index)
    data.pairs = data.pairs[:: args.every][first::2]
    return data


def draw(args):
    """Return the pixels that calibrators of K classes are fitted on, with two classes for one logit."""
    data = half(args, 0)
    if args.classes > 1:
        return data.sample(args.pixels)
    sample = PixelSample(2, args.pixels)
    for batch in data.batches():
        z = np.asarray(batch.logits)
        sample.update(np.concatenate([-z / 2, z / 2], 1), np.asarray(batch.masks)[:, 0], data.ignore_index)
    return sample


def fit_ours(args):
    start, before = time.perf_counter(), memory()
    calibrator = create(args.fit, **({"num_classes": args.classes} if find(args.fit).multiclass else {}))
    calibrator.fit(half(args, 0).histogram() if calibrator.from_histogram else draw(args))
    seconds = time.perf_counter() - start
    save(calibrator, args.file)
    return {"seconds": seconds, "memory": memory() - before}


def fit_theirs(args):
    import fiducio
    import torch

    torch.set_num_threads(1)
    sample = draw(args)
    z, y = torch.from_numpy(sample.log_p), torch.from_numpy(sample.labels)
    name, settings = THEIRS[args.fit]
    start, before = time.perf_counter(), memory()
    calibrator = getattr(fiducio, name)(device="cpu", **settings).fit(z, y)
    result = {"seconds": time.perf_counter() - start, "memory": memory() - before}
    calibrator.save(args.file)
    return result


def load_any(file, classes):
    """Return a function from logits to probabilities, for a file of ours, of fiducio's (.pt) or none."""
    if file.name == NONE:
        return (lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)) if classes > 1 else expit
    if file.suffix == ".json":
        return load(file)
    import fiducio
    import torch

    theirs = fiducio.load_calibrator(file)
    if classes > 1:
        return lambda z: theirs.transform(torch.from_numpy(z)).numpy()
    return lambda z: theirs.transform(torch.from_numpy(np.concatenate([-z / 2, z / 2], 1))).numpy()[:, 1:]


def judge(args):
    """Return the figures of fitted calibrators on the other half."""
    files = [Path(name) for name in args.judge]
    data = half(args, 1)
    applied = [load_any(file, args.classes) for file in files]
    meters = [CalibrationMeter(10, args.classes, ignore_index=data.ignore_index, boundary=False) for _ in files]
    flips, pixels = np.zeros(len(files)), 0
    for batch in data.batches():
        z, y = np.asarray(batch.logits), np.asarray(batch.masks)
        valid = y != data.ignore_index
        pixels += valid.sum()
        for i, calibrate in enumerate(applied):
            p = calibrate(z)
            meters[i].update(p, y)
            changed = (p.argmax(1) != z.argmax(1)) if args.classes > 1 else (p > 0.5) != (z > 0)
            flips[i] += changed[valid].sum()
    results = [meter.compute() for meter in meters]
    return [
        {"nll": r.nll, "ece": r.ece_ew, "smece": r.smece, "flips": f / pixels}
        for r, f in zip(results, flips, strict=True)
    ]


def call(args, *more):
    """Run this file in a process of its own; return what it prints, or why it failed."""
    command = [sys.executable, __file__, str(args.maps), str(args.masks), "--classes", str(args.classes)]
    command += ["--every", str(args.every), "--pixels", str(args.pixels), *more]
    if args.ignore_index is not None:
        command += ["--ignore-index", str(args.ignore_index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def growth(args, folder):
    """Return the lines of the table of memory over the number of images, and which of ours keep growing."""
    theirs = [] if importlib.util.find_spec("fiducio") is None else THEIRS if args.classes > 1 else THEIRS_BINARY
    images = [len(half(argparse.Namespace(**{**vars(args), "every": args.every * n}), 0).pairs) for n in SHARES]
    heads = " | ".join(f"MB, {n} images" for n in images)
    lines = [f"| calibrator | whose | {heads} |", "|---|---|" + "---|" * len(SHARES)]
    missed = []
    for name in applicable(args.classes):
        for whose, suffix in (("densecal", ".json"), ("fiducio", ".pt")):
            if whose == "fiducio" and name not in theirs:
                continue
            file = ["--fit", name, "--file", str(folder / f"{name}{suffix}")]
            fits = []
            for n in SHARES:
                given = {**vars(args), "every": args.every * n}
                if whose == "fiducio":
                    given["pixels"] = args.pixels // n
                fits.append(call(argparse.Namespace(**given), *file))
            memory = [fit.get("memory", float("nan")) for fit in fits]
            print(name, whose, memory, file=sys.stderr, flush=True)
            lines.append(f"| `{name}` | {whose} | {' | '.join(f'{mb:.0f}' for mb in memory)} |")
            if whose == "densecal" and not memory[-1] - memory[1] < MOST_GROWTH:
                missed.append(name)
    return lines, missed


def row(name, whose, figures):
    if "problem" in figures:
        return f"| `{name}` | {whose} | {figures['problem']} | | | | | |"
    cost = (f"{figures['seconds']:.1f}", f"{figures['memory']:.0f}") if "seconds" in figures else ("", "")
    return (
        f"| `{name}` | {whose} | {figures['nll']:.4f} | {100 * figures['ece']:.2f} | {100 * figures['smece']:.2f} "
        f"| {100 * figures['flips']:.2f} | {cost[0]} | {cost[1]} |"
    )


def table(args, folder):
    """Return the lines of the table, and the calibrators that miss their goal."""
    theirs = [] if importlib.util.find_spec("fiducio") is None else THEIRS if args.classes > 1 else THEIRS_BINARY
    costs = {}
    for name in applicable(args.classes):
        for whose, suffix in (("densecal", ".json"), ("fiducio", ".pt")):
            if whose == "densecal" or name in theirs:
                file = folder / f"{name}{suffix}"
                costs[name, whose, file] = call(args, "--fit", name, "--file", str(file))
                print(name, whose, costs[name, whose, file], file=sys.stderr, flush=True)
    fitted = [file for (_, _, file), cost in costs.items() if "problem" not in cost]
    judged = dict(zip([NONE, *fitted], call(args, "--judge", NONE, *map(str, fitted)), strict=True))
    lines = [
        "| calibrator | whose | NLL | ECE % | smECE % | flips % | fit s | fit MB |",
        "|---|---|---|---|---|---|---|---|",
        row(NONE, "", judged[NONE]),
    ]
    lines += [row(name, whose, cost | judged.get(file, {})) for (name, whose, file), cost in costs.items()]
    by_name = {key[:2]: cost | judged.get(key[2], {}) for key, cost in costs.items()}
    missed = []
    for name, whose in by_name:
        one, other = by_name[name, "densecal"], by_name.get((name, "fiducio"), {})
        if whose == "densecal" or "nll" not in one or "nll" not in other:
            continue
        if one["seconds"] > other["seconds"] or one["nll"] > other["nll"] + NLL_TOLERANCE:
            missed.append(name)
    return lines, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", type=Path)
    parser.add_argument("masks", type=Path)
    parser.add_argument("--classes", type=int, default=1)
    parser.add_argument("--ignore-index", type=int)
    parser.add_argument("--every", type=int, default=1, help="use every n-th image alone")
    parser.add_argument("--pixels", type=int, default=1 << 20, help="pixels of K classes to fit on")
    parser.add_argument("--growth", action="store_true", help="memory over the number of images")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--judge", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        print(json.dumps((fit_theirs if args.file.suffix == ".pt" else fit_ours)(args)))
    elif args.judge:
        print(json.dumps(judge(args)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            lines, missed = (growth if args.growth else table)(args, Path(folder))
        print("\n".join(lines))
        if args.out:
            args.out.write_text("\n".join(lines) + "\n")
        if missed:
            print(f"{'memory grows' if args.growth else 'slower or worse than fiducio'}: {', '.join(missed)}")
        return int(bool(missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
