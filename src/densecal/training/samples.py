"""The samples of a run: where they come from, their order in an epoch, and batches on the device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densecal.data import Source, open_source, pack, split
from densecal.data.caches import cache_root
from densecal.data.scenes import generate
from densecal.data.sources import SampleSource
from densecal.errors import InputError
from densecal.io.groups import Groups
from densecal.runtime.progress import Progress, retitle, silent
from densecal.training.sections import DataConfig, ScenesConfig

PURPOSES = ("training", "validation")


class Samples(Protocol):
    """Images and masks by index, such as the packed cache or generated scenes."""

    names: list[str]

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return uint8 images (B, 3, H, W) and uint8 masks (B, H, W)."""
        ...

    def keep_on_device(self, device: torch.device | str) -> bool:
        """Keep all samples on the device if they fit, and return whether they do."""
        ...


class ArraySamples:
    """Samples in memory.

    Args:
        names: One per sample.
        images: uint8 (N, H, W, 3).
        masks: uint8 (N, H, W).
    """

    def __init__(self, names: list[str], images: NDArray[np.uint8], masks: NDArray[np.uint8]) -> None:
        self.names = names
        self._images, self._masks = images, masks
        self._on_device: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Gather samples."""
        if self._on_device is not None:
            images, masks = self._on_device
            # a blocking copy would make every step wait for the one before
            rows = torch.from_numpy(indices).to(images.device, non_blocking=True)
            return images[rows].permute(0, 3, 1, 2), masks[rows]
        # numpy, because torch in a second thread starts threads of its own that take the network's cores
        images_, masks_ = self._images[indices], self._masks[indices]
        return torch.from_numpy(images_).permute(0, 3, 1, 2), torch.from_numpy(masks_)

    def keep_on_device(self, device: torch.device | str) -> bool:
        """Move all samples to a CUDA device, and return whether it is one."""
        if torch.device(device).type != "cuda":
            return False
        self._on_device = (torch.from_numpy(self._images).to(device), torch.from_numpy(self._masks).to(device))
        return True


@dataclass(frozen=True)
class Data:
    """The training and validation samples of a run, and the warnings of packing them."""

    train: Samples
    validation: Samples
    notes: list[str]


@dataclass(frozen=True)
class SceneSource:
    """Generated scenes, read by name like the files of a ``Source``.

    Attributes:
        names: One per scene.
        images: uint8 (N, H, W, 3).
        masks: uint8 (N, H, W), 0 and 255.
    """

    names: list[str]
    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    has_masks = True

    def image(self, name: str) -> NDArray[np.uint8]:
        """Return an image (H, W, 3)."""
        return np.asarray(self.images[self._rows[name]])

    def mask(self, name: str, classes: int | None = None) -> NDArray[np.uint8]:
        """Return a mask (H, W)."""
        return np.asarray(self.masks[self._rows[name]])

    def image_location(self, name: str) -> str:
        """Return what messages call an image."""
        return name

    def mask_location(self, name: str) -> str:
        """Return what messages call a mask."""
        return name

    def samples(self, names: list[str]) -> ArraySamples:
        """Return consecutive scenes as samples for training."""
        part = slice(self._rows[names[0]], self._rows[names[-1]] + 1)
        return ArraySamples(names, self.images[part], self.masks[part])

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}


@dataclass(frozen=True)
class Part:
    """The training or the validation images of a run.

    Attributes:
        paths: Paths in the configuration; empty for generated scenes.
        source: Reads images and masks.
        names: Names of the samples.
    """

    paths: list[str]
    source: SampleSource
    names: list[str]


def open_parts(config: DataConfig) -> tuple[Part, Part]:
    """List the training and the validation images of a configuration without reading them.

    Raises:
        InputError: Files are missing, or one of the two parts would be empty.
    """
    if config.scenes is not None:
        return _scene_parts(config.scenes, config.size)
    assert config.images is not None
    paths = config.images if isinstance(config.images, list) else [config.images]
    source = open_source(config.images, config.masks)
    held_out = config.validation
    if isinstance(held_out, str) and (Path(held_out).is_dir() or held_out.lower().endswith(".zip")):
        other = open_source(held_out)
        return Part(paths, source, source.names), Part([held_out], other, other.names)
    groups = None if config.groups is None else Groups(config.groups, "data.groups")
    train, validation = split(source.names, held_out, seed=0, groups=groups)
    if not validation:
        raise InputError("data.validation", f"{held_out!r}, which leaves no image", "at least one image")
    return Part(paths, source, train), Part(paths, source, validation)


def cache_folders(config: DataConfig) -> list[Path]:
    """Return the folders in which the training and validation images of a configuration are packed."""
    if config.scenes is not None:
        return []
    if config.cache:
        return [Path(config.cache) / purpose for purpose in PURPOSES]
    return [_cache_folder(config, part) for part in open_parts(config)]


def open_data(config: DataConfig, progress: Progress = silent) -> Data:
    """Open, and pack where needed, the training and validation samples of a configuration."""
    parts: list[Samples] = []
    notes: list[str] = []
    for purpose, part in zip(PURPOSES, open_parts(config), strict=True):
        if isinstance(part.source, SceneSource):
            parts.append(part.source.samples(part.names))
            continue
        assert isinstance(part.source, Source)
        packed = pack(
            part.source,
            part.names,
            config.size,
            Path(config.cache) / purpose if config.cache else _cache_folder(config, part),
            classes=config.classes,
            workers=config.workers,
            progress=retitle(progress, f"Packing {purpose} images"),
            ignore_index=config.ignore_index,
        )
        parts.append(packed)
        notes += [f"{purpose}: {warning}" for warning in packed.warnings]
    train, validation = parts
    return Data(train, validation, notes)


@dataclass(frozen=True)
class Batch:
    """The samples of one process in one step.

    Attributes:
        ids: Sample ids; -1 is padding, where a process has one sample less than another.
        global_size: Number of samples in this step over all processes.
    """

    ids: NDArray[np.int64]
    global_size: int

    @property
    def own_size(self) -> int:
        """Number of samples that are not padding."""
        return int((self.ids >= 0).sum())


def epoch_batches(count: int, batch: int, epoch: int, seed: int, rank: int, world: int) -> list[Batch]:
    """Return the batches of one process in an epoch.

    The order is a function of (seed, epoch). Batches differ in size by at most one, so none is left over.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % (1 << 63))
    order = torch.randperm(count, generator=generator).numpy()
    pieces = -(-count // batch)
    if batch > 1 and count // pieces == 1 < count:  # one image alone has no batch statistics
        pieces = max(1, count // batch)
    return [_share_of_process(whole, rank, world) for whole in np.array_split(order, pieces)]


def validation_batches(count: int, batch: int, rank: int, world: int) -> list[Batch]:
    """Return the batches of one process's share of the validation samples, in order."""
    own = np.arange(rank, count, world)
    return [Batch(own[i : i + batch], len(own[i : i + batch])) for i in range(0, len(own), batch)]


def _share_of_process(whole: NDArray[np.int64], rank: int, world: int) -> Batch:
    ids = np.full(-(-len(whole) // world), -1, np.int64)
    mine = whole[rank::world]
    ids[: len(mine)] = mine
    return Batch(ids, len(whole))


def to_device(images: Tensor, masks: Tensor, device: torch.device, classes: int) -> tuple[Tensor, Tensor]:
    """Move a batch to the device in the types that methods take.

    Images and foreground masks (B, 1, H, W) become floats in [0, 1], class labels (B, H, W) int64.
    """
    images = images.to(device, non_blocking=True).to(torch.float32, memory_format=torch.channels_last) / 255
    masks = masks.to(device, non_blocking=True)
    return images, masks.long() if classes > 1 else masks[:, None].float() / 255


def _scene_parts(config: ScenesConfig, size: int) -> tuple[Part, Part]:
    scenes = generate(
        config.train + config.validation, size, config.seed, config.softness, config.doubtful, config.noise
    )
    names = [f"train-{i:05}" for i in range(config.train)] + [f"validation-{i:05}" for i in range(config.validation)]
    source = SceneSource(names, scenes.images, scenes.masks)
    return Part([], source, names[: config.train]), Part([], source, names[config.train :])


def _cache_folder(config: DataConfig, part: Part) -> Path:
    """Return a folder of the user's cache whose name depends on what is packed and how."""
    digest = hashlib.sha256()
    paths = [*part.paths, *([config.masks] if config.masks else [])]
    for text in (*(str(Path(path).resolve()) for path in paths), *part.names, f"{config.size} {config.classes}"):
        digest.update(text.encode("utf-8", "surrogateescape") + b"\n")
    return cache_root() / digest.hexdigest()[:24]
