"""The image sets of a benchmark, each read once per process, however many cells use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from densecal.benchmark.matrix import Dataset
from densecal.data import open_source
from densecal.data.informationless import without_information
from densecal.data.scenes import generate
from densecal.errors import InputError
from densecal.evaluation.model import ImageSet, load_image_set, load_validation_set
from densecal.evaluation.record import VALIDATION
from densecal.evaluation.shift import shifted_set
from densecal.io.groups import Groups
from densecal.runtime.progress import Progress, silent
from densecal.training.config import Config
from densecal.training.sections import DataConfig

_STRIPPED_AT_ONCE = 64


class ImageSets:
    """Image sets that are read on first use and kept."""

    def __init__(self) -> None:
        self._kept: dict[str, ImageSet] = {}

    def of(self, config: Config, datasets: tuple[Dataset, ...], progress: Progress = silent) -> list[ImageSet]:
        """Return the validation images of a run, followed by the data sets, at the size its network sees."""
        return [self._validation(config.data, progress), *(self._read(d, config.data, progress) for d in datasets)]

    def _validation(self, data: DataConfig, progress: Progress) -> ImageSet:
        return self._read_once(f"{VALIDATION} {data.model_dump_json()}", lambda: load_validation_set(data, progress))

    def _read(self, dataset: Dataset, data: DataConfig, progress: Progress) -> ImageSet:
        def read() -> ImageSet:
            if dataset.shift is not None:
                clean = self._read(dataset.model_copy(update={"shift": None}), data, progress)
                return shifted_set(clean, dataset.shift.kind, dataset.shift.severity)
            if dataset.informationless:
                return _strip_set(dataset.name, self._validation(data, progress))
            if dataset.scenes is not None:
                s = dataset.scenes
                scenes = generate(s.count, data.size, s.seed, s.softness, s.doubtful, s.noise)
                return _scene_set(dataset.name, scenes.images, scenes.masks)
            assert dataset.images is not None
            return load_image_set(
                dataset.name, dataset.images, dataset.masks, size=data.size, classes=data.classes,
                ignore_index=data.ignore_index if data.classes > 1 else None,
                without_foreground=dataset.ood, groups=_groups(dataset), workers=data.workers, progress=progress,
            )  # fmt: skip

        shape = f"{data.size} {data.classes} {data.ignore_index}"
        depends_on = data.model_dump_json() if dataset.informationless else shape
        return self._read_once(f"{dataset.model_dump_json()} {depends_on}", read)

    def _read_once(self, key: str, read: Callable[[], ImageSet]) -> ImageSet:
        if key not in self._kept:
            self._kept[key] = read()
        return self._kept[key]


def check_datasets(datasets: list[Dataset]) -> None:
    """Check that the files of the data sets exist, before anything is trained.

    Raises:
        InputError: A file is missing.
    """
    for dataset in datasets:
        if dataset.images is not None:
            source = open_source(dataset.images, dataset.masks)
            if (groups := _groups(dataset)) is not None:
                groups.of(source.names)
            if not (source.has_masks or dataset.ood):
                raise InputError(
                    f"datasets: {dataset.name}",
                    "images without masks",
                    "masks, or ood: true if no image shows an object",
                )


def _groups(dataset: Dataset) -> Groups | None:
    return None if dataset.groups is None else Groups(dataset.groups, f"datasets: {dataset.name}: groups")


def _strip_set(name: str, data: ImageSet) -> ImageSet:
    """Return a data set without the objects of its images, and with empty masks of the same sizes."""
    return replace(
        data,
        name=name,
        images=np.concatenate([_strip(data, i) for i in range(0, len(data), _STRIPPED_AT_ONCE)]),
        masks=[np.zeros_like(mask) for mask in data.masks],
    )


def _strip(data: ImageSet, first: int) -> NDArray[np.uint8]:
    part = slice(first, first + _STRIPPED_AT_ONCE)
    images = torch.from_numpy(data.images[part]).permute(0, 3, 1, 2).float() / 255
    size = images.shape[2:]
    masks = [interpolate(torch.from_numpy(mask)[None, None].float(), size=size) for mask in data.masks[part]]
    index = torch.arange(first, first + len(images))
    stripped = without_information(images, torch.cat(masks), index, epoch=0, seed=0)
    return (stripped * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def _scene_set(
    name: str,
    images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    masks: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> ImageSet:
    return ImageSet(name, [f"{i:05}" for i in range(len(images))], images, list(masks // 255))
