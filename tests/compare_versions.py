"""Run the same commands with two versions of densecal and compare what they write.

    python -m tests.compare_versions OLD_CHECKOUT [NEW_CHECKOUT]

Every JSON file must be equal but for the keys in `IGNORED`, the parameters of calibrators within 1e-9, float maps
within 1e-12, other maps and every weight to the bit. Use it to check a refactoring that is meant to change nothing. It
takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

IGNORED = {"schema", "densecal", "seconds", "training_seconds", "images_per_second", "command"} | {
    *("channels_last", "compile", "depthwise", "fused", "kernels")
}
"""Keys that say when, how fast, by which version or with which speed settings a file was written."""
COMMENTS = ("% ", "<!-- densecal ")
"""How lines of tables begin that say what made them."""
CALIBRATOR_TOLERANCE = 1e-9
MAP_TOLERANCE = 1e-12
"""For float maps. A calibrator may differ in the last bit, and so may the maps that it made."""
METHODS = ("temperature", "platt", "isotonic", "histogram", "beta")
TRAINING = (
    "data.size=32", "data.scenes.train=18", "data.scenes.validation=6", "optim.epochs=2", "optim.batch=4",
    "engine.accelerator=cpu",
)  # fmt: skip


def main() -> int:
    """Compare two checkouts; the exit code is the number of differences, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parents[1])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        inputs = Path(folder) / "inputs"
        write_inputs(inputs)
        outputs = []
        for side, checkout in (("old", arguments.old), ("new", arguments.new)):
            out = Path(folder) / side
            out.mkdir()
            run_commands(checkout, inputs, out)
            outputs.append(out)
        differences = compare(*outputs)
    for line in differences:
        print(line)
    print(f"{len(differences)} differences")
    return min(len(differences), 100)


def write_inputs(folder: Path) -> None:
    """Maps of every kind with masks of every kind: 8 and 16 bits, floats, K classes; grey, void, of another size."""
    rng = np.random.default_rng(0)
    for i in range(12):
        height, width = 40 + i, 50 - i
        y, x = np.mgrid[:height, :width]
        distance = 12 - np.hypot(y - 20, x - 22) + rng.normal(0, 2, (height, width))
        p = 1 / (1 + np.exp(-(distance + rng.normal(0, 1.5, distance.shape))))
        truth = (distance > 0) * np.uint8(255)
        grey = np.where(rng.random(truth.shape) < 0.02, 100, truth).astype(np.uint8)
        void = np.where(rng.random(truth.shape) < 0.1, 77, truth).astype(np.uint8)
        name = f"{i:03}"
        _save(folder / "maps8" / f"{name}.png", np.rint(p * 255).astype(np.uint8))
        _save(folder / "maps16" / f"{name}.png", np.rint(p * 65535).astype(np.uint16))
        _save(folder / "half" / f"{name}.png", np.rint(p[::2, ::2] * 255).astype(np.uint8))
        _save_array(folder / "floats" / f"{name}.npy", p.astype(np.float32 if i % 2 else np.float64))
        _save(folder / "ood" / f"{name}.png", np.rint(p[::-1] * 128).astype(np.uint8))
        for kind, mask in (("masks", truth), ("grey", grey), ("void", void)):
            _save(folder / kind / f"{name}.png", mask)
        for method in ("a", "b"):
            shown = np.clip(p * (1 if method == "a" else 0.9), 0, 1)
            _save(folder / "methods" / method / "set" / f"{name}.png", np.rint(shown * 255).astype(np.uint8))
        _save(folder / "truths" / "set" / f"{name}.png", truth)
        true = rng.integers(0, 4, (height, width))
        logits = rng.normal(0, 2, (4, height, width)) + 3 * np.moveaxis(np.eye(4)[true], -1, 0)
        softmax = np.exp(logits) / np.exp(logits).sum(axis=0)
        _save_array(folder / "softmax" / f"{name}.npy", softmax.astype(np.float32))
        labels = np.where(rng.random((height, width)) < 0.05, 9, true).astype(np.uint8)
        _save(folder / "labels" / f"{name}.png", labels)
        for kind, scale in (("photos", 1), ("large", 3)):
            photo = rng.integers(0, 256, (scale * height, scale * width, 3), dtype=np.uint8)
            _save(folder / kind / f"{name}.png", photo)
    (folder / "matrix.yaml").write_text(
        "recipe: demo\n"
        f"overrides: [{', '.join(TRAINING)}]\n"
        "methods: [bce, slp, aslp-mc]\nseeds: [0]\ncalibrators: [temperature, isotonic]\nbins: [10, 25]\n"
        "datasets:\n  - {name: held-out, scenes: {count: 5, seed: 7}}\n"
        f"  - {{name: textures, images: {folder / 'photos'}, ood: true}}\n",
        encoding="utf-8",
    )


