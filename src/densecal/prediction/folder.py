"""Predicting a folder: a trained model and images in, a folder of probability maps out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from densecal.data import Source, open_source
from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.map_files import FORMATS, map_targets, write_map
from densecal.io.outputs import check_output_folder, check_outputs
from densecal.io.urls import fetch_ahead, is_folder
from densecal.metrics.entropy import confidence_and_entropy
from densecal.prediction.batches import Chunks, group_by_pixels
from densecal.runtime.prefetch import prefetch
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import ALONE, Processes

if TYPE_CHECKING:
    from densecal.prediction.predictor import Predictor
    from densecal.prediction.tiles import Tiling

Array = NDArray[Any]
_IMAGES_AHEAD = 64
"""Remote images that are read at once."""
Maps = Callable[[list[Array]], Iterator[Chunks]]
"""From images (H, W, 3) of bytes to the probabilities of each, in chunks of rows."""


def predict(
    predictor: Predictor,
    images: Path,
    out: Path,
    *,
    format: str | None = None,
    uncertainty: bool = False,
    batch: int = 8,
    tiling: Tiling | None = None,
    like_onnx: bool = False,
    max_pixels: int = MAX_PIXELS,
    progress: Progress = silent,
    processes: Processes = ALONE,
    reads: Iterable[Path] = (),
    force: bool = False,
) -> int:
    """Write the probability map of every image of a folder. No map is stretched to its own range.

    Args:
        predictor: The model.
        images: Folder of images, one image, a zip with ``images/``, or a list file.
        out: Folder for the maps, one per stem.
        format: ``png16`` (default), ``png8`` or ``npy`` (float32; the default for several classes).
        uncertainty: Also write the confidence of the winning class and the entropy, as a share of its maximum, into
            ``confidence/`` and ``entropy/``.
        batch: Images at a time; for tiles, as many tiles as have the pixels of these images.
        tiling: Cut images into tiles at their own resolution; by default they are resized to the size of training.
        like_onnx: Resize probabilities in place of logits, as users of an exported file do.
        max_pixels: Refuse larger images.
        progress: Receives the number of maps written.
        processes: The processes that share the work, batch by batch; all of them make this call.
        reads: Further files that must not be written over, such as those of the model.
        force: Also replace files that no earlier prediction wrote, but never an image.

    Returns:
        Number of maps written by all processes, on the first of them.
    """
    maps: Maps = partial(predictor.chunks, like_onnx=like_onnx)
    if tiling is not None:
        maps = partial(predictor.tiled_chunks, tiling=tiling, batch=batch)
    return write_maps(
        maps,
        predictor.config.data.classes,
        images,
        out,
        format=format,
        uncertainty=uncertainty,
        batch=batch,
        max_pixels=max_pixels,
        progress=progress,
        processes=processes,
        reads=reads,
        force=force,
    )


def write_maps(
    maps: Maps,
    classes: int,
    images: Path,
    out: Path,
    *,
    format: str | None = None,
    uncertainty: bool = False,
    batch: int = 8,
    max_pixels: int = MAX_PIXELS,
    progress: Progress = silent,
    processes: Processes = ALONE,
    reads: Iterable[Path] = (),
    force: bool = False,
) -> int:
    """Write the map of every image of a folder that a function computes; the arguments are those of `predict`.

    Args:
        maps: From images to the probabilities of each.
        classes: 1 for foreground maps, K for maps of K classes.

    Returns:
        Number of maps written by all processes, on the first of them.
    """
    format = check_format(format, classes)
    source = open_source(images)
    try:
        check_maps(source, images, out, format, uncertainty, reads, force)
        own = processes.share(cut_batches(source.names, batch))
        outcome: int | InputError = write_batches(
            maps, source, own, out, format, uncertainty=uncertainty, max_pixels=max_pixels, progress=progress
        )
    except InputError as error:  # the other processes wait for the count of this one
        outcome = error
    done = 0
    for count in processes.gather(outcome) or [outcome]:
        if isinstance(count, InputError):
            raise count
        done += count
    return done


def check_format(format: str | None, classes: int) -> str:
    """Return the format of the maps, which must be able to hold them."""
    format = format or ("npy" if classes > 1 else "png16")
    if format not in FORMATS or (classes > 1 and format != "npy"):
        raise InputError("--format", format, "npy for several classes, else one of " + ", ".join(FORMATS))
    return format


def check_maps(
    source: Source, images: Path, out: Path, format: str, uncertainty: bool, reads: Iterable[Path], force: bool
) -> None:
    """Refuse to write maps over images, over the model, or over files that no prediction wrote."""
    parents = {file.parent for file in source.files()} if is_folder(images) else set()
    check_output_folder(out, [images, *parents])
    folders = [out, *(out / name for name in ("confidence", "entropy") if uncertainty)]
    kinds = ["npy" if format == "npy" else "png"]
    targets = [target for folder in folders for target in map_targets(folder, source.names, kinds)]
    check_outputs("predict", targets, chain(source.files(), [images], reads), force)


def write_batches(
    maps: Maps,
    source: Source,
    batches: Sequence[list[str]],
    out: Path,
    format: str,
    *,
    uncertainty: bool = False,
    max_pixels: int = MAX_PIXELS,
    progress: Progress = silent,
) -> int:
    """Write the maps of some batches of names and return their number."""
    write = partial(write_map, format=format, command="predict", planes=confidence_and_entropy if uncertainty else None)
    total = sum(len(names) for names in batches)
    done = 0
    for group in prefetch(_read(source, batches, max_pixels), depth=1):
        for (name, image), chunks in zip(group, maps([image for _, image in group]), strict=True):
            write(out / name, chunks, image.shape[:2])
        done += len(group)
        progress("Predicting", done, total)
    return done


def cut_batches(names: list[str], batch: int) -> list[list[str]]:
    """Cut names into batches, the same however many processes share them."""
    return [names[first : first + batch] for first in range(0, len(names), batch)]


def _read(source: Source, batches: Sequence[list[str]], max_pixels: int) -> Iterator[list[tuple[str, Array]]]:
    """Yield names and images in batches, and fewer at a time if they are large."""
    at_once = max(1, _IMAGES_AHEAD // max(map(len, batches), default=1))
    for names in fetch_ahead(batches, source.image_files, at_once):
        named = ((name, source.image(name, max_pixels)) for name in names)
        yield from group_by_pixels(named, lambda one: one[1].size // 3, len(names))
