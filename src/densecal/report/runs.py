"""What a report shows of a run: the log, alpha and its extreme images, and the model on validation images."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.documents import read_text, read_yaml
from densecal.io.urls import is_remote
from densecal.names import from_csv_cell, printable
from densecal.report import pictures
from densecal.report.gallery import Example, model_examples
from densecal.report.pictures import Picture
from densecal.runtime.progress import Progress, retitle, silent
from densecal.training.logs import read_log

if TYPE_CHECKING:
    from densecal.evaluation.folders import Evaluation
    from densecal.evaluation.model import ImageSet
    from densecal.training.config import Config
    from densecal.training.samples import Part
    from densecal.training.sections import DataConfig

EXTREMES = 8
"""Images shown with the highest alpha, and with the lowest."""
MOST_IMAGES = 200
"""Largest number of validation images that a run is evaluated on; of more, evenly spaced ones are chosen."""


@dataclass(frozen=True)
class Run:
    """A training run, as read from its folder.

    Attributes:
        name: Its name in the report.
        folder: The run folder.
        log: The lines of ``log.jsonl``.
        alpha: Final value of every training image, by name; empty for methods that have none.
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
    """The result of a run's model on its validation images."""

    evaluation: Evaluation
    examples: list[Example]
    digest: str
    """Equal for runs that were evaluated on the same images."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run folder."""
    return (folder / "config.yaml").is_file() and (folder / "log.jsonl").is_file()


def read_run(folder: Path, name: str) -> Run:
    """Read the log and alpha of a run.

    Raises:
        InputError: A file is damaged.
    """
    return Run(name, folder, read_log(folder / "log.jsonl"), _read_alpha(folder / "alpha.csv"))


def with_extremes(run: Run) -> Run:
    """Return the run with pictures of the images with the highest and lowest alpha.

    Raises:
        InputError: The training images are not where the configuration says.
    """
    names = [*run.highest, *run.lowest]
    return replace(run, extremes=_training_pictures(_read_config(run.folder), names)) if names else run


def validate_run(run: Run, count: int, progress: Progress = silent) -> Validation:
    """Evaluate a run's model on its validation images.

    Args:
        run: The run, with a checkpoint and the data it was trained on.
        count: Number of examples, the most over-confident ones.
        progress: Called at every step.

    Raises:
        InputError: The checkpoint or the images are missing.
    """
    from densecal.evaluation.model import evaluate_model, load_validation_set
    from densecal.prediction.predictor import load_predictor

    predictor = load_predictor(run.folder)
    _refuse_urls(predictor.config.data)
    data = _subset(load_validation_set(predictor.config.data, progress))
    evaluation = evaluate_model(
        predictor.model, data, {run.name: predictor.calibrator}, device=predictor.device, batch=16,
        progress=retitle(progress, f"{run.name} on validation"),
    )[run.name]  # fmt: skip
    source = predictor.config.data.model_dump_json(include={"images", "masks", "validation", "scenes", "size"})
    return Validation(evaluation, model_examples(evaluation, predictor, data, count), source)


def data_files(folder: Path) -> Iterator[Path]:
    """Yield the image files that a run was trained on, as far as they can be listed."""
    from densecal.data import Source

    with contextlib.suppress(InputError, ImportError):
        for part in _open_parts(_read_config(folder).data):
            yield from part.source.files() if isinstance(part.source, Source) else ()


def _subset(data: ImageSet) -> ImageSet:
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


def _read_config(folder: Path) -> Config:
    from densecal.training.config import parse_config

    path = folder / "config.yaml"
    return parse_config(read_yaml(path, "the configuration of a run"), str(path))


def _open_parts(data: DataConfig) -> tuple[Part, Part]:
    from densecal.training.samples import open_parts

    _refuse_urls(data)
    return open_parts(data)


def _refuse_urls(data: DataConfig) -> None:
    """Refuse data at a URL: the run may be a stranger's, and a report makes no requests on its own."""
    images = data.images if isinstance(data.images, list) else [data.images]
    for path in (*images, data.masks, data.validation):
        if isinstance(path, str) and is_remote(Path(path)):
            raise InputError("data", f"the URL {path}", "local images, because a report makes no request")


def _training_pictures(config: Config, names: list[str]) -> dict[str, dict[str, Picture]]:
    part = _open_parts(config.data)[0]
    classes = config.data.classes
    by_shown_name = {printable(name): name for name in part.source.names}  # alpha.csv holds escaped names
    missing = sorted(set(names) - by_shown_name.keys())
    if missing:
        raise InputError(str(config.data.images), f"no image {missing[0]}", "the images of the run")

    def pair(name: str) -> dict[str, Picture]:
        return _pair_pictures(part.source.image(name), part.source.mask(name, classes), classes)

    return {name: pair(by_shown_name[name]) for name in names}


def _pair_pictures(image: NDArray[np.uint8], mask: NDArray[np.uint8], classes: int) -> dict[str, Picture]:
    truth = pictures.mask(mask > 127) if classes == 1 else pictures.labels(mask)
    return {"image": pictures.photo(image), "mask": truth}


def _read_alpha(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    rows = csv.DictReader(io.StringIO(read_text(path, "the values of a run"), newline=""))
    try:
        return {from_csv_cell(row["name"]): float(row["value"]) for row in rows}
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error):
        raise InputError(path, "not a table of names and values", "the columns name and value") from None
