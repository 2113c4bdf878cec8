"""Calibrators for models, fitted on the validation images of a run or on an image set, and a run's own calibrator."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from densecal import posthoc
from densecal.calibrate.fit import fit
from densecal.data import Source
from densecal.data.decoding import read_sample
from densecal.errors import InputError
from densecal.evaluation.model import ImageSet, Logits, model_outputs, resize
from densecal.io.masks import VOID
from densecal.io.run_files import run_files
from densecal.metrics.calibration_result import CalibrationResult
from densecal.posthoc import Batch, LogitHistogram
from densecal.posthoc.pixel_sample import PixelSample
from densecal.prediction.batches import group_by_pixels
from densecal.prediction.predictor import load_predictor, own_calibrator_error
from densecal.runtime.lock import lock_folder
from densecal.runtime.prefetch import prefetch
from densecal.runtime.progress import Progress, retitle, silent, track
from densecal.runtime.sharding import is_first_process
from densecal.training import checkpoint
from densecal.training.config import Config
from densecal.training.loop import train
from densecal.training.samples import open_parts

AT_ONCE = 8
"""Batch size for networks."""
COUNTED_BATCH, TRAINED_BATCH = 64, 4
"""Batch sizes for an image set in memory: to count pixels, and for calibrators trained by gradient steps."""


class RunData:
    """The validation images of a run, with the logits of its model at the size of each image.

    Args:
        run: Run folder or checkpoint folder.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    has_images = True

    def __init__(self, run: Path, device: str = "auto") -> None:
        self.run = run
        self.predictor = load_predictor(run, device)
        if self.predictor.calibrator is not None:
            raise own_calibrator_error(run, self.predictor.calibrator)
        data = self.predictor.config.data
        self.classes = data.classes
        self.ignore_index = data.ignore_index if data.classes > 1 else VOID
        self.part = open_parts(data)[1]

    def __len__(self) -> int:
        return len(self.part.names)

    def files(self) -> Iterator[Path]:
        """Yield the files that are read."""
        yield from run_files(self.run)
        if isinstance(self.part.source, Source):  # generated scenes have no files
            yield from self.part.source.files()

    def histogram(self, progress: Progress = silent) -> LogitHistogram:
        """Count logits and labels of all pixels."""
        return _count_logits(self.batches(progress))

    def histograms(self, parts: Sequence[int], progress: Progress = silent) -> list[LogitHistogram]:
        """Count logits and labels of the images of part 0, 1, ... ."""
        histograms = [LogitHistogram() for _ in range(max(parts) + 1)]
        for part, batch in zip(parts, self.batches(progress), strict=True):
            histograms[part].update(batch.logits, batch.masks)
        return histograms

    def sample(self, limit: int, progress: Progress = silent) -> PixelSample:
        """Return a sample of the pixels of K classes, with the numbers of their images."""
        sample = PixelSample(self.classes, limit)
        for number, batch in enumerate(self.batches(progress)):
            sample.update(batch.logits, batch.masks, self.ignore_index, number)
        return sample

    def batches(self, progress: Progress = silent) -> Iterator[Batch]:
        """Yield all images once, one at a time, on the model's device; the network takes several at a time."""
        device = self.predictor.device
        samples = (read_sample(self.part.source, name, self.classes, self.ignore_index)[:2] for name in self.part.names)
        groups = group_by_pixels(samples, lambda sample: sample[1].size, AT_ONCE)

        def batches() -> Iterator[Batch]:
            for group in prefetch(groups, depth=1):
                outputs = self.predictor.each_logits([image for image, _ in group])
                for (image, mask), logits in zip(group, outputs, strict=True):
                    labels = torch.tensor(mask).to(device)
                    masks = labels.long()[None] if self.classes > 1 else (labels > 0).long()[None, None]
                    photograph = torch.tensor(image).to(device).permute(2, 0, 1)[None].float() / 255
                    # a copy, because tensors of inference mode cannot take part in training
                    yield Batch(logits[None].clone(), masks, photograph)

        yield from track(batches(), "Predicting", progress, len(self))


class ImageSetData:
    """A model on an image set in memory, with its logits at the size of each mask.

    Args:
        logits: The model.
        images: The set.
        device: Device of the model.
    """

    has_images = True

    def __init__(self, logits: Logits, images: ImageSet, device: torch.device) -> None:
        self.logits, self.images, self.device = logits, images, device
        self.classes, self.ignore_index = images.classes, images.ignore_index

    def __len__(self) -> int:
        return len(self.images)

    def histogram(self, progress: Progress = silent) -> LogitHistogram:
        """Count logits and labels of all pixels."""
        return _count_logits(self._batches(COUNTED_BATCH))

    def batches(self, progress: Progress = silent) -> Iterator[Batch]:
        """Yield all images once, a few at a time."""
        return self._batches(TRAINED_BATCH)

    def _batches(self, size: int) -> Iterator[Batch]:
        for _, images, z, y in model_outputs(self.logits, self.images, self.device, size):
            masks = y if self.classes > 1 else y[:, None]
            # copies, because tensors of inference mode cannot take part in training
            yield Batch(z.clone(), masks.clone(), resize(images, z.shape[2:]).clone())


def _count_logits(batches: Iterable[Batch]) -> LogitHistogram:
    histogram = LogitHistogram()
    for batch in batches:
        histogram.update(batch.logits, batch.masks)
    return histogram


def train_and_calibrate(
    config: Config, out: Path, resume: bool = False, progress: Progress = silent, start: Path | None = None
) -> CalibrationResult | None:
    """Train a model and, where ``model.calibrator`` asks for it, fit the run's own calibrator.

    Args:
        config: Configuration of the run.
        out: Run folder, as for `train`; also holds ``calibrator.json``.
        resume: Continue from the run folder's last checkpoint, or start if there is none.
        progress: Called with the progress of training and fitting.
        start: Run from whose model a second stage starts, as for `train`.

    Returns:
        The last validation, or ``None`` if the run was finished already.
    """
    result = train(config, out, resume, progress, start)
    if config.model.calibrator and is_first_process():
        _calibrate_run(config, out, progress, again=result is not None)
    return result


def _calibrate_run(config: Config, out: Path, progress: Progress, again: bool) -> None:
    """Fit the run's own calibrator, unless it has one already and ``again`` is false."""
    method, path = config.model.calibrator, out / checkpoint.CALIBRATOR
    assert method is not None
    with lock_folder(out) as held:
        if not held or (path.exists() and not again):
            return
        try:
            data = RunData(checkpoint.find(out), "cpu" if config.engine.accelerator == "cpu" else "auto")
            posthoc.save(fit(method, data, data.predictor.device, retitle(progress, "Calibrator")).calibrator, path)
        except InputError as error:
            # the model is still useful without its calibrator
            warnings.warn(f"{error}; {out} is left without {method}", stacklevel=3)
