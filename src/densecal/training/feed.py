"""What the loop eats: the samples of a run, the order of an epoch, batches on the device."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densecal.data import Source, open_source, pack, split
from densecal.errors import InputError
from densecal.training.config import DataConfig

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


class Samples(Protocol):
    """Images and masks by index; the packed cache is one, generated scenes are another."""

    names: list[str]

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """uint8 images (B, 3, H, W) and uint8 masks (B, H, W)."""
        ...

    def resident(self, device: torch.device | str) -> bool:
        """Keep everything on the device if it fits."""
        ...


class ArraySamples:
    """Samples that are in memory already.

    Args:
        names: One a sample.
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
            # a blocking copy would let every step wait for the one before
            rows = torch.from_numpy(indices).to(images.device, non_blocking=True)
            return images[rows].permute(0, 3, 1, 2), masks[rows]
        # numpy, because torch in a second thread starts threads of its own that take the network's cores
        images_, masks_ = self._images[indices], self._masks[indices]
        return torch.from_numpy(images_).permute(0, 3, 1, 2), torch.from_numpy(masks_)

    def resident(self, device: torch.device | str) -> bool:
        """Move everything to a CUDA device."""
        if torch.device(device).type != "cuda":
            return False
        self._on_device = (torch.from_numpy(self._images).to(device), torch.from_numpy(self._masks).to(device))
        return True


@dataclass(frozen=True)
class Data:
    """The two sides of a run, and what packing them had to say."""

    train: Samples
    validation: Samples
    notes: list[str]


@dataclass(frozen=True)
class Part:
    """The training or the validation images of a run, where they are files.

    Attributes:
        paths: What the configuration names.
        source: Where images and masks are read.
        names: The samples.
    """

    paths: list[str]
    source: Source
    names: list[str]


def open_parts(config: DataConfig) -> tuple[Part, Part]:
    """The training and the validation images of a configuration, unread.

    Raises:
        InputError: If files are missing, or one of the two would be empty.
    """
    assert config.images is not None
    paths = config.images if isinstance(config.images, list) else [config.images]
    source = open_source(config.images, config.masks)
    given = config.validation
    if isinstance(given, str) and (Path(given).is_dir() or given.lower().endswith(".zip")):
        other = open_source(given)
        return Part(paths, source, source.names), Part([given], other, other.names)
    train, validation = split(source.names, given, seed=0)
    if not validation:
        raise InputError("data.validation", f"{given!r}, which leaves no image", "at least one image")
    return Part(paths, source, train), Part(paths, source, validation)


def open_data(config: DataConfig, progress: Progress | None = None) -> Data:
    """Open, and pack where needed, the training and validation samples of a configuration."""
    if config.scenes is not None:
        return _scenes(config)
    packed = []
    notes: list[str] = []
    for side, part in zip(("training", "validation"), open_parts(config), strict=True):
        folder = Path(config.cache) / side if config.cache else _cache_folder(config, part)
        report = None if progress is None else _for_side(progress, side)
        packed.append(
            pack(
                part.source,
                part.names,
                config.size,
                folder,
                classes=config.classes,
                workers=config.workers,
                progress=report,
                ignore_index=config.ignore_index,
            )
        )
        notes += [f"{side}: {warning}" for warning in packed[-1].warnings]
    return Data(packed[0], packed[1], notes)


@dataclass(frozen=True)
class Batch:
    """The samples of one process in one step.

    Attributes:
        ids: Sample ids; -1 pads where a process has one sample less than another.
        whole: Samples of this step over all processes.
    """

    ids: NDArray[np.int64]
    whole: int

    @property
    def own(self) -> int:
        """Samples that are not padding."""
        return int((self.ids >= 0).sum())


def epoch_batches(count: int, batch: int, epoch: int, seed: int, rank: int, world: int) -> list[Batch]:
    """The batches of one process in an epoch.

    The order is a function of (seed, epoch). Batches differ in size by at most one, so that none is left over.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % (1 << 63))
    order = torch.randperm(count, generator=generator).numpy()
    pieces = -(-count // batch)
    if batch > 1 and count // pieces == 1 < count:  # one image alone has no batch statistics
        pieces = max(1, count // batch)
    return [_shared_out(whole, rank, world) for whole in np.array_split(order, pieces)]


def validation_batches(count: int, batch: int, rank: int, world: int) -> list[Batch]:
    """The batches of one process's share of the validation samples, in order."""
    own = np.arange(rank, count, world)
    return [Batch(own[i : i + batch], len(own[i : i + batch])) for i in range(0, len(own), batch)]


def _shared_out(whole: NDArray[np.int64], rank: int, world: int) -> Batch:
    ids = np.full(-(-len(whole) // world), -1, np.int64)
    mine = whole[rank::world]
    ids[: len(mine)] = mine
    return Batch(ids, len(whole))


def to_device(
    images: Tensor, masks: Tensor, device: torch.device, classes: int, channels_last: bool
) -> tuple[Tensor, Tensor]:
    """Images as floats in [0, 1]; foreground masks (B, 1, H, W) as floats in [0, 1], labels (B, H, W) as int64."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    images = images.to(device, non_blocking=True).to(torch.float32, memory_format=layout) / 255
    masks = masks.to(device, non_blocking=True)
    return images, masks.long() if classes > 1 else masks[:, None].float() / 255


def prefetched(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Run an iterator in a thread, a few items ahead; its errors surface here."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in items:
                ready.put((True, item))
                if stop.is_set():
                    return
            ready.put((False, None))
        except BaseException as error:
            ready.put((False, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if not more:
                if isinstance(item, BaseException):
                    raise item
                return
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        while thread.is_alive():  # a full queue would keep the thread waiting
            try:
                ready.get_nowait()
            except queue.Empty:
                thread.join(0.01)


def _scenes(config: DataConfig) -> Data:
    from densecal.data.scenes import generate

    scenes = config.scenes
    assert scenes is not None
    made = generate(
        scenes.train + scenes.validation, config.size, scenes.seed, scenes.softness, scenes.doubtful, scenes.noise
    )
    sides = []
    for side, part in (("train", slice(scenes.train)), ("validation", slice(scenes.train, None))):
        images, masks = made.images[part], made.masks[part]
        sides.append(ArraySamples([f"{side}-{i:05}" for i in range(len(images))], images, masks))
    return Data(sides[0], sides[1], [])


def _cache_folder(config: DataConfig, part: Part) -> Path:
    """A folder of the user's cache that depends on what is packed and how."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "densecal" / "packed"
    digest = hashlib.sha256()
    paths = [*part.paths, *([config.masks] if config.masks else [])]
    for text in (*(str(Path(path).resolve()) for path in paths), *part.names, f"{config.size} {config.classes}"):
        digest.update(text.encode("utf-8", "surrogateescape") + b"\n")
    return base / digest.hexdigest()[:24]


def _for_side(progress: Progress, side: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(f"Packing {side} images", done, total)
