"""What a report takes from a run folder: the log, alpha with the images at its ends, its model on validation images."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.documents import parse_json, read_text, read_yaml
from densecal.report import pictures
from densecal.report.gallery import Example, model_examples
from densecal.report.pictures import Picture
from densecal.runtime.progress import Progress, retitle, silent

if TYPE_CHECKING:
    from densecal.evaluation.folders import Evaluation
    from densecal.evaluation.model import ImageSet
    from densecal.training.config import Config

EXTREMES = 8
"""Images shown at each end of alpha."""
MOST_IMAGES = 200
"""A run is evaluated on no more validation images than this, evenly chosen."""


@dataclass(frozen=True)
class Run:
    """A run as its files have it.

    Attributes:
        name: What the report calls it.
        folder: The run folder.
        log: The lines of ``log.jsonl``.
        alpha: Value of every training image at the end, by name; empty for methods without.
        extremes: Pictures of the training images with the highest and lowest alpha, by name and heading.
    """

    name: str
    folder: Path
    log: list[dict[str, Any]]
    alpha: dict[str, float] = field(default_factory=dict)
    extremes: dict[str, dict[str, Picture]] = field(default_factory=dict)

    @property
    def highest(self) -> list[str]:
        """Training images with the highest alpha, highest first."""
        return sorted(self.alpha, key=lambda name: -self.alpha[name])[:EXTREMES]

    @property
    def lowest(self) -> list[str]:
        """Training images with the lowest alpha, lowest first; none of the highest."""
        rest = set(self.alpha) - set(self.highest)
        return sorted(rest, key=lambda name: (self.alpha[name], name))[:EXTREMES]


@dataclass(frozen=True)
class Validation:
    """A run's model on its validation images."""

    evaluation: Evaluation
    examples: list[Example]
    digest: str
    """Equal for runs that were evaluated on the same images."""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / "config.yaml").is_file() and (folder / "log.jsonl").is_file()


def read_run(folder: Path, name: str) -> Run:
    """Read the log and alpha of a run.

    Raises:
        InputError: A file is damaged.
    """
    return Run(name, folder, _log(folder / "log.jsonl"), _alpha(folder / "alpha.csv"))


def with_extremes(run: Run) -> Run:
    """The run with pictures of the images at both ends of alpha.

    Raises:
        InputError: The training images are not where the configuration says.
    """
    names = [*run.highest, *run.lowest]
    return replace(run, extremes=_training_pictures(_config(run.folder), names)) if names else run


def validate_run(run: Run, count: int, progress: Progress = silent) -> Validation:
    """Evaluate a run's model on its validation images.

    Args:
        run: The run; needs a checkpoint and the images it was trained with.
        count: Examples to take, the most over-confident ones.
        progress: Told how far it is.

    Raises:
        InputError: There is no checkpoint, or the images are gone.
    """
    from densecal.evaluation.model import evaluate_model, load_validation_set
    from densecal.prediction.predictor import load_predictor

    predictor = load_predictor(run.folder)
    data = _fewer(load_validation_set(predictor.config.data, progress))
    evaluation = evaluate_model(
        predictor.model, data, {run.name: predictor.calibrator}, device=predictor.device, batch=16,
        progress=retitle(progress, f"{run.name} on validation"),
    )[run.name]  # fmt: skip
    source = predictor.config.data.model_dump_json(include={"images", "masks", "validation", "scenes", "size"})
    return Validation(evaluation, model_examples(evaluation, predictor, data, count), source)


def _fewer(data: ImageSet) -> ImageSet:
    if len(data) <= MOST_IMAGES:
        return data
    kept = np.linspace(0, len(data) - 1, MOST_IMAGES).round().astype(int)
    return replace(
        data,
        name=f"{data.name}, {MOST_IMAGES} of {len(data):,} images",
        names=[data.names[i] for i in kept],
        images=data.images[kept],
        masks=[data.masks[i] for i in kept],
    )


def _config(folder: Path) -> Config:
    from densecal.training.config import parse_config

    path = folder / "config.yaml"
    return parse_config(read_yaml(path, "the configuration of a run"), str(path))


def _training_pictures(config: Config, names: list[str]) -> dict[str, dict[str, Picture]]:
    from densecal.training.samples import open_parts

    part = open_parts(config.data)[0]
    classes = config.data.classes
    missing = sorted(set(names) - set(part.source.names))
    if missing:
        raise InputError(str(config.data.images), f"no image {missing[0]}", "the images of the run")
    return {name: _pair(part.source.image(name), part.source.mask(name, classes), classes) for name in names}


def _pair(image: NDArray[np.uint8], mask: NDArray[np.uint8], classes: int) -> dict[str, Picture]:
    truth = pictures.mask(mask > 127) if classes == 1 else pictures.labels(mask)
    return {"image": pictures.photo(image), "mask": truth}


def _log(path: Path) -> list[dict[str, Any]]:
    lines = read_text(path, "the log of a run").splitlines()
    log = []
    for number, line in enumerate(lines, start=1):
        try:
            log.append(parse_json(line, path, "the log of a run"))
            log[-1]["epoch"], log[-1]["loss"], log[-1]["validation"]
        except (InputError, KeyError, TypeError):
            where = f"{path} line {number}"
            raise InputError(where, "no line of a log", "JSON with epoch, loss and validation") from None
    return log


def _alpha(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        try:
            return {row["name"]: float(row["value"]) for row in csv.DictReader(stream)}
        except (KeyError, TypeError, ValueError, csv.Error):
            raise InputError(path, "no table of names and values", "alpha.csv as training writes it") from None
