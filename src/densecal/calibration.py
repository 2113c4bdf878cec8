"""Calibrators on files: fitted on map folders or on a run, applied to map folders; the threshold of risk control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from densecal import posthoc
from densecal.data import Source, open_source
from densecal.data.images import read_foreground, read_map, read_mask
from densecal.errors import InputError
from densecal.files import write_atomically
from densecal.metrics.bands import row_bands
from densecal.metrics.segmentation import count_levels
from densecal.pairing import find_maps, find_pairs
from densecal.posthoc import Batch, Calibrator, LogitHistogram
from densecal.posthoc.logit_histogram import P_CLIP, level_logits, logit
from densecal.posthoc.risk_control import RiskControl, RiskCurve
from densecal.posthoc.scores import Scores, score_batches, score_histogram
from densecal.scoring import VOID, Pair, resize

if TYPE_CHECKING:
    from densecal.prediction import Predictor

SATURATED = 0.1
"""Above this share of pixels at the ends of 8-bit maps a temperature or slope is off by more than a few per cent."""

AT_ONCE = 8
"""Images that go through a network together."""

Array = NDArray[Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator and what it gained on the data it was fitted on."""

    calibrator: Calibrator
    images: int
    before: Scores
    after: Scores
    warnings: list[str]


class FitData(Protocol):
    """Held-out data to fit on: map folders, or the validation images of a run."""

    classes: int
    ignore_index: int
    has_images: bool

    def __len__(self) -> int: ...

    def histogram(self, progress: Progress | None) -> LogitHistogram:
        """Logits and labels of all pixels, in one pass; one logit a pixel."""
        ...

    def batches(self, progress: Progress | None) -> Iterator[Batch]:
        """One pass, an image at a time; void pixels are ``ignore_index``."""
        ...


def fit(method: str, data: FitData, device: str = "cpu", progress: Progress | None = None) -> Fit:
    """Fit a calibrator.

    Args:
        method: One of `posthoc.names()`.
        data: What to fit on.
        device: Where a network is fitted.
        progress: Called with (done, total) images of every pass.
    """
    wanted = posthoc.registry.find(method, "METHOD")
    if wanted.needs_images and not data.has_images:
        raise InputError(method, "maps without images", "--images, or a run in place of the maps")
    options = {"num_classes": data.classes} if wanted.multiclass else {}
    if data.classes > 1 and not wanted.multiclass:
        able = [name for name in posthoc.names() if posthoc.registry.find(name).multiclass]
        raise InputError(method, f"{data.classes} classes", f"one foreground probability, or one of {', '.join(able)}")
    calibrator = posthoc.create(method, **options).to(device)
    if calibrator.from_histogram:
        histogram = data.histogram(progress)
        calibrator.fit(histogram)
        scores = score_histogram(histogram), score_histogram(histogram, calibrator)
        return Fit(calibrator, len(data), *scores, _warnings(calibrator, histogram))
    calibrator.fit(lambda: data.batches(progress), data.ignore_index)
    before, after = score_batches(lambda: data.batches(progress), calibrator, data.ignore_index)
    return Fit(calibrator, len(data), before, after, [])


def _warnings(calibrator: Calibrator, histogram: LogitHistogram) -> list[str]:
    slopes = all(calibrator.get_buffer(name).ndim == 0 for name in calibrator.tables)
    if not slopes or histogram.saturated < SATURATED:
        return []
    return [
        f"{100 * histogram.saturated:.0f} % of the pixels are at levels 0 and 255, where 8 bits cannot tell logits "
        f"apart: {calibrator.method} suits these maps, but not the model behind them; fit on 16-bit or float maps"
    ]


# ------------------------------------------------------------------ maps in folders


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
        self.images = None if images is None else _photographs(images, [pair.stem for pair in self.pairs])
        self.has_images = images is not None

    def __len__(self) -> int:
        return len(self.pairs)

    def histogram(self, progress: Progress | None = None) -> LogitHistogram:
        """Logits and labels of all pixels; integer maps are counted by level."""
        histogram = LogitHistogram()
        for done, pair in enumerate(self.pairs, start=1):
            prediction, mask, valid = read_pair(pair, self.mask_void)
            if np.issubdtype(prediction.dtype, np.floating):
                p, y = torch.tensor(prediction[valid]), torch.tensor(mask[valid])
                histogram.update(logit(p), y)
            else:
                histogram.add_levels(count_levels(prediction[valid], mask[valid])[0])
            if progress:
                progress(done, len(self))
        return histogram

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """One pass, an image at a time, or a part of a large one."""
        for done, pair in enumerate(self.pairs, start=1):
            if self.classes == 1:
                prediction, mask, valid = read_pair(pair, self.mask_void)
                masks = torch.from_numpy(np.where(valid, mask, np.uint8(VOID)).astype(np.int64))[None, None]
            else:
                prediction, labels = _read_classes(pair, self.classes, self.ignore_index)
                masks = torch.from_numpy(labels.astype(np.int64))[None]
            if self.images is not None:
                yield Batch(map_logits(prediction), masks, _photograph(self.images, pair.stem, masks.shape[-2:]))
            else:  # pixels alone count, so a large map may come in bands
                for rows in row_bands(masks.shape[-2:]):
                    yield Batch(map_logits(prediction[..., rows, :]), masks[..., rows, :])
            if progress:
                progress(done, len(self))


