"""Every row of docs/formats.md runs as printed, on files of that kind, and gives the figures of the probabilities."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.adversarial.common import densecal

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
K = 3
RNG = np.random.default_rng(0)
Z = {stem: RNG.normal(0, 2, (K, 10, 14)) for stem in ("x", "y")}
LABELS = {stem: RNG.integers(0, K, (10, 14)).astype(np.uint8) for stem in Z}
Writer = Callable[[Path, str, np.ndarray], object]


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(axis=0)


def png(path: Path, p: np.ndarray, levels: int, kind: type) -> None:
    Image.fromarray(np.rint(p * levels).astype(kind)).save(path)


def tiff(path: Path, p: np.ndarray, **layout: object) -> None:
    tifffile.imwrite(path, p, photometric="minisblack", **layout)


FOREGROUND: list[Writer] = [
    lambda f, s, z: png(f / f"{s}.png", sigmoid(z), 255, np.uint8),
    lambda f, s, z: tiff(f / f"{s}.tif", sigmoid(z)),
    lambda f, s, z: np.save(f / f"{s}.npy", 100 * sigmoid(z)),
    lambda f, s, z: png(f / f"{s}.png", sigmoid(z), 255, np.uint16),
    lambda f, s, z: np.save(f / f"{s}.npy", z[:1]),
]
CLASSES: list[Writer] = [
    lambda f, s, z: np.save(f / f"{s}.npy", softmax(z)),
    lambda f, s, z: np.save(f / f"{s}.npy", softmax(z).transpose(1, 2, 0)),
    lambda f, s, z: np.save(f / f"{s}.npy", z),
    lambda f, s, z: np.savez(f / f"{s}.npz", probabilities=softmax(z), other=np.zeros(2)),
    lambda f, s, z: tiff(f / f"{s}.tif", softmax(z), planarconfig="separate"),
    lambda f, s, z: tiff(f / f"{s}.tif", softmax(z)),
    lambda f, s, z: tiff(f / f"{s}.tif", np.rint(255 * softmax(z)).astype(np.uint8), planarconfig="separate"),
]
NAMED: list[Writer] = [lambda f, s, z: png(f / f"{s}_pred.png", sigmoid(z), 255, np.uint8)]


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z[0]))


def rows() -> list[str]:
    table = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    return re.findall(r"\| `(densecal [^`]+)` \|$", table, flags=re.MULTILINE)


@pytest.mark.parametrize(("command", "write"), list(zip(rows(), FOREGROUND + CLASSES + NAMED, strict=True)))
def test_a_row_gives_the_figures_of_the_probabilities(tmp_path, command, write):
    for folder in ("maps", "masks", "labels"):
        (tmp_path / folder).mkdir()
    for stem, z in Z.items():
        write(tmp_path / "maps", stem, z)
        Image.fromarray(LABELS[stem]).save(tmp_path / "labels" / f"{stem}.png")
        name = f"{stem}_gt.png" if write in NAMED else f"{stem}.png"
        Image.fromarray((LABELS[stem] == 0) * np.uint8(255)).save(tmp_path / "masks" / name)
    code, _, errors = densecal(tmp_path, *shlex.split(command)[1:], "--json", "scores.json", "--workers", "1")
    assert code == 0, errors
    if write in CLASSES:
        brier = [((softmax(z) - (np.arange(K)[:, None, None] == LABELS[s])) ** 2).sum(axis=0) for s, z in Z.items()]
    else:
        brier = [(sigmoid(z) - (LABELS[s] == 0)) ** 2 for s, z in Z.items()]
    measured = json.loads((tmp_path / "scores.json").read_text())["calibration"]["brier"]
    assert measured == pytest.approx(np.mean(brier), abs=0.002)  # 8 bits round
