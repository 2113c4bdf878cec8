"""Decode and resize samples into flat files, in several processes; every worker imports this, so no torch."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.data.sources import SampleSource, Source
from densecal.errors import InputError
from densecal.io.masks import check_labels, foreground_mask
from densecal.runtime.pool import cores, map_in_processes
from densecal.runtime.progress import Progress, silent

CHUNK = 16

Facts = tuple[int, int, bool]
"""Height and width of an image before resizing, and whether its mask held grey values."""


T = TypeVar("T")


class Task(Protocol[T]):
    """Work on every sample of a list, chunk by chunk."""

    @property
    def names(self) -> Sequence[str]:
        """Samples."""
        ...

    def run(self, start: int) -> list[T]:
        """Do the chunk that starts there; one result a sample."""
        ...


@dataclass(frozen=True)
class Job:
    """What to decode, and the two preallocated files it goes to.

    Attributes:
        source: Where images and masks are read.
        names: Samples, in the order of the files.
        size: Side in pixels.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: The label of void pixels in K-class masks.
        images: File of len(names) * size * size * 3 bytes.
        masks: File of len(names) * size * size bytes.
    """

    source: Source
    names: Sequence[str]
    size: int
    classes: int
    ignore_index: int | None
    images: Path
    masks: Path

    def run(self, start: int) -> list[Facts]:
        """Decode one chunk and write it where it belongs."""
        facts = []
        # Plain writes, not a map: on a full disk they raise, a map kills the process.
        with self.images.open("r+b") as images, self.masks.open("r+b") as masks:
            images.seek(start * self.size**2 * 3)
            masks.seek(start * self.size**2)
            for name in self.names[start : start + CHUNK]:
                image, mask, fact = self.decode(name)
                images.write(image)
                masks.write(mask)
                facts.append(fact)
        return facts

    def decode(self, name: str) -> tuple[bytes, bytes, Facts]:
        """Resized image and mask of one sample, and facts about the originals."""
        image, mask, grey = read_sample(self.source, name, self.classes, self.ignore_index)
        side = (self.size, self.size)
        resample = Image.Resampling.BILINEAR if self.classes == 1 else Image.Resampling.NEAREST
        return (
            Image.fromarray(image).resize(side, Image.Resampling.BILINEAR).tobytes(),
            Image.fromarray(mask).resize(side, resample).tobytes(),
            (image.shape[0], image.shape[1], grey),
        )


@dataclass(frozen=True)
class Reading:
    """Samples to be read into memory: images resized, masks as they are.

    Attributes:
        source: Where images and masks are read.
        names: Samples.
        size: Side of the images.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: The label of void pixels in K-class masks.
        without_foreground: Masks are not read but empty.
    """

    source: SampleSource
    names: Sequence[str]
    size: int
    classes: int
    ignore_index: int | None
    without_foreground: bool

    def run(self, start: int) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Image (size, size, 3) and mask (H, W) of 0 and 1 or labels, for one chunk."""
        return [self._read(name) for name in self.names[start : start + CHUNK]]

    def _read(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        if self.without_foreground:
            image = self.source.image(name)
            mask = np.zeros(image.shape[:2], np.uint8)
        else:
            image, mask, _ = read_sample(self.source, name, self.classes, self.ignore_index)
            if self.classes == 1:
                mask //= 255
        resized = Image.fromarray(image).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(resized), mask


def read_sample(
    source: SampleSource, name: str, classes: int, ignore_index: int | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """An image and its mask, checked: foreground masks hold 0 and 255, label maps known labels.

    Returns:
        Image, mask, and whether the mask held grey values.
    """
    image, mask = source.image(name), source.mask(name, classes)
    if image.shape[:2] != mask.shape:
        raise InputError(
            str(source.mask_location(name)),
            f"{mask.shape[1]} x {mask.shape[0]} pixels",
            f"{image.shape[1]} x {image.shape[0]} as in {source.image_location(name)}",
        )
    if classes == 1:
        found = foreground_mask(mask)
        return image, found.foreground * np.uint8(255), found.grey
    check_labels(mask, str(source.mask_location(name)), classes, ignore_index)
    return image, mask, False


def decode_all(
    task: Task[T],
    workers: int | None = None,
    progress: Progress = silent,
    folder: Path | None = None,
) -> list[T]:
    """Do a task on every sample, in several processes.

    Args:
        task: The samples and what to do with them.
        workers: Processes; ``None`` for one a core, 1 for none but this one.
        progress: Told how many samples are done.
        folder: Where a file for the processes may lie meanwhile; the system's for temporary files unless given.

    Returns:
        One result a sample, in order.

    Raises:
        InputError: Naming the first bad file; the rest is not decoded.
    """
    starts = range(0, len(task.names), CHUNK)
    workers = min(workers or cores(), len(starts))
    if workers == 1:
        return _gather(map(task.run, starts), len(task.names), progress)
    # A task holds the names of all files: pickled once, and in a file, because a process that is started with more
    # than a pipe holds keeps the next one waiting until it has imported its modules and read it.
    with _written(pickle.dumps(task), folder) as content:
        chunks = map_in_processes(
            _run, ((start,) for start in starts), workers, start=_start_worker, start_arguments=(content,)
        )
        return _gather(chunks, len(task.names), progress)


@contextlib.contextmanager
def _written(content: bytes, folder: Path | None) -> Iterator[Path]:
    """A file with this content, gone afterwards."""
    with contextlib.ExitStack() as places:
        try:
            place = places.enter_context(tempfile.TemporaryDirectory(prefix="densecal-", dir=folder))
            path = Path(place) / "task"
            path.write_bytes(content)
        except OSError as error:
            if folder is not None:
                raise
            expected = "a folder for temporary files that can be written to; workers=1 needs none"
            raise InputError("TMPDIR", str(error), expected) from error
        yield path


def _gather(chunks: Iterable[list[T]], total: int, progress: Progress) -> list[T]:
    results: list[T] = []
    for chunk in chunks:
        results += chunk
        progress("Reading", len(results), total)
    return results


_task: Task[Any]


def _start_worker(content: Path) -> None:
    global _task
    _task = pickle.loads(content.read_bytes())
    if sys.platform != "win32":
        os.nice(5)  # the caller may have work of its own meanwhile, such as building a network, on as many cores


def _run(start: int) -> list[Any]:
    return _task.run(start)
