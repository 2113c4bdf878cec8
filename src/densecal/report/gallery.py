"""The most over-confident images of an evaluation: image, mask, prediction, confidence and entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.data.pairs import find_comparisons
from densecal.errors import InputError
from densecal.evaluation.folders import Evaluation, evaluate, plan_of
from densecal.evaluation.record import Record
from densecal.evaluation.worker import Settings
from densecal.io.images import read_image
from densecal.io.masks import VOID
from densecal.io.pairs import Pair, read_class_pair, read_foreground_pair, resize_map
from densecal.io.suffixes import IMAGE_SUFFIXES
from densecal.metrics.entropy import binary_entropy, normalised_entropy
from densecal.metrics.levels import ROW_SCALARS
from densecal.report import pictures
from densecal.report.pictures import Picture
from densecal.report.strips import strip, worst_slices
from densecal.runtime.progress import Progress, retitle, silent

if TYPE_CHECKING:
    from densecal.evaluation.model import ImageSet
    from densecal.prediction.predictor import Predictor

Array = NDArray[Any]


@dataclass(frozen=True)
class Example:
    """One image and what one method predicts for it.

    Attributes:
        method: Name of the method.
        dataset: Name of the data set.
        name: Name of the image.
        confidence: Mean confidence over its pixels.
        accuracy: Share of its pixels that are right.
        entropy: Mean entropy over its pixels, as a share of its maximum.
        pictures: By heading.
    """

    method: str
    dataset: str
    name: str
    confidence: float
    accuracy: float
    entropy: float
    pictures: dict[str, Picture]


@dataclass(frozen=True)
class Folders:
    """The files behind evaluations, laid out as for ``densecal evaluate``.

    Attributes:
        predictions: Maps, METHOD/ folders or METHOD/DATASET/ folders of maps.
        masks: Masks, or DATASET/ folders of masks.
        images: Images, or DATASET/ folders of images; optional.
    """

    predictions: Path
    masks: Path
    images: Path | None = None


def folder_examples(
    records: Sequence[Record],
    folders: Folders,
    count: int,
    workers: int = 1,
    progress: Progress = silent,
) -> list[Example]:
    """Return the most over-confident images of every evaluation whose maps are in the folders.

    Args:
        records: Evaluation records.
        folders: Maps, masks and images.
        count: Images per evaluation.
        workers: Processes that read the maps.
        progress: Called at every step.

    Raises:
        InputError: The folders hold the maps of no record.
    """
    comparisons = find_comparisons(folders.predictions, folders.masks)
    matched = []
    for method, dataset, maps, masks in comparisons:
        record = _record_of(records, method, dataset, alone=len(comparisons) == 1)
        if record is not None:
            matched.append((record, maps, masks))
    if not matched:
        names = ", ".join(f"{method} on {dataset}" for method, dataset, *_ in comparisons[:3])
        raise InputError(folders.predictions, f"maps of {names}", "maps of the methods in the evaluations")
    examples = []
    for record, maps, masks in matched:
        images = None if folders.images is None else _images_of(folders.images, masks)
        examples += _map_examples(record, maps, masks, images, count, workers, progress)
    return examples


def model_examples(evaluation: Evaluation, predictor: Predictor, data: ImageSet, count: int) -> list[Example]:
    """Return the most over-confident images of a model that was evaluated on an image set.

    Args:
        evaluation: The evaluation of the model on the set.
        predictor: The model.
        data: The set.
        count: Number of images.
    """
    examples = []
    index = {name: i for i, name in enumerate(data.names)}
    for name, confidence, accuracy in most_overconfident(evaluation, count):
        image, truth = data.images[index[name]], data.masks[index[name]]
        p = predictor.probabilities([image])[0].double().cpu().numpy()
        void = truth == data.ignore_index if data.ignore_index is not None else None
        truth_picture = pictures.labels(truth, void) if data.classes > 1 else pictures.mask(truth > 0, void)
        p = resize_map(p, truth.shape) if p.shape[-2:] != truth.shape else p
        map_pictures, entropy = _map_pictures(p, void)
        shown = {"image": pictures.photo(image, truth.shape), "mask": truth_picture, **map_pictures}
        record = evaluation.record
        examples.append(Example(record.name, record.dataset, name, confidence, accuracy, entropy, shown))
    return examples


def most_overconfident(evaluation: Evaluation, count: int) -> list[tuple[str, float, float]]:
    """Return name, mean confidence and accuracy of the images whose confidence exceeds their accuracy most."""
    column = ROW_SCALARS.index
    pixels = np.maximum(evaluation.rows[:, column("count")], 1.0)
    confidence = evaluation.rows[:, column("confidence")] / pixels
    accuracy = evaluation.rows[:, column("correct")] / pixels
    order = np.argsort(accuracy - confidence, kind="stable")
    chosen = [i for i in order if evaluation.rows[i, column("count")] > 0][:count]
    return [(evaluation.stems[i], float(confidence[i]), float(accuracy[i])) for i in chosen]


def _map_examples(
    record: Record, maps: Path, masks: Path, images: Path | None, count: int, workers: int, progress: Progress
) -> list[Example]:
    settings = Settings(full=False, classes=record.settings.classes, ignore_index=record.settings.ignore_index)
    evaluation = evaluate(
        maps, masks, settings=settings, workers=workers, skip_bad=bool(record.skipped),
        progress=retitle(progress, f"{record.name} on {record.dataset}"),
    )  # fmt: skip
    plan, settings = plan_of(maps, masks, settings, skip_bad=True)
    pairs = {pair.stem: pair for pair in plan.pairs}
    examples = []
    for name, confidence, accuracy in most_overconfident(evaluation, count):
        shown, entropy = _read_pair(pairs[name], settings)
        image = None if images is None else _find_image(images, name)
        if image is not None:
            shown = {"image": pictures.photo(read_image(image, str(image))), **shown}
        examples.append(Example(record.name, record.dataset, name, confidence, accuracy, entropy, shown))
    return examples


def _read_pair(pair: Pair, settings: Settings) -> tuple[dict[str, Picture], float]:
    """Return pictures of mask and map, and the mean entropy."""
    labels: Array
    if settings.binary:
        read = read_foreground_pair(pair, settings.ignore_index, options=settings.maps)
        p, void, labels = read.prediction, read.mask.void, read.mask.foreground
    else:
        ignored = VOID if settings.ignore_index is None else settings.ignore_index
        several = read_class_pair(pair, settings.classes or 1, ignored, options=settings.maps)
        p, labels = several.prediction, several.labels
        void = labels == ignored
    if np.issubdtype(p.dtype, np.integer):
        p = p / np.iinfo(p.dtype).max
    if labels.ndim == 3:
        return _volume_pictures(p, labels, void, settings.binary)
    truth = pictures.mask(labels, void) if settings.binary else pictures.labels(labels, void)
    map_pictures, entropy = _map_pictures(p, void)
    return {"mask": truth, **map_pictures}, entropy


def _volume_pictures(p: Array, labels: Array, void: Array | None, binary: bool) -> tuple[dict[str, Picture], float]:
    """Return pictures of the worst slices of a volume, and the mean entropy of all of it."""
    valid = np.ones(labels.shape, bool) if void is None else ~void
    confidence = np.maximum(p, 1 - p) if binary else p.max(axis=0)
    predicted = p > 0.5 if binary else p.argmax(axis=0)
    slices = worst_slices(confidence, (predicted != labels) & valid)
    cut = None if void is None else strip(void, slices)
    shown = strip(labels, slices)
    truth = pictures.mask(shown, cut) if binary else pictures.labels(shown, cut)
    map_pictures, _ = _map_pictures(strip(p, slices), cut)
    entropy = binary_entropy(p) if binary else np.clip(normalised_entropy(p, axis=0), 0, 1)
    return {"mask": truth, **map_pictures}, float(entropy[valid].mean())


def _map_pictures(p: Array, void: Array | None) -> tuple[dict[str, Picture], float]:
    """Return prediction, confidence and entropy as pictures, and the mean entropy of the valid pixels."""
    if p.ndim == 2:
        prediction = pictures.unit_map("probability", p)
        confidence, entropy, least = np.maximum(p, 1 - p), binary_entropy(p), 0.5
    else:
        prediction = pictures.labels(p.argmax(axis=0))
        least = 1 / len(p)
        confidence, entropy = p.max(axis=0), np.clip(normalised_entropy(p, axis=0), 0, 1)
    shown = {
        "prediction": prediction,
        "confidence": pictures.unit_map("confidence", np.clip((confidence - least) / (1 - least), 0, 1)),
        "entropy": pictures.unit_map("entropy", entropy),
    }
    valid = entropy if void is None else entropy[~void]
    return shown, float(valid.mean())


def _record_of(records: Sequence[Record], method: str, dataset: str, alone: bool) -> Record | None:
    """Return the record of a folder of maps: by both names, by an unambiguous method, or the only one."""
    named = [record for record in records if record.name == method]
    both = [record for record in named if record.dataset == dataset]
    if both:
        return both[0]
    if len(named) == 1:
        return named[0]
    return records[0] if alone and len(records) == 1 else None


def _images_of(images: Path, masks: Path) -> Path:
    """Return the folder of a data set's images: its own subfolder, if there is one."""
    if not images.is_dir():
        raise InputError(images, "no such folder", "a folder of images")
    inner = images / masks.name
    return inner if inner.is_dir() else images


def _find_image(folder: Path, name: str) -> Path | None:
    for suffix in IMAGE_SUFFIXES:
        for path in (folder / f"{name}{suffix}", folder / f"{name}{suffix.upper()}"):
            if path.is_file():
                return path
    return None
