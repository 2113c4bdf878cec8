"""Material for the tests of the page: maps of two methods, their evaluations, a run, and names with markup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.evaluation.folders import Evaluation, evaluate, paired_differences
from densecal.evaluation.ood import compare_ood, evaluate_ood
from densecal.evaluation.record import Record
from densecal.evaluation.worker import Settings
from densecal.report.gallery import Folders, folder_examples
from densecal.report.page import Page
from densecal.report.pictures import mask, photo
from densecal.report.runs import Run

SHY, SURE = "shy <b>bold</b>", "sure </script><script>window.pwned=1</script>"
"""Names of the methods; the second is over-confident."""
FOLDERS = {SHY: "shy", SURE: "sure"}
DATASET = "data & \"set\" 'x'"
COUNT = 30


def write_maps(folder: Path, count: int = COUNT, size: int = 24) -> Folders:
    """Write images of blobs, masks, and maps of two methods, one far too sure where it is wrong."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size] / size
    for name in ("images", "masks", "maps/shy", "maps/sure", "empty/shy", "empty/sure"):
        (folder / name).mkdir(parents=True)
    for i in range(count):
        cx, cy, radius = rng.uniform(0.3, 0.7, 3) * (1, 1, 0.5)
        distance = radius - np.hypot(x - cx, y - cy)
        truth = distance + rng.normal(0, 0.06, truth_shape := (size, size)) > 0
        picture = np.stack([distance * 200 + 128 + rng.normal(0, 9, truth_shape) for _ in range(3)], -1)
        save(folder / "images" / f"{i:04}.png", picture.clip(0, 255))
        save(folder / "masks" / f"{i:04}.png", truth * 255)
        for method, slope in (("shy", 12), ("sure", 60)):
            save(folder / "maps" / method / f"{i:04}.png", 255 / (1 + np.exp(-slope * (distance + 0.03 * (i % 3)))))
            z = rng.normal(-1, 1, truth_shape) * (0.5 if method == "shy" else 3)
            save(folder / "empty" / method / f"{i:04}.png", 255 / (1 + np.exp(-z)))
    return Folders(folder / "maps", folder / "masks", folder / "images")


def save(path: Path, values: NDArray[np.float64]) -> None:
    Image.fromarray(np.rint(values).astype(np.uint8)).save(path)


def evaluations(folders: Folders) -> list[Evaluation]:
    """Evaluate both methods in and out of distribution."""
    evaluated = []
    for name, folder in FOLDERS.items():
        inside = evaluate(
            folders.predictions / folder, folders.masks, name=name, dataset=DATASET, settings=Settings(entropy=True)
        )
        outside = evaluate_ood(folders.predictions.parent / "empty" / folder, name=name, dataset="empty")
        assert outside is not None
        record = replace(inside.record, ood=(compare_ood(inside.record, outside.record),))
        evaluated.append(replace(inside, record=record))
    return evaluated


def small_page(folder: Path) -> Page:
    """Return a page with every section."""
    folders = write_maps(folder)
    evaluated = evaluations(folders)
    records = [Record.from_json(json.loads(json.dumps(e.record.to_json())), "records") for e in evaluated]
    examples = []
    for record, name in zip(records, FOLDERS.values(), strict=True):
        own = Folders(folders.predictions / name, folders.masks, folders.images)
        examples += folder_examples([record], own, COUNT)
    return Page(
        "report of <i>everything</i>", ["A lead & more."], records, paired_differences(evaluated), [run(SURE)],
        examples, ["a note with <script>window.pwned=1</script>"], ["densecal report x.json --out <file>"],
    )  # fmt: skip


def with_figures(record: Record, name: str, **figures: float) -> Record:
    """Return the record with another name and other calibration figures."""
    calibration = replace(record.calibration, figures={**record.calibration, **figures})
    return replace(record, name=name, calibration=calibration)


def run(name: str, images: int = 50) -> Run:
    """Return a run of four epochs with alpha."""
    rng = np.random.default_rng(1)
    quantiles = {f"alpha_{key}": 0.0 for key in ("min", "q25", "median", "q75", "max")}
    log = [
        {
            "epoch": epoch,
            "loss": 1 / epoch,
            "validation": {"ece_ew": 0.1 / epoch, "oe_ew": 0.05, "brier": 0.2 / epoch, "accuracy": 0.8 + 0.02 * epoch},
            "method": {key: 0.01 * epoch * i for i, key in enumerate(quantiles)},
        }
        for epoch in range(1, 5)
    ]
    alpha = {f"image-{i:03}<img src=x onerror=window.pwned=1>": float(a) for i, a in enumerate(rng.random(images))}
    plain = Run(name, Path("runs/x"), log, alpha)
    pixels = rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)
    shown = {n: {"image": photo(pixels), "mask": mask(pixels[:, :, 0] > 90)} for n in (*plain.highest, *plain.lowest)}
    return replace(plain, extremes=shown)
