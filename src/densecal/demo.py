"""The demonstration: plain cross entropy against ASLP_MC on generated scenes, with a report after a few minutes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from densecal.calibrate.runs import train_and_calibrate
from densecal.data.scenes import Scenes, generate, write
from densecal.errors import InputError
from densecal.evaluation.folders import Evaluation, evaluate, paired_differences
from densecal.evaluation.record import to_file
from densecal.io.atomic import write_json, write_text
from densecal.prediction.folder import predict
from densecal.prediction.predictor import load_predictor
from densecal.report import pictures
from densecal.report.gallery import Example, Folders, folder_examples
from densecal.report.page import Page, write_page
from densecal.report.runs import read_run, with_extremes
from densecal.runtime.progress import Progress, silent
from densecal.training.config import load_config

HELD_OUT = 200
EXAMPLES = 24
HELD_OUT_SEED = 1000
"""Differs from the recipe's seed, so that no held-out scene was used in training or validation."""
MARKER = ".densecal-demo"
RUNS = {"bce": ["method.name=bce"], "aslp-mc": []}
_FILES = [
    f"/{MARKER}", "/evaluation.json", "/report.html", "/held-out/images/*.png", "/held-out/masks/*.png",
    *(f"/{run}/{file}" for run in RUNS for file in ("config.yaml", "log.jsonl", "alpha.csv", "loggers.json", ".lock")),
    *(f"/{run}/{file}" for run in RUNS for file in ("checkpoints/*/*", "tensorboard/events.*")),
    *(f"/maps/{run}/*.png" for run in RUNS),
]  # fmt: skip
"""What a demonstration writes."""


def run_demo(out: Path, progress: Progress = silent) -> list[Evaluation]:
    """Train both models, evaluate them on scenes that neither has seen, and write ``report.html``.

    Args:
        out: New folder, or that of an earlier demonstration, which is replaced.
        progress: Called with the progress, and with the figures of each epoch.

    Returns:
        The two evaluations, plain cross entropy first.
    """
    _clear(out)
    write_text(out / MARKER, "made by densecal demo, which replaces this folder when it runs again\n")
    scenes = generate(HELD_OUT, load_config("demo").data.size, HELD_OUT_SEED, progress=progress)
    write(scenes, out / "held-out", progress)
    evaluations, runs = [], []
    for name, overrides in RUNS.items():
        report, images, maps = _with_name(progress, name), out / "held-out" / "images", out / "maps" / name
        train_and_calibrate(load_config("demo", overrides), out / name, progress=report)
        runs.append(with_extremes(read_run(out / name, name)))
        predict(load_predictor(out / name), images, maps, batch=20, progress=report)
        evaluations.append(
            evaluate(maps, out / "held-out" / "masks", name=name, dataset="held-out scenes", progress=report)
        )
    records = [evaluation.record for evaluation in evaluations]
    paired = paired_differences(evaluations)
    write_json(out / "evaluation.json", to_file(records, paired))
    folders = Folders(out / "maps", out / "held-out" / "masks", out / "held-out" / "images")
    examples = folder_examples(records, folders, EXAMPLES, progress=progress)
    page = Page(
        title="densecal: a demonstration",
        lead=_lead(evaluations),
        records=records,
        paired=paired,
        runs=runs,
        examples=[_with_truth(example, scenes) for example in examples],
        commands=_commands(),
    )
    write_page(page, out / "report.html")
    return evaluations


def _clear(out: Path) -> None:
    """Remove an earlier demonstration, and nothing else."""
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).is_file()):
        raise InputError(
            out, "a file, or a folder that is not a demonstration", "a new folder, or an earlier demonstration"
        )
    foreign = sorted(str(path) for path in _files_in(out) if not any(path.match(known) for known in _FILES))
    if foreign:
        raise InputError(out, f"other files ({', '.join(foreign[:3])})", "a new folder, or an earlier demonstration")
    for entry in list(out.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _files_in(folder: Path) -> Iterator[PurePath]:
    """Yield the paths of all files in a folder, relative to it and with a leading slash; links are not followed."""
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from ("/" / PurePath(parent).relative_to(folder) / name for name in (*files, *links))


def _lead(evaluations: list[Evaluation]) -> list[str]:
    plain, ours = (evaluation.record.calibration for evaluation in evaluations)
    low, high = paired_differences(evaluations)[0].ci["ece_ew"]
    return [
        "Two networks that differ only in the training method learned to find objects in 120 generated scenes whose "
        "labels are drawn from known probabilities: outlines are uncertain, and some objects are labelled only "
        "sometimes. No model can be right everywhere, and an honest one says so.",
        f"On {HELD_OUT} scenes that neither has seen, plain binary cross entropy is right at "
        f"{100 * plain['accuracy']:.1f} % of the pixels and {100 * plain['mean_confidence']:.1f} % confident. Adaptive "
        f"label perturbation (ASLP_MC) is right at {100 * ours['accuracy']:.1f} % and "
        f"{100 * ours['mean_confidence']:.1f} % confident.",
        f"The expected calibration error goes from {100 * plain['ece_ew']:.2f} % to {100 * ours['ece_ew']:.2f} %; the "
        f"difference lies between {100 * low:.2f} and {100 * high:.2f} points with 95 % confidence, resampling images.",
    ]


def _with_truth(example: Example, scenes: Scenes) -> Example:
    """Add the probability from which the mask was drawn, which no photograph has."""
    truth = pictures.unit_map("probability", scenes.probability[int(example.name)])
    image, mask, *others = example.pictures
    order = [image, mask, "true probability", *others]
    pictures_by_heading = {**example.pictures, "true probability": truth}
    return replace(example, pictures={heading: pictures_by_heading[heading] for heading in order})


def _commands() -> list[str]:
    lines = [f"densecal data scenes held-out --count {HELD_OUT} --size 96 --seed {HELD_OUT_SEED}"]
    for name, overrides in RUNS.items():
        lines.append(" ".join(["densecal train demo", *overrides, f"--out {name}"]))
        lines.append(f"densecal predict {name} held-out/images --out maps/{name}")
    return [*lines, "densecal evaluate maps held-out/masks"]


def _with_name(progress: Progress, name: str) -> Progress:
    def report(title: str, done: int, total: int, /, **figures: float) -> None:
        progress(f"{name}: {title}", done, total, **figures)

    return report
