"""Real files of every kind that the commands without PyTorch read, and those commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 4
BINARY = ("temperature", "platt", "beta", "isotonic", "histogram")


def write_files(folder: Path, images: int = 6, shape: tuple[int, int] = (32, 44)) -> Path:
    """Write maps of 8 bits, 16 bits, floats and K classes, their masks and photographs."""
    for name in ("maps8", "maps16", "floats", "small", "masks", "softmax", "labels", "photographs"):
        (folder / name).mkdir(parents=True)
    for i in range(images):
        rng = np.random.default_rng(i)
        z = np.kron(3 * rng.normal(size=(shape[0] // 4, shape[1] // 4)), np.ones((4, 4))) - 0.5
        y = rng.random(shape) < 1 / (1 + np.exp(-z))
        p = 1 / (1 + np.exp(-1.7 * z - rng.normal(size=shape) / 9))
        Image.fromarray(np.rint(255 * p).astype(np.uint8)).save(folder / f"maps8/{i}.png")
        Image.fromarray(np.rint(65535 * p).astype(np.uint16)).save(folder / f"maps16/{i}.png")
        np.save(folder / f"floats/{i}.npy", p.astype(np.float32))
        Image.fromarray(np.rint(255 * p).astype(np.uint8)).resize((20, 30)).save(folder / f"small/{i}.png")
        Image.fromarray(y).save(folder / f"masks/{i}.png")
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(folder / f"photographs/{i}.png")
        logits = 2 * rng.normal(size=(CLASSES, *shape))
        softmax = np.exp(logits) / np.exp(logits).sum(0)
        labels = (softmax.cumsum(0) > rng.random(shape)).argmax(0).astype(np.uint8)
        labels[:2] = 255
        sharp = softmax**1.5 / (softmax**1.5).sum(0)
        np.save(folder / f"softmax/{i}.npy", sharp.astype(np.float32))
        Image.fromarray(labels).save(folder / f"labels/{i}.png")
    return folder


def commands(data: Path, out: Path) -> list[tuple[str, ...]]:
    """Return the commands that measure and repair, in an order in which each finds what it reads."""
    masks, k = f"{data}/masks", (f"{data}/softmax", f"{data}/labels", "--classes", str(CLASSES))
    lines: list[tuple[str, ...]] = [
        ("evaluate", f"{data}/{maps}", masks, "--json", f"{out}/{maps}.json")
        for maps in ("maps8", "maps16", "floats", "small")
    ]
    lines[0] += ("--csv", f"{out}/maps8.csv", "--latex", f"{out}/maps8.tex")
    lines += [
        ("evaluate", *k, "--json", f"{out}/softmax.json"),
        ("evaluate", f"{data}/maps8", masks, "--partial", f"{out}/part.sketch"),
        ("merge", f"{out}/part.sketch", "--json", f"{out}/merged.json"),
    ]
    for method in BINARY:
        lines += [
            ("calibrate", "fit", method, f"{data}/maps16", masks, "--out", f"{out}/{method}.json"),
            ("calibrate", "apply", f"{out}/{method}.json", f"{data}/maps8", "--out", f"{out}/{method}"),
        ]
    for method in ("temperature", "vector"):
        lines += [
            ("calibrate", "fit", method, *k, "--out", f"{out}/{method}-k.json"),
            ("calibrate", "apply", f"{out}/{method}-k.json", f"{data}/softmax", "--out", f"{out}/{method}-k"),
        ]
    return [
        *lines,
        ("risk-control", f"{data}/maps8", masks, "--alpha", "0.3", "--json", f"{out}/risk.json"),
        ("report", f"{out}/maps8.json", f"{out}/softmax.json", "--out", f"{out}/report.html"),
        ("data", "check", f"{data}/photographs", masks),
    ]