def run_commands(checkout: Path, inputs: Path, out: Path) -> None:
    """Run every command that writes figures or maps."""

    def run(*arguments: str | Path) -> None:
        source = checkout / "src"
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        command = [sys.executable, "-W", "ignore", "-m", "densecal.cli", *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{checkout}: {' '.join(command[4:])}: exit code {done.returncode}\n{done.stderr}")
        with (out / "printed.txt").open("a", encoding="utf-8") as log:
            log.write(done.stdout)

    def evaluate(name: str, maps: str, masks: str, *options: str | Path) -> None:
        run("evaluate", inputs / maps, inputs / masks, "--json", out / f"{name}.json", *options)

    evaluate("maps8", "maps8", "masks", "--csv", out / "maps8.csv", "--latex", out / "maps8.tex")
    evaluate("maps16", "maps16", "masks", "--workers", "2")
    evaluate("floats", "floats", "masks", "--bins", "15")
    evaluate("half", "half", "masks")
    evaluate("grey", "maps8", "grey")
    evaluate("void", "floats", "void", "--ignore-index", "77")
    evaluate("fast", "maps8", "masks", "--metrics", "fast")
    evaluate("classes", "softmax", "labels", "--classes", "4", "--ignore-index", "9", "--csv", out / "classes.csv")
    evaluate("methods", "methods", "truths", "--latex", out / "methods.tex")
    evaluate("ood", "maps8", "masks", "--ood", inputs / "ood")
    for kind in ("maps8", "maps16", "floats"):
        for method in METHODS:
            calibrator = out / f"{kind}-{method}.json"
            run("calibrate", "fit", method, inputs / kind, inputs / "void", "--ignore-index", "77", "--out", calibrator)
            run("calibrate", "apply", calibrator, inputs / kind, "--out", out / f"{kind}-{method}")
    for method in ("temperature", "vector"):
        classes = ("--classes", "4", "--ignore-index", "9")
        calibrator = out / f"classes-{method}.json"
        run("calibrate", "fit", method, inputs / "softmax", inputs / "labels", *classes, "--out", calibrator)
        run("calibrate", "apply", calibrator, inputs / "softmax", "--out", out / f"classes-{method}")
    run("risk-control", inputs / "floats", inputs / "masks", "--alpha", "0.2", "--json", out / "risk.json")
    train = ("train", "demo", *TRAINING, "model.calibrator=temperature", "model.options={dropout: 0.1}")
    run(*train, "--out", out / "run")
    run("predict", out / "run", inputs / "photos", "--out", out / "predicted", "--uncertainty")
    last = out / "run" / "checkpoints" / "last"
    run("predict", last, inputs / "large", "--out", out / "tiles", "--format", "npy", "--tile", "64")
    run("predict", last, inputs / "photos", "--out", out / "dropout", "--mc-dropout", "3")
    run("calibrate", "fit", "local-temperature", last, "--out", out / "run-local.json")
    run("shift", last, inputs / "photos", inputs / "masks", "--json", out / "shift.json")
    run("benchmark", inputs / "matrix.yaml", "--out", out / "benchmark")


def compare(old: Path, new: Path) -> list[str]:
    """Return a line for every file that is missing or differs."""
    files = {path.relative_to(side) for side in (old, new) for path in side.rglob("*") if path.is_file()}
    compared: dict[str, int] = {}
    lines = []
    for file in sorted(files):
        if file.suffix not in (".json", ".jsonl", ".csv", ".tex", ".md", ".png", ".npy", ".safetensors"):
            continue
        if "figures" in file.parts or "events" in file.name or file.name == "commands.md":
            continue
        if not (old / file).is_file() or not (new / file).is_file():
            lines.append(f"{file}: only in one of them")
            continue
        compared[file.suffix] = compared.get(file.suffix, 0) + 1
        lines += [f"{file}: {problem}" for problem in _difference(old / file, new / file, old, new)]
    print("compared", ", ".join(f"{count} {suffix}" for suffix, count in sorted(compared.items())))
    return lines


def _difference(a: Path, b: Path, old: Path, new: Path) -> list[str]:
    if a.suffix == ".safetensors":
        first, second = load_file(a), load_file(b)
        same = first.keys() == second.keys() and all(np.array_equal(first[k], second[k], equal_nan=True) for k in first)
        return [] if same else ["other tensors"]
    if a.suffix == ".png":
        return [] if np.array_equal(np.asarray(Image.open(a)), np.asarray(Image.open(b))) else ["other pixels"]
    if a.suffix == ".npy":
        return [] if np.allclose(np.load(a), np.load(b), rtol=0, atol=MAP_TOLERANCE) else ["other values"]
    texts = [path.read_text(encoding="utf-8").replace(str(side), "OUT") for path, side in ((a, old), (b, new))]
    if a.suffix in (".json", ".jsonl"):
        lines = [text.splitlines() if a.suffix == ".jsonl" else [text] for text in texts]
        tolerance = CALIBRATOR_TOLERANCE if '"densecal": "calibrator"' in texts[0] else 0.0
        values = [[json.loads(line) for line in side] for side in lines]
        return list(_json_differences(*values, "", tolerance))
    first, second = ([line for line in text.splitlines() if not line.startswith(COMMENTS)] for text in texts)
    return [] if first == second else ["other text"]


def _json_differences(a: Any, b: Any, key: str, tolerance: float) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        found = []
        for name in sorted((a.keys() | b.keys()) - IGNORED):
            found += _json_differences(a.get(name), b.get(name), f"{key}.{name}", tolerance)
        return found
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            d
            for i, pair in enumerate(zip(a, b, strict=True))
            for d in _json_differences(*pair, f"{key}[{i}]", tolerance)
        ]
    if isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance):
        return []
    return [] if a == b else [f"{key}: {str(a)[:60]} != {str(b)[:60]}"]


def _save(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _save_array(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)


if __name__ == "__main__":
    sys.exit(main())
