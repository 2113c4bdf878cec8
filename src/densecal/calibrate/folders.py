"""Calibrators and risk control on folders of maps; no model and no training packages are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from densecal.data import Source, open_source
from densecal.errors import InputError
from densecal.io.map_files import read_map, write_plane
from densecal.io.masks import VOID
from densecal.io.pairs import find_maps, find_pairs, read_class_pair, read_foreground_pair
from densecal.io.row_chunks import row_chunks
from densecal.metrics.segmentation import count_levels
from densecal.posthoc import Batch, Calibrator, LogitHistogram
from densecal.posthoc.logit_histogram import P_CLIP, level_logits, logit
from densecal.posthoc.risk_control import RiskControl, RiskCurve
from densecal.runtime.progress import Progress, silent, track

Array = NDArray[Any]


class MapData:
    """Folders of probability maps and masks of the same stems.

    Args:
        predictions: Folder of maps.
        masks: Folder of masks.
        classes: 1 for foreground maps, K for softmax maps.
        ignore_index: Mask value of void pixels; 255 for K classes, none for foreground masks unless given.
        images: Folder of the photographs, for calibrators that look at them.
    """

    def __init__(
        self,
        predictions: Path,
        masks: Path,
        classes: int = 1,
        ignore_index: int | None = None,
        images: Path | None = None,
    ) -> None:
        self.pairs, _ = find_pairs(predictions, masks)
        self.classes = classes
        self.mask_void = ignore_index
        self.ignore_index = VOID if ignore_index is None or classes == 1 else ignore_index
        self.images = None if images is None else _open_photographs(images, [pair.stem for pair in self.pairs])
        self.has_images = images is not None

    def __len__(self) -> int:
        return len(self.pairs)

    def histogram(self, progress: Progress = silent) -> LogitHistogram:
        """Count logits and labels of all pixels; integer maps are counted by level."""
        histogram = LogitHistogram()
        for pair in track(self.pairs, "Reading maps", progress):
            read = read_foreground_pair(pair, self.mask_void)
            prediction, mask = read.prediction[read.valid], read.mask.foreground[read.valid]
            if np.issubdtype(prediction.dtype, np.floating):
                histogram.update(logit(torch.tensor(prediction)), torch.tensor(mask))
            else:
                histogram.add_levels(count_levels(prediction, mask)[0])
        return histogram

    def batches(self, progress: Progress = silent) -> Iterator[Batch]:
        """Yield all images once, one at a time, or a large one in chunks."""
        for pair in track(self.pairs, "Reading maps", progress):
            if self.classes == 1:
                read = read_foreground_pair(pair, self.mask_void)
                prediction = read.prediction
                labels = np.where(read.valid, read.mask.foreground, np.uint8(VOID))
                masks = torch.from_numpy(labels.astype(np.int64))[None, None]
            else:
                prediction, labels, _ = read_class_pair(pair, self.classes, self.ignore_index)
                masks = torch.from_numpy(labels.astype(np.int64))[None]
            if self.images is not None:
                yield Batch(map_logits(prediction), masks, _read_photograph(self.images, pair.stem, masks.shape[-2:]))
            else:  # without images, pixels are independent, so a large map may come in chunks
                for rows in row_chunks(masks.shape[-2:]):
                    yield Batch(map_logits(prediction[..., rows, :]), masks[..., rows, :])


@torch.no_grad()
def apply(
    calibrator: Calibrator, predictions: Path, out: Path, images: Path | None = None, progress: Progress = silent
) -> int:
    """Write the calibrated maps of a folder of maps.

    8- and 16-bit maps become 16-bit PNG, because 8 bits would round what was calibrated; float maps become ``.npy``.

    Args:
        calibrator: A fitted calibrator.
        predictions: Folder of maps.
        out: Another folder.
        images: Folder of the photographs, for calibrators that look at them.
        progress: Told how many maps are written.

    Returns:
        Number of maps written.
    """
    if out.resolve() == predictions.resolve():
        raise InputError("--out", "the folder of the maps themselves", "another folder")
    maps = find_maps(predictions)
    if calibrator.needs_images and images is None:
        raise InputError(calibrator.method, "maps without images", "--images")
    source = None if images is None else _open_photographs(images, [pair.stem for pair in maps])
    for pair in track(maps, "Calibrating", progress):
        prediction = read_map(pair.prediction, calibrator.num_classes)
        photograph = None if source is None else _read_photograph(source, pair.stem, prediction.shape[-2:])
        p = _calibrate(calibrator, prediction, photograph)
        write_plane(out / pair.stem, p[0] if calibrator.num_classes == 1 else p)
    return len(maps)


def _calibrate(calibrator: Calibrator, prediction: Array, photograph: Tensor | None) -> Array:
    """Return probabilities (classes, H, W): float64 for float64, float32 for other floats, 16 bits for levels."""
    kind = prediction.dtype if prediction.dtype == np.float64 else np.dtype(np.float32)
    levels = not np.issubdtype(prediction.dtype, np.floating)
    calibrated = np.empty((calibrator.num_classes, *prediction.shape[-2:]), np.uint16 if levels else kind)
    for rows in row_chunks(calibrated.shape[1:]) if photograph is None else [slice(None)]:
        p = calibrator(map_logits(prediction[..., rows, :]), photograph)[0].numpy()
        calibrated[:, rows] = np.rint(p * 65535) if levels else p
    return calibrated


def control_risk(
    predictions: Path, masks: Path, alpha: float, ignore_index: int | None = None, progress: Progress = silent
) -> RiskControl:
    """Find the threshold on a folder of foreground maps that controls the false-negative rate at alpha."""
    curve = RiskCurve()
    pairs, _ = find_pairs(predictions, masks)
    for pair in track(pairs, "Reading maps", progress):
        read = read_foreground_pair(pair, ignore_index)
        if not read.valid.any():
            raise InputError(str(pair.mask), "nothing but void pixels", "at least one valid pixel")
        curve.update(read.prediction[read.valid], read.mask.foreground[read.valid])
    return curve.control(alpha)


def map_logits(prediction: Array) -> Tensor:
    """Return the float64 logits (1, 1, H, W) of a foreground map, or (1, K, H, W) of a softmax map."""
    if prediction.ndim == 3:
        return torch.from_numpy(prediction.astype(np.float64)).clamp(min=P_CLIP).log()[None]
    if np.issubdtype(prediction.dtype, np.floating):
        return logit(torch.tensor(prediction))[None, None]
    table = level_logits(256 if prediction.dtype == np.uint8 else 65536)
    return table[torch.from_numpy(prediction.astype(np.int64))][None, None]


def _open_photographs(folder: Path, stems: list[str]) -> Source:
    source = open_source(folder)
    missing = sorted(set(stems) - set(source.names))
    if missing:
        raise InputError(folder, f"no image {missing[0]!r} ({len(missing)} missing)", "an image for every map")
    return source


def _read_photograph(source: Source, stem: str, size: tuple[int, ...]) -> Tensor:
    """Read an image as floats in [0, 1], (1, 3, H, W), at the size of a map."""
    image = torch.tensor(source.image(stem)).permute(2, 0, 1)[None].float() / 255
    if image.shape[-2:] == size:
        return image
    return interpolate(image, size=size, mode="bilinear", align_corners=False, antialias=True)
