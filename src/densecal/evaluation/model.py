"""Evaluating a model on a data set: one pass over the images gives every figure, with and without calibrators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from densecal.data import open_source
from densecal.data.decoding import Reading, decode_all
from densecal.errors import InputError
from densecal.evaluation.folders import Evaluation
from densecal.evaluation.record import VALIDATION, Calibration, Entropy
from densecal.evaluation.totals import Total
from densecal.evaluation.worker import Settings
from densecal.io.groups import Groups
from densecal.metrics.fine_bins import histograms
from densecal.metrics.flips import flip_rate
from densecal.metrics.overlap import level_overlaps
from densecal.metrics.segmentation import SegmentationMeter
from densecal.runtime.prefetch import prefetch
from densecal.runtime.progress import Progress, retitle, silent
from densecal.training.samples import SceneSource, open_parts
from densecal.training.sections import DataConfig

ENTROPY_BINS = 100
SCORED_AT_ONCE = 256
"""Number of images whose level counts are turned into scores in one call."""
MAX_VALUES = 1 << 27
"""Most values in a group of logits at the size of the masks. Larger groups are split."""

Array = NDArray[Any]
Logits = Callable[[Tensor], Tensor]
"""Images (B, 3, S, S) in [0, 1] to logits (B, C, S, S)."""
Calibrator = Callable[[Tensor, Tensor], Tensor]
"""Logits and images of one size to probabilities."""


@dataclass(frozen=True)
class ImageSet:
    """A data set in memory: images at the size the network sees, masks at their own.

    Attributes:
        name: Name of the set.
        names: Names of the samples.
        images: uint8 (N, S, S, 3).
        masks: uint8 (H, W) each: 0 and 1, or class labels.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Label of void pixels, for K classes.
        groups: Groups of similar images, which intervals resample.
    """

    name: str
    names: list[str]
    images: NDArray[np.uint8]
    masks: list[NDArray[np.uint8]]
    classes: int = 1
    ignore_index: int | None = None
    groups: Groups | None = None

    def __len__(self) -> int:
        return len(self.names)


def load_image_set(
    name: str,
    images: str | Path | Sequence[str | Path],
    masks: str | Path | None = None,
    *,
    size: int,
    classes: int = 1,
    ignore_index: int | None = None,
    without_foreground: bool = False,
    groups: Groups | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """Read a data set into memory, decoding in several processes.

    Args:
        name: Name of the set.
        images: Folder, list file, zip or zips.
        masks: Folder of masks, where ``images`` is a folder.
        size: Side of the images for the network.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Label of void pixels, for K classes.
        without_foreground: Whether no image shows an object. Masks are then not read, and every pixel is background.
        groups: Groups of similar images, which intervals resample.
        workers: Processes; all cores unless given.
        progress: Called with the number of images read.
    """
    source = open_source(images, masks)
    if not (without_foreground or source.has_masks):
        raise InputError(str(images), "images without masks", "masks, or a data set marked as out of distribution")
    reading = Reading(source, source.names, size, classes, ignore_index, without_foreground)
    if groups is not None:
        groups.of(source.names)
    return replace(_read_image_set(name, reading, workers, progress), groups=groups)


def load_validation_set(data: DataConfig, progress: Progress = silent) -> ImageSet:
    """Read the validation images of a run into memory, at the size its network sees; masks keep their own."""
    part = open_parts(data)[1]
    ignore_index = data.ignore_index if data.classes > 1 else None
    reading = Reading(part.source, part.names, data.size, data.classes, ignore_index, False)
    workers = 1 if isinstance(part.source, SceneSource) else data.workers
    groups = None if data.groups is None else Groups(data.groups, "data.groups")
    if groups is not None:
        groups.of(part.names)
    return replace(_read_image_set(VALIDATION, reading, workers, progress), groups=groups)


def _read_image_set(name: str, reading: Reading, workers: int | None, progress: Progress) -> ImageSet:
    pixels, masks = zip(*decode_all(reading, workers, retitle(progress, f"Reading {name}")), strict=True)
    names, classes, ignore_index = list(reading.names), reading.classes, reading.ignore_index
    return ImageSet(name, names, np.stack(pixels), list(masks), classes, ignore_index)


def evaluate_model(
    logits: Logits,
    data: ImageSet,
    calibrators: Mapping[str, Calibrator | None] | None = None,
    *,
    device: torch.device | str = "cpu",
    bins: int = 10,
    batch: int = 64,
    progress: Progress = silent,
) -> dict[str, Evaluation]:
    """Score a model on a data set, at the size of each mask.

    Logits are resized bilinearly to the mask and then calibrated. F, E and MAE are those of the map rounded to 8 bits.

    Args:
        logits: The model.
        data: The data set.
        calibrators: Calibrators by the name of their evaluation, with ``None`` for the uncalibrated model. By default
            only the uncalibrated model, under the name ``model``.
        device: Device of the model.
        bins: Bins of the calibration errors.
        batch: Number of images at a time.
        progress: Called with the number of images done.

    Returns:
        One evaluation per calibrator. Records have one more key than those of folders: ``entropy``, as a share of its
        maximum, with a histogram over the valid pixels and the mean per image, NaN for an image without valid pixels.
    """
    return evaluate_model_by_bins(logits, data, calibrators, (bins,), device=device, batch=batch, progress=progress)[0]


def evaluate_model_by_bins(
    logits: Logits,
    data: ImageSet,
    calibrators: Mapping[str, Calibrator | None] | None,
    bins: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    batch: int = 64,
    progress: Progress = silent,
) -> list[dict[str, Evaluation]]:
    """Evaluate like ``evaluate_model`` for each of several numbers of bins, in one pass over the images."""
    calibrators = calibrators or {"model": None}
    scores = [
        {name: _Scores(Settings(count, False, data.classes, data.ignore_index)) for name in calibrators}
        for count in bins
    ]
    done = 0
    for samples, images, z, y in model_outputs(logits, data, device, batch):
        names = [data.names[i] for i in samples]
        for name, calibrate in calibrators.items():
            p = _probabilities(z, images, calibrate)
            flips = None if calibrate is None else _flip_counts(z, p, y, scores[0][name].total.meter.ignore_index)
            for by_name in scores:
                by_name[name].add(names, p, y, flips)
        done += len(samples)
        progress(f"Evaluating on {data.name}", done, len(data))
    return [{name: score.evaluation(name, data) for name, score in by_name.items()} for by_name in scores]


@torch.inference_mode()
def _probabilities(z: Tensor, images: Tensor, calibrate: Calibrator | None) -> Tensor:
    if calibrate is not None:
        return calibrate(z, resize(images, z.shape[2:])).double()
    return z.double().sigmoid() if z.shape[1] == 1 else z.double().softmax(dim=1)


@torch.inference_mode()
def model_outputs(
    logits: Logits, data: ImageSet, device: torch.device | str = "cpu", batch: int = 64
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """Run a model on a data set, in groups of masks of one size.

    Yields:
        Positions of the samples, images (B, 3, S, S) as the network sees them, logits (B, C, H, W) at the size of the
        masks, and masks (B, H, W) int64.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:  # every thread has a current device of its own
        device = torch.device("cuda", torch.cuda.current_device())
    copy_stream = _copy_stream(device) if device.type == "cuda" else None
    before = None
    for images, parts in prefetch(_batches(data, device, batch, copy_stream)):
        if copy_stream is not None:
            before = _wait_for_copies([images, *(y for _, y in parts)], copy_stream, before)
        images = images.permute(0, 3, 1, 2).float() / 255
        z = logits(images).float()
        start = 0
        for samples, y in parts:
            part = slice(start, start + len(samples))
            start = part.stop
            yield samples, images[part], resize(z[part], y.shape[1:]), y.long()


