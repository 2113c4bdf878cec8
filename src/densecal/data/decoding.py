"""Decode and resize samples into flat files, in several processes; every worker imports this, so no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from densecal.data.sources import Source
from densecal.errors import InputError

_CHUNK = 16
_BINARISE_ABOVE = 127

Facts = tuple[int, int, bool]
"""Height and width of an image before resizing, and whether its mask held grey values."""


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

    def write(self, start: int) -> list[Facts]:
        """Decode one chunk and write it where it belongs."""
        facts = []
        # Plain writes, not a map: on a full disk they raise, a map kills the process.
        with self.images.open("r+b") as images, self.masks.open("r+b") as masks:
            images.seek(start * self.size**2 * 3)
            masks.seek(start * self.size**2)
            for name in self.names[start : start + _CHUNK]:
                image, mask, fact = self.decode(name)
                images.write(image)
                masks.write(mask)
                facts.append(fact)
        return facts

    def decode(self, name: str) -> tuple[bytes, bytes, Facts]:
        """Resized image and mask of one sample, and facts about the originals."""
        image, mask = self.source.image(name), self.source.mask(name, self.classes)
        if image.shape[:2] != mask.shape:
            raise InputError(
                str(self.source.mask_location(name)),
                f"{mask.shape[1]} x {mask.shape[0]} pixels",
                f"{image.shape[1]} x {image.shape[0]} as in {self.source.image_location(name)}",
            )
        grey = False
        resample = Image.Resampling.NEAREST
        if self.classes == 1:
            grey = bool(np.any((mask > 0) & (mask < 255)))
            mask = np.where(mask > _BINARISE_ABOVE, np.uint8(255), np.uint8(0))
            resample = Image.Resampling.BILINEAR
        elif (unknown := mask[(mask >= self.classes) & (mask != self.ignore_index)]).size:
            raise InputError(
                str(self.source.mask_location(name)),
                f"label {unknown[0]}",
                f"labels 0 to {self.classes - 1}, or {self.ignore_index} for void pixels",
            )
        side = (self.size, self.size)
        return (
            Image.fromarray(image).resize(side, Image.Resampling.BILINEAR).tobytes(),
            Image.fromarray(mask).resize(side, resample).tobytes(),
            (image.shape[0], image.shape[1], grey),
        )


def decode_all(job: Job, workers: int | None = None, progress: Callable[[int, int], None] | None = None) -> list[Facts]:
    """Decode every sample of a job.

    Args:
        job: The samples and where they go.
        workers: Processes; ``None`` for one a core, 1 for none but this one.
        progress: Called with (samples done, samples in all).

    Returns:
        Facts about every sample, in order.

    Raises:
        InputError: Naming the first bad file; the rest is not decoded.
    """
    starts = range(0, len(job.names), _CHUNK)
    workers = min(workers or _cores(), len(starts))
    if workers == 1:
        return _gather(map(job.write, starts), len(job.names), progress)
    methods = multiprocessing.get_all_start_methods()
    # Not fork: the caller may hold threads and a CUDA context.
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(job,))
    try:
        return _gather(pool.map(_write, starts), len(job.names), progress)
    except BrokenProcessPool:
        raise InputError(
            "workers",
            f"one of {workers} decoding processes died",
            'enough memory for them, and a script that guards its main part with if __name__ == "__main__"; '
            "workers=1 decodes without them",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # the cores this process may use, which can be fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gather(chunks: Iterable[list[Facts]], total: int, progress: Callable[[int, int], None] | None) -> list[Facts]:
    facts: list[Facts] = []
    for chunk in chunks:
        facts += chunk
        if progress is not None:
            progress(len(facts), total)
    return facts


_job: Job


def _start_worker(job: Job) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers the keyboard
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's workers outlive a parent that is killed, waiting for ever; these do not."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write(start: int) -> list[Facts]:
    return _job.write(start)