def read_pair(pair: Pair, ignore_index: int | None = None) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """A foreground map at the size of its mask, the mask, and where it is valid."""
    assert pair.mask is not None
    prediction = read_map(pair.prediction)
    mask, _, levels = read_foreground(pair.mask)
    valid = np.ones(mask.shape, dtype=bool)
    if ignore_index is not None and levels is not None:
        valid = levels != ignore_index
        if levels[valid].max(initial=0) == 1:  # masks of 0 and 1, with another value for void
            mask = levels == 1
    return prediction if prediction.shape == mask.shape else resize(prediction, mask.shape), mask, valid


def _read_classes(pair: Pair, classes: int, void: int) -> tuple[Array, Array]:
    assert pair.mask is not None
    prediction, mask = read_map(pair.prediction, classes), read_mask(pair.mask, str(pair.mask), classes)
    highest = int(mask[mask != void].max(initial=0))
    if highest >= classes:
        raise InputError(pair.mask, f"label {highest}", f"labels 0 to {classes - 1}, or {void} for void")
    return prediction if prediction.shape[1:] == mask.shape else resize(prediction, mask.shape), mask


def map_logits(prediction: Array) -> Tensor:
    """float64 logits (1, 1, H, W) of a foreground map, or (1, K, H, W) of a softmax map."""
    if prediction.ndim == 3:
        return torch.from_numpy(prediction.astype(np.float64)).clamp(min=P_CLIP).log()[None]
    if np.issubdtype(prediction.dtype, np.floating):
        return logit(torch.tensor(prediction))[None, None]
    table = level_logits(256 if prediction.dtype == np.uint8 else 65536)
    return table[torch.from_numpy(prediction.astype(np.int64))][None, None]


def _photographs(folder: Path, stems: list[str]) -> Source:
    source = open_source(folder)
    missing = sorted(set(stems) - set(source.names))
    if missing:
        raise InputError(folder, f"no image {missing[0]!r} ({len(missing)} missing)", "an image for every map")
    return source


def _photograph(source: Source, stem: str, size: tuple[int, ...]) -> Tensor:
    """An image in [0, 1], (1, 3, H, W), at the size of a map."""
    image = torch.tensor(source.image(stem)).permute(2, 0, 1)[None].float() / 255
    if image.shape[-2:] == size:
        return image
    return interpolate(image, size=size, mode="bilinear", align_corners=False, antialias=True)


# ------------------------------------------------------------------ runs


