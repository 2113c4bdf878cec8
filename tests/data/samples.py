"""Small data sets on disk for the tests of densecal.data."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def image(seed: int, height: int = 30, width: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def mask(seed: int, height: int = 30, width: int = 40) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.where((x - width / 2) ** 2 + (y - height / 2) ** 2 < (5 + seed % 8) ** 2, 255, 0).astype(np.uint8)


def save(array: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def folders(root: Path, names: list[str], suffix: str = ".png") -> tuple[Path, Path]:
    for i, name in enumerate(names):
        save(image(i), root / "images" / f"{name}{suffix}")
        save(mask(i), root / "masks" / f"{name}.png")
    return root / "images", root / "masks"


def encoded(array: np.ndarray, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind)
    return stream.getvalue()


def zipped(path: Path, names: list[str], first: int = 0, masks: bool = True) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for i, name in enumerate(names, start=first):
            archive.writestr(f"images/{name}.png", encoded(image(i)))
            if masks:
                archive.writestr(f"masks/{name}.png", encoded(mask(i)))
    return path
