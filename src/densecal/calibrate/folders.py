"""Calibrators on folders of maps; no model and no training packages are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.data import Source, open_source
from densecal.data.pairs import Plan, find_plan
from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.map_files import map_targets, read_stored_map, write_plane
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.map_values import to_probabilities
from densecal.io.masks import VOID
from densecal.io.outputs import check_output_folder, check_outputs
from densecal.io.pairs import Pair, pair_files, read_class_pair, read_foreground_pair
from densecal.io.raster_files import write_raster
from densecal.io.readers.tiff import is_geotiff
from densecal.io.row_chunks import row_chunks
from densecal.io.suffixes import suffix_of
from densecal.io.urls import fetch_ahead
from densecal.io.volume_files import volume_kind, write_volume
from densecal.io.zarr_files import write_zarr
from densecal.metrics.flips import count_flips, flip_rate
from densecal.metrics.segmentation import count_levels
from densecal.posthoc import Batch, Calibrator, LogitHistogram
from densecal.posthoc.logit_histogram import P_CLIP, level_logits, logit
from densecal.posthoc.pixel_sample import PixelSample
from densecal.runtime.engine import Engine, LocalEngine
from densecal.runtime.progress import Progress, silent, track

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 32
"""Pairs that are counted together, whatever the engine, because sums of floats depend on how they are grouped."""

Array = NDArray[Any]


class MapData:
    """Folders of probability maps and masks of the same stems.

    Args:
        predictions: Folder of maps.
        masks: Folder of masks.
        classes: 1 for foreground maps, K for softmax maps.
        ignore_index: Mask value of void pixels; 255 for K classes, none for foreground masks unless given.
        images: Folder of the photographs, for calibrators that use them.
        maps: How the maps are stored.

    Attributes:
        plan: Which maps belong to which masks.
        engine: Engine that counts the pixels.
    """

    def __init__(
        self,
        predictions: Path,
        masks: Path,
        classes: int = 1,
        ignore_index: int | None = None,
        images: Path | None = None,
        maps: MapOptions = AS_STORED,
    ) -> None:
        plan = one_plan(predictions, masks, maps, classes, ignore_index)
        self.plan = plan
        self.pairs, self.maps, self.notes = plan.pairs, plan.options, plan.notes
        self.engine: Engine = LocalEngine()
        self.classes = classes = plan.classes or 1
        self.mask_void = ignore_index = plan.ignore_index
        self.ignore_index = VOID if ignore_index is None or classes == 1 else ignore_index
        self.images = None if images is None else _open_photographs(images, [pair.stem for pair in self.pairs])
        self.has_images = images is not None

    def __len__(self) -> int:
        return len(self.pairs)

    def files(self) -> Iterator[Path]:
        """Yield the files that are read."""
        yield from self.plan.files()
        if self.images is not None:
            yield from self.images.files()

    def histogram(self, progress: Progress = silent) -> LogitHistogram:
        """Count logits and labels of all pixels; integer maps are counted by level."""
        return self.histograms([0] * len(self), progress)[0]

    def histograms(self, parts: Sequence[int], progress: Progress = silent) -> list[LogitHistogram]:
        """Count logits and labels of the images of part 0, 1, ... ."""
        histograms, done = [LogitHistogram() for _ in range(max(parts) + 1)], 0
        chunks = []
        for part in range(len(histograms)):
            part_pairs = [pair for pair, pair_part in zip(self.pairs, parts, strict=True) if pair_part == part]
            chunks += [(part, part_pairs[first : first + CHUNK]) for first in range(0, len(part_pairs), CHUNK)]
        calls = ((chunk, self.mask_void, self.maps) for _, chunk in chunks)
        for (part, chunk), counted in zip(chunks, self.engine.map(count_logits, calls), strict=True):
            histograms[part].merge(counted)
            done += len(chunk)
            progress("Reading maps", done, len(self.pairs))
        return histograms

    def sample(self, limit: int, progress: Progress = silent) -> PixelSample:
        """Return a sample of the pixels of K classes, with the numbers of their images."""
        sample = PixelSample(self.classes, limit)
        for number, batch in self.numbered_batches(progress):
            sample.update(batch.logits, batch.masks, self.ignore_index, number)
        return sample

    def batches(self, progress: Progress = silent) -> Iterator[Batch]:
        """Yield all images once, one at a time, or a large one in chunks."""
        for _, batch in self.numbered_batches(progress):
            yield batch

    def numbered_batches(self, progress: Progress = silent) -> Iterator[tuple[int, Batch]]:
        """Yield what `batches` yields, with the number of the image."""
        for number, pair in enumerate(track(_ahead(self.pairs), "Reading maps", progress, len(self.pairs))):
            if self.classes == 1:
                read = read_foreground_pair(pair, self.mask_void, options=self.maps)
                prediction = read.prediction
                labels = np.where(read.valid, read.mask.foreground, np.uint8(VOID))
            else:
                several = read_class_pair(pair, self.classes, self.ignore_index, options=self.maps)
                prediction, labels = several.prediction, several.labels
            if labels.ndim == 3:
                _refuse_images(pair, self.images)
            prediction, labels = _as_picture(prediction, labels.ndim), _as_picture(labels, labels.ndim)
            masks = labels.astype(np.int64)[None]
            masks = masks[None] if self.classes == 1 else masks
            if self.images is not None:
                photograph = _read_photograph(self.images, pair.stem, masks.shape[-2:])
                yield number, Batch(map_logits(prediction), masks, photograph)
            else:  # without images, pixels are independent, so a large map may come in chunks
                for rows in row_chunks(masks.shape[-2:]):
                    yield number, Batch(map_logits(prediction[..., rows, :]), masks[..., rows, :])


def _ahead(pairs: list[Pair]) -> Iterator[Pair]:
    """Yield pairs whose remote files are read ahead."""
    return fetch_ahead(pairs, lambda pair: pair_files([pair]))


def count_logits(pairs: list[Pair], void: int | None, maps: MapOptions) -> LogitHistogram:
    """Count logits and labels of the pixels of some pairs."""
    histogram = LogitHistogram()
    for pair in _ahead(pairs):
        read = read_foreground_pair(pair, void, options=maps)
        prediction, mask = read.prediction[read.valid], read.mask.foreground[read.valid]
        if np.issubdtype(prediction.dtype, np.floating):
            histogram.update(logit(prediction), mask)
        else:
            histogram.add_levels(count_levels(prediction, mask)[0])
    return histogram


@dataclass(frozen=True)
class ApplyResult:
    """The effect of applying a calibrator.

    Attributes:
        maps: Maps written.
        flip_rate: Share of the pixels whose decision (foreground or not, or the class) changed.
        flip_ci: Its 95 % interval; NaN with one map.
    """

    maps: int
    flip_rate: float
    flip_ci: tuple[float, float]


def apply(
    calibrator: Calibrator,
    predictions: Path,
    out: Path,
    images: Path | None = None,
    progress: Progress = silent,
    reads: Iterable[Path] = (),
    force: bool = False,
    options: MapOptions = AS_STORED,
) -> ApplyResult:
    """Write the calibrated maps of a folder of maps.

    8- and 16-bit maps become 16-bit PNG, because 8 bits would round what was calibrated; float maps become ``.npy``.
    NIfTI, MetaImage, NRRD, GeoTIFF and Zarr maps keep their format and geometry, and GeoTIFF their pixels without data.

    Args:
        calibrator: A fitted calibrator.
        predictions: Folder of maps.
        out: Folder for the calibrated maps; not one of those that are read.
        images: Folder of the photographs, for calibrators that use them.
        progress: Called with the number of maps written.
        reads: Further files that must not be written over, such as that of the calibrator.
        force: Replace existing files that `apply` did not write, but never one that it reads.
        options: How the maps are stored.

    Returns:
        Number of maps written, and the share of decisions that changed.
    """
    check_output_folder(out, [predictions, images])
    plan = one_plan(predictions, None, options, calibrator.num_classes)
    maps, options = plan.pairs, plan.options
    if calibrator.needs_images and images is None:
        raise InputError(calibrator.method, "maps without images", "--images")
    stems = [pair.stem for pair in maps]
    source = None if images is None else _open_photographs(images, stems)
    inputs = chain(pair_files(maps), () if source is None else source.files(), reads)
    targets = [target for pair in maps for target in _targets(out, pair)]
    check_outputs("calibrate apply", targets, inputs, force)
    flips = []
    for pair in track(_ahead(maps), "Calibrating", progress, len(maps)):
        several = calibrator.num_classes > 1
        stored = read_stored_map(pair.files, calibrator.num_classes, MAX_PIXELS, options)
        prediction = to_probabilities(stored.values, several) if options.logits else stored.values
        space = prediction.ndim - several
        if space == 3:
            _refuse_images(pair, source)
        photograph = None if source is None else _read_photograph(source, pair.stem, prediction.shape[-2:])
        p = _calibrate(calibrator, _as_picture(prediction, space), photograph)
        p = p.reshape(prediction.shape)
        valid = np.ones(p.shape[-space:], bool) if stored.void is None else ~stored.void
        flips.append(count_flips(prediction[..., valid], p[..., valid], 1))
        _write(out / pair.stem, p, pair.prediction, space, stored.void)
    return ApplyResult(len(maps), *flip_rate(np.array(flips)))


def _targets(out: Path, pair: Pair) -> list[tuple[Path, str]]:
    """Return the files to which the map of a pair may be written, each with its kind."""
    kind = _kind(pair.prediction)
    return map_targets(out, [pair.stem], ("png", "npy") if kind is None else (kind, "png", "npy"))


def _kind(source: Path) -> str | None:
    """Return the format of the calibrated map of a file that says where its pixels lie; ``None`` for other files."""
    if suffix_of(source) == ".zarr":
        return "zarr"
    return "tif" if suffix_of(source) in (".tif", ".tiff") and is_geotiff(source) else volume_kind(source)


def _write(stem: Path, p: Array, source: Path, space: int, void: NDArray[np.bool_] | None) -> None:
    """Write a calibrated map, in the format of its source if that says where pixels lie."""
    kind, command = _kind(source), "calibrate apply"
    if void is not None and kind not in ("tif", "zarr"):
        raise InputError(source, "pixels without data", "GeoTIFF or Zarr, which can mark them in the calibrated map")
    if kind is None or (space == 2 and kind not in ("tif", "zarr")):
        write_plane(stem, p, command)
        return
    p = p / np.float32(65535) if p.dtype == np.uint16 else p
    path = stem.with_name(f"{stem.name}.{kind}")
    if kind == "tif":
        write_raster(path, p, void, source, command)
    elif kind == "zarr":
        write_zarr(path, p, void, space, source, command)
    else:
        write_volume(stem, p, source, command)


def _calibrate(calibrator: Calibrator, prediction: Array, photograph: Tensor | None) -> Array:
    """Return probabilities (classes, H, W): float64 for float64, float32 for other floats, 16 bits for levels."""
    kind = prediction.dtype if prediction.dtype == np.float64 else np.dtype(np.float32)
    levels = not np.issubdtype(prediction.dtype, np.floating)
    calibrated = np.empty((calibrator.num_classes, *prediction.shape[-2:]), np.uint16 if levels else kind)
    for rows in row_chunks(calibrated.shape[1:]) if photograph is None else [slice(None)]:
        p = calibrator(map_logits(prediction[..., rows, :]), photograph)[0]
        calibrated[:, rows] = np.rint(p * 65535) if levels else p
    return calibrated


def one_plan(
    predictions: Path, masks: Path | None, options: MapOptions, classes: int, ignore_index: int | None = None
) -> Plan:
    """Return which maps belong to which masks; of maps of several regions, one must be chosen."""
    plan = find_plan(predictions, masks, options, None if classes == 1 else classes, ignore_index)
    if plan.regions:
        names = ", ".join(region.name for region in plan.regions)
        raise InputError(predictions, f"maps of {len(plan.regions)} regions", f"--region with one of {names}")
    return plan


def _as_picture(array: Array, space: int) -> Array:
    """Return a volume (..., D, H, W) as a picture (..., D * H, W), for calibrators that look at single pixels."""
    return array.reshape(*array.shape[:-3], -1, array.shape[-1]) if space == 3 else array


def _refuse_images(pair: Pair, images: Source | None) -> None:
    """Refuse photographs beside volumes."""
    if images is not None:
        raise InputError(pair.prediction, "a volume beside photographs (--images)", "a calibrator that needs no images")


def map_logits(prediction: Array) -> NDArray[np.float64]:
    """Return the float64 logits (1, 1, H, W) of a foreground map, or (1, K, H, W) of a softmax map."""
    if prediction.ndim == 3:
        return np.asarray(np.log(prediction.astype(np.float64).clip(min=P_CLIP))[None])
    if np.issubdtype(prediction.dtype, np.floating):
        return np.asarray(logit(prediction)[None, None])
    table = level_logits(256 if prediction.dtype == np.uint8 else 65536)
    return table[prediction][None, None]


def _open_photographs(folder: Path, stems: list[str]) -> Source:
    source = open_source(folder)
    missing = sorted(set(stems) - set(source.names))
    if missing:
        raise InputError(folder, f"no image {missing[0]!r} ({len(missing)} missing)", "an image for every map")
    return source


def _read_photograph(source: Source, stem: str, size: tuple[int, ...]) -> Tensor:
    """Read an image as floats in [0, 1], (1, 3, H, W), at the size of a map. Only networks use images."""
    import torch
    from torch.nn.functional import interpolate

    image = torch.tensor(source.image(stem)).permute(2, 0, 1)[None].float() / 255
    if image.shape[-2:] == size:
        return image
    return interpolate(image, size=size, mode="bilinear", align_corners=False, antialias=True)