class RunData:
    """The validation images of a run, with the logits of its model at each image's own size.

    Args:
        run: Run folder or checkpoint folder.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    has_images = True

    def __init__(self, run: Path, device: str = "auto") -> None:
        from densecal.prediction import load_predictor, own_calibrator_error
        from densecal.training.feed import open_data, open_parts

        self.predictor: Predictor = load_predictor(run, device)
        if self.predictor.calibrator is not None:
            raise own_calibrator_error(run, self.predictor.calibrator)
        config = self.predictor.config.data
        self.classes = config.classes
        self.ignore_index = config.ignore_index if config.classes > 1 else VOID
        self.source: Source | None = None
        if config.scenes is None:
            part = open_parts(config)[1]
            self.source, self.names = part.source, part.names
        else:
            self.scenes = open_data(config).validation
            self.names = self.scenes.names

    def __len__(self) -> int:
        return len(self.names)

    def histogram(self, progress: Progress | None = None) -> LogitHistogram:
        """Logits and labels of all pixels."""
        histogram = LogitHistogram()
        for batch in self.batches(progress):
            histogram.update(batch.logits, batch.masks)
        return histogram

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """One pass, an image at a time, on the model's device; the network sees several at once."""
        from densecal.prediction import grouped
        from densecal.training.feed import prefetched

        device = self.predictor.device
        read = (self._sample(index, name) for index, name in enumerate(self.names))
        done = 0
        for samples in prefetched(grouped(read, lambda sample: sample[1].size, AT_ONCE), depth=1):
            found = self.predictor.each_logits([image for image, _ in samples])
            for (image, mask), logits in zip(samples, found, strict=True):
                labels = torch.tensor(mask).to(device)
                masks = labels.long()[None] if self.classes > 1 else (labels > 127).long()[None, None]
                photograph = torch.tensor(image).to(device).permute(2, 0, 1)[None].float() / 255
                # a copy, because what inference mode makes cannot be trained on
                yield Batch(logits[None].clone(), masks, photograph)
                done += 1
                if progress:
                    progress(done, len(self))

    def _sample(self, index: int, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        if self.source is None:
            images, masks = self.scenes.batch(np.array([index]))
            return np.ascontiguousarray(images[0].permute(1, 2, 0).numpy()), masks[0].numpy()
        image, mask = self.source.image(name), self.source.mask(name, self.classes)
        if image.shape[:2] != mask.shape:
            raise InputError(
                str(self.source.mask_location(name)), f"{mask.shape[1]} x {mask.shape[0]} pixels",
                f"{image.shape[1]} x {image.shape[0]} as its image",
            )  # fmt: skip
        return image, mask


def fit_own(method: str, run: Path, device: str = "auto", progress: Progress | None = None) -> None:
    """Fit a calibrator on a run's validation images and make it the run's own."""
    from densecal.training import checkpoint

    data = RunData(checkpoint.find(run), device)
    posthoc.save(fit(method, data, str(data.predictor.device), progress).calibrator, run / checkpoint.CALIBRATOR)


def is_run(path: Path) -> bool:
    """Whether a folder is a run or a checkpoint rather than a folder of maps."""
    return (path / "checkpoints").is_dir() or (path / "meta.json").is_file()


# ------------------------------------------------------------------ applying


@torch.no_grad()
def apply(
    calibrator: Calibrator, predictions: Path, out: Path, images: Path | None = None, progress: Progress | None = None
) -> int:
    """Write the calibrated maps of a folder of maps.

    8- and 16-bit maps become 16-bit PNG, because 8 bits would round what was calibrated; float maps become ``.npy``.

    Args:
        calibrator: A fitted one.
        predictions: Folder of maps.
        out: Another folder.
        images: Folder of the photographs, for calibrators that look at them.
        progress: Called with (done, total).

    Returns:
        Number of maps written.
    """
    if out.resolve() == predictions.resolve():
        raise InputError("--out", "the folder of the maps themselves", "another folder")
    maps = find_maps(predictions)
    if calibrator.needs_images and images is None:
        raise InputError(calibrator.method, "maps without images", "--images")
    source = None if images is None else _photographs(images, [pair.stem for pair in maps])
    for done, pair in enumerate(maps, start=1):
        prediction = read_map(pair.prediction, calibrator.num_classes)
        photograph = None if source is None else _photograph(source, pair.stem, prediction.shape[-2:])
        p = _calibrated(calibrator, prediction, photograph)
        _write(out / pair.stem, p[0] if calibrator.num_classes == 1 else p)
        if progress:
            progress(done, len(maps))
    return len(maps)


def _calibrated(calibrator: Calibrator, prediction: Array, photograph: Tensor | None) -> Array:
    """Probabilities (classes, H, W): float64 stays float64, other floats become float32, levels 16 bits."""
    kind = prediction.dtype if prediction.dtype == np.float64 else np.dtype(np.float32)
    levels = not np.issubdtype(prediction.dtype, np.floating)
    found = np.empty((calibrator.num_classes, *prediction.shape[-2:]), np.uint16 if levels else kind)
    for rows in row_bands(found.shape[1:]) if photograph is None else [slice(None)]:
        p = calibrator(map_logits(prediction[..., rows, :]), photograph)[0].numpy()
        found[:, rows] = np.rint(p * 65535) if levels else p
    return found


def _write(stem: Path, p: Array) -> None:
    """A map of floats or 16-bit levels; the stem may hold dots."""
    if np.issubdtype(p.dtype, np.floating):
        write_atomically(stem.with_name(f"{stem.name}.npy"), lambda stream: np.save(stream, p))
        return
    image = Image.fromarray(p)
    write_atomically(stem.with_name(f"{stem.name}.png"), lambda stream: image.save(stream, "png", compress_level=1))


# ------------------------------------------------------------------ risk control


def control_risk(
    predictions: Path, masks: Path, alpha: float, ignore_index: int | None = None, progress: Progress | None = None
) -> RiskControl:
    """The threshold on a folder of foreground maps that controls the false-negative rate at alpha."""
    curve = RiskCurve()
    pairs, _ = find_pairs(predictions, masks)
    for done, pair in enumerate(pairs, start=1):
        prediction, mask, valid = read_pair(pair, ignore_index)
        if not valid.any():
            raise InputError(str(pair.mask), "nothing but void pixels", "at least one valid pixel")
        curve.update(prediction[valid], mask[valid])
        if progress:
            progress(done, len(pairs))
    return curve.control(alpha)