def _batches(
    data: ImageSet, device: torch.device, batch: int, copy_stream: torch.cuda.Stream | None
) -> Iterator[tuple[Tensor, list[tuple[list[int], Tensor]]]]:
    """Yield batches on the device: images, and for each size of mask the positions of its samples and their masks.

    On CUDA the copies may still be in progress, on ``copy_stream``.
    """
    shapes = [mask.shape for mask in data.masks]
    # the network receives full batches, whatever the sizes of the masks
    order = sorted(range(len(data)), key=lambda i: shapes[i])
    for first in range(0, len(order), batch):
        group = order[first : first + batch]
        parts = []
        for shape, same in groupby(group, key=lambda i: shapes[i]):
            members = list(same)
            limit = max(1, MAX_VALUES // (data.classes * shape[0] * shape[1]))
            for samples in (members[i : i + limit] for i in range(0, len(members), limit)):
                parts.append((samples, _send([data.masks[i] for i in samples], device, copy_stream)))
        yield _send([data.images[i] for i in group], device, copy_stream), parts


def _send(arrays: list[NDArray[np.uint8]], device: torch.device, copy_stream: torch.cuda.Stream | None) -> Tensor:
    """Stack arrays of one shape on the device; on CUDA the copy runs alongside the kernels of the model."""
    if copy_stream is None:
        return torch.from_numpy(np.stack(arrays)).to(device)
    # from pageable memory the copy would wait for the kernels, and the kernels for the copy
    dtype = torch.from_numpy(np.empty(0, arrays[0].dtype)).dtype
    pinned = torch.empty((len(arrays), *arrays[0].shape), dtype=dtype, pin_memory=True)
    np.stack(arrays, out=pinned.numpy())
    with torch.cuda.device(device), torch.cuda.stream(copy_stream):  # a new thread starts on the first device
        return pinned.to(device, non_blocking=True)


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all evaluations, because every stream keeps the memory that was freed on it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _wait_for_copies(
    tensors: list[Tensor], copy_stream: torch.cuda.Stream, before: torch.cuda.Event | None
) -> torch.cuda.Event:
    """Make the current stream wait for copies, and keep their memory until the current stream is done with it.

    Args:
        tensors: The copied tensors.
        copy_stream: The stream that copies.
        before: The value returned for the previous batch. The host waits until the device has reached it; otherwise
            it would run ahead and fill the device with batches.

    Returns:
        An event that marks the start of the work on this batch.
    """
    if before is not None:
        before.synchronize()
    current = torch.cuda.current_stream(copy_stream.device)
    current.wait_stream(copy_stream)
    for tensor in tensors:
        tensor.record_stream(current)
    start: torch.cuda.Event = current.record_event()
    return start


class _Scores:
    """Sums over the images for one calibrator."""

    def __init__(self, settings: Settings) -> None:
        self.total = Total(settings)
        self.binary = settings.binary
        # counts stay on the device until the end
        self.entropies: list[Tensor] = []
        self.histogram: Tensor | int = 0
        self.levels: list[Tensor] = []
        self.confusion: Tensor | int = 0
        self.overlaps: list[Tensor] = []
        self.flips: list[Tensor] = []

    @torch.inference_mode()
    def add(self, names: list[str], p: Tensor, y: Tensor, flips: Tensor | None = None) -> None:
        self.total.stems += names
        if flips is not None:
            self.flips.append(flips)
        self.total.meter.update(p, y)
        self._add_entropy(p, y)
        if self.binary:
            self.levels.append(_level_counts(p[:, 0], y))
        else:
            confusion = _confusion(p.argmax(dim=1), y, p.shape[1], self.total.meter.ignore_index)
            self.confusion = self.confusion + confusion.sum(0)
            self.overlaps.append(_class_overlaps(confusion))

    def _add_entropy(self, p: Tensor, y: Tensor) -> None:
        classes = torch.cat([1 - p, p], dim=1) if self.binary else p
        h = torch.special.entr(classes).sum(dim=1) / np.log(classes.shape[1])
        cell = (h * ENTROPY_BINS).long().clamp(0, ENTROPY_BINS - 1)
        void = self.total.meter.ignore_index
        if void is not None:  # void pixels go to an extra bin, which is cut off
            valid = y != void
            h, cell = h.masked_fill(~valid, torch.nan), cell.masked_fill(~valid, ENTROPY_BINS)
        counts = histograms(cell.flatten(1), ENTROPY_BINS + 1).sum(0)
        self.histogram = self.histogram + counts[:ENTROPY_BINS]
        self.entropies.append(h.flatten(1).nanmean(dim=1))

    def _add_segmentation(self) -> None:
        if self.binary:
            scores = SegmentationMeter(full=False)
            counts = torch.cat(self.levels).cpu().numpy()
            for first in range(0, len(counts), SCORED_AT_ONCE):
                scores.update_levels(counts[first : first + SCORED_AT_ONCE])
            self.total.per_image["overlaps"] = level_overlaps(counts)
            self.total.segmentation.merge(scores.exact_sums())
        else:
            assert isinstance(self.confusion, Tensor)
            self.total.segmentation.add({"matrix": self.confusion.cpu().numpy()})
            self.total.per_image["overlaps"] = torch.cat(self.overlaps).cpu().numpy()

    def evaluation(self, name: str, data: ImageSet) -> Evaluation:
        if not self.total.stems:
            raise InputError(data.name, "no image", "at least one")
        self._add_segmentation()
        assert isinstance(self.histogram, Tensor)
        entropy = Entropy(tuple(self.histogram.tolist()), tuple(torch.cat(self.entropies).tolist()))
        groups = self.total.groups = None if data.groups is None else data.groups.of(self.total.stems)
        record = replace(self.total.record(name, data.name), entropy=entropy)
        if self.flips:
            rate, ends = flip_rate(torch.cat(self.flips).cpu().numpy(), groups)
            figures, ci = record.calibration.figures, record.calibration.ci
            calibration = Calibration({**figures, "flip_rate": rate}, {**ci, "flip_rate": ends})
            record = replace(record, calibration=calibration)
        return Evaluation(record, self.total.stems, self.total.meter.sketch.image_rows(), groups)


@torch.inference_mode()
def _flip_counts(z: Tensor, p: Tensor, y: Tensor, ignore_index: int | None) -> Tensor:
    """Return the valid pixels of every image, and those whose decision a calibrator changed, (B, 2)."""
    binary = z.shape[1] == 1
    changed = (z[:, 0].double().sigmoid() > 0.5) != (p[:, 0] > 0.5) if binary else z.argmax(dim=1) != p.argmax(dim=1)
    valid = torch.ones_like(changed) if ignore_index is None else y != ignore_index
    return torch.stack([valid.flatten(1).sum(1), (changed & valid).flatten(1).sum(1)], dim=1)


def _level_counts(p: Tensor, y: Tensor) -> Tensor:
    """Count pixels by image, mask and 8-bit level (B, 2, 256)."""
    levels = (p * 255).round().long()
    return histograms((y * 256 + levels).flatten(1), 512).view(-1, 2, 256)


def _confusion(predicted: Tensor, y: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """Count pixels by image, true and predicted class (B, K, K)."""
    key = y * classes + predicted
    if ignore_index is not None:  # void pixels go to an extra key, which is cut off
        key = key.masked_fill(y == ignore_index, classes * classes)
    counts = histograms(key.flatten(1), classes * classes + 1)[:, : classes * classes]
    return counts.view(-1, classes, classes)


def _class_overlaps(confusion: Tensor) -> Tensor:
    """Return the means of Dice and IoU over the classes that occur in each image (B, 2); NaN if none does."""
    hits = confusion.diagonal(dim1=1, dim2=2).double()
    both = (confusion.sum(1) + confusion.sum(2)).double()
    return torch.stack([(2 * hits / both).nanmean(1), (hits / (both - hits)).nanmean(1)], dim=1)


def resize(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize maps (B, C, H, W) bilinearly."""
    return maps if maps.shape[2:] == size else interpolate(maps, size=size, mode="bilinear", align_corners=False)
