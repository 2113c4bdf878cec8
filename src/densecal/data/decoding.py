"""Decoding and resizing samples in several processes. Every worker imports this module, so it does not import torch."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.data.sources import SampleSource, Source
from densecal.errors import InputError
from densecal.io.masks import check_labels, foreground_mask
from densecal.runtime.cores import cores
from densecal.runtime.pool import map_in_processes
from densecal.runtime.progress import Progress, silent

CHUNK = 16


class Facts(NamedTuple):
    """Properties of a sample before resizing.

    Attributes:
        height: Height of the image.
        width: Width of the image.
        grey: Whether the mask holds grey values.
        lowest: Lowest level or label of the mask, except void; ``None`` if all of it is void.
        highest: Highest level or label.
    """

    height: int
    width: int
    grey: bool
    lowest: int | None
    highest: int | None


T = TypeVar("T")


class Task(Protocol[T]):
    """Work on every sample of a list, chunk by chunk."""

    @property
    def names(self) -> Sequence[str]:
        """Samples."""
        ...

    def run(self, start: int) -> list[T]:
        """Process the chunk that starts at a position, and return one result per sample."""
        ...


@dataclass(frozen=True)
class Job:
    """Samples to decode, and the two preallocated files for them.

    Attributes:
        source: Source of the images and masks.
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
        """Decode one chunk and write it at its position in the files."""
        facts = []
        # Plain writes, not a memory map: on a full disk they raise an error, while a map kills the process.
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
        """Return the resized image and mask of one sample, and facts about the originals."""
        image, mask, grey = read_sample(self.source, name, self.classes, self.ignore_index)
        side = (self.size, self.size)
        resample = Image.Resampling.BILINEAR if self.classes == 1 else Image.Resampling.NEAREST
        return (
            Image.fromarray(image).resize(side, Image.Resampling.BILINEAR).tobytes(),
            Image.fromarray(mask).resize(side, resample).tobytes(),
            Facts(image.shape[0], image.shape[1], grey, *level_range(mask, self.ignore_index)),
        )


@dataclass(frozen=True)
class Reading:
    """Samples to read into memory: images resized, masks as they are.

    Attributes:
        source: Source of the images and masks.
        names: Samples.
        size: Side of the images.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: The label of void pixels in K-class masks.
        without_foreground: Whether all masks are empty, and are not read.
    """

    source: SampleSource
    names: Sequence[str]
    size: int
    classes: int
    ignore_index: int | None
    without_foreground: bool

    def run(self, start: int) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Return image (size, size, 3) and mask (H, W), of 0 and 1 or of labels, for each sample of one chunk."""
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
    """Read and check an image and its mask: foreground masks become 0 and 255, label masks hold known labels.

    Returns:
        Image, mask, and whether the mask holds grey values.
    """
    image, mask = source.image(name), source.mask(name, classes)
    if image.shape[:2] != mask.shape:
        raise InputError(
            str(source.mask_location(name)),
            f"{mask.shape[1]} x {mask.shape[0]} pixels",
            f"{image.shape[1]} x {image.shape[0]} as in {source.image_location(name)}",
        )
    if classes == 1:
        binary = foreground_mask(mask)
        return image, binary.foreground * np.uint8(255), binary.grey
    check_labels(mask, str(source.mask_location(name)), classes, ignore_index)
    return image, mask, False


def level_range(mask: NDArray[np.uint8], ignore_index: int | None) -> tuple[int | None, int | None]:
    """Return the lowest and the highest level of a mask, without those of void pixels."""
    levels = np.flatnonzero(np.bincount(mask.ravel(), minlength=256))
    levels = levels[levels != ignore_index]
    return (int(levels[0]), int(levels[-1])) if len(levels) else (None, None)


def decode_all(
    task: Task[T],
    workers: int | None = None,
    progress: Progress = silent,
    folder: Path | None = None,
) -> list[T]:
    """Run a task on every sample, in several processes.

    Args:
        task: The samples and what to do with them.
        workers: Processes; ``None`` for one per core, 1 for this process alone.
        progress: Called with the number of samples done.
        folder: Folder for a temporary file that the processes share; by default the system's.

    Returns:
        One result per sample, in order.

    Raises:
        InputError: A file is invalid. The error names the first such file, and the rest is not decoded.
    """
    starts = range(0, len(task.names), CHUNK)
    workers = min(workers or cores(), len(starts))
    if workers == 1:
        return _gather(map(task.run, starts), len(task.names), progress)
    # A task holds the names of all files. It is pickled once, into a file: if it went through the pipe to each process
    # and did not fit, the next process could not start before this one has imported its modules and read the pipe.
    with _temporary_file(pickle.dumps(task), folder) as content:
        chunks = map_in_processes(
            _run, ((start,) for start in starts), workers, start=_start_worker, start_arguments=(content,)
        )
        return _gather(chunks, len(task.names), progress)


@contextlib.contextmanager
def _temporary_file(content: bytes, folder: Path | None) -> Iterator[Path]:
    """Write a file that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="densecal-", dir=folder))) / "task"
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
        os.nice(5)  # the caller may be busy on the same cores, for example with building a network


def _run(start: int) -> list[Any]:
    return _task.run(start)
