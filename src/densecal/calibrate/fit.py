"""Fitting calibrators on held-out data, wherever it comes from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from densecal import posthoc
from densecal.errors import InputError
from densecal.io.masks import one_sided
from densecal.metrics.arrays import as_array
from densecal.posthoc import Batch, Calibrator, LogitHistogram
from densecal.posthoc.registry import NETWORKS
from densecal.posthoc.scores import Scores, score_batches, score_histogram
from densecal.runtime.progress import Progress, retitle, silent

if TYPE_CHECKING:
    import torch

SATURATED = 0.1
"""Above this share of 8-bit pixels at 0 and 255, a fitted temperature or slope is off by more than a few per cent."""


class FitData(Protocol):
    """Held-out data to fit on: map folders, a run's validation images, or a model on an image set."""

    @property
    def classes(self) -> int:
        """1 for one logit per pixel, K for K classes."""
        ...

    @property
    def ignore_index(self) -> int | None:
        """Label of void pixels."""
        ...

    @property
    def has_images(self) -> bool:
        """Whether batches have images."""
        ...

    def __len__(self) -> int: ...

    def histogram(self, progress: Progress = silent) -> LogitHistogram:
        """Count logits and labels of all pixels in one pass; one logit per pixel."""
        ...

    def batches(self, progress: Progress = silent) -> Iterator[Batch]:
        """Yield all batches once; void pixels have the label ``ignore_index``."""
        ...


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator, and the scores before and after on the data it was fitted on."""

    calibrator: Calibrator
    images: int
    before: Scores
    after: Scores
    warnings: list[str]


def fit(method: str, data: FitData, device: torch.device | str = "cpu", progress: Progress = silent) -> Fit:
    """Fit a calibrator and score it on the data it was fitted on.

    Args:
        method: One of `posthoc.names()`.
        data: Held-out data.
        device: Device on which a network is fitted.
        progress: Called with the number of images read in each pass.
    """
    progress = retitle(progress, "Fitting")
    calibrator = _new_calibrator(method, data, device)
    if calibrator.from_histogram:
        histogram = data.histogram(progress)
        calibrator.fit(histogram)
        scores = score_histogram(histogram), score_histogram(histogram, calibrator)
        return Fit(calibrator, len(data), *scores, _saturation_warnings(calibrator, histogram))
    _fit_batches(calibrator, data, progress)
    before, after = score_batches(lambda: data.batches(progress), calibrator, data.ignore_index)
    return Fit(calibrator, len(data), before, after, [])


def fit_several(methods: Sequence[str], data: FitData, device: torch.device | str) -> dict[str, Calibrator]:
    """Fit several calibrators. Those that need only a histogram share one pass over the data.

    Returns:
        The calibrators that could be fitted, by method. A warning names each of the others.
    """
    new = {method: _new_calibrator(method, data, device) for method in methods}
    needs_histogram = any(calibrator.from_histogram for calibrator in new.values())
    histogram = data.histogram() if needs_histogram else LogitHistogram()
    fitted = {}
    for method, calibrator in new.items():
        try:
            if calibrator.from_histogram:
                calibrator.fit(histogram, data.ignore_index)
            else:
                _fit_batches(calibrator, data)
        except InputError as error:
            # the model is still evaluated without this calibrator
            warnings.warn(f"{error}; evaluated without {method}", stacklevel=2)
            continue
        fitted[method] = calibrator
    return fitted


def _fit_batches(calibrator: Calibrator, data: FitData, progress: Progress = silent) -> None:
    """Fit on batches, and refuse masks that all hold one value. Histograms are checked by the calibrator itself."""
    labels: set[int] = set()

    def batches() -> Iterator[Batch]:
        for batch in data.batches(progress):
            masks = as_array(batch.masks)
            valid = masks[masks != (-1 if data.ignore_index is None else data.ignore_index)]
            if len(valid):
                labels.update((int(valid.min()), int(valid.max())))
            yield batch

    failure = None
    try:
        calibrator.fit(batches, data.ignore_index)
    except InputError as error:
        failure = error
    same = one_sided(min(labels), max(labels), len(data), data.classes) if labels else ""
    if same:  # which explains a failure better than the failure itself
        raise InputError(calibrator.method, same, "more than one class to fit on")
    if failure is not None:
        raise failure


def _new_calibrator(method: str, data: FitData, device: torch.device | str) -> Calibrator:
    kind = posthoc.find(method, "METHOD")
    if kind.needs_images and not data.has_images:
        raise InputError(method, "maps without images", "--images, or a run in place of the maps")
    if data.classes > 1 and not kind.multiclass:
        usable = [name for name in posthoc.names() if name in NETWORKS or posthoc.find(name).multiclass]
        raise InputError(
            method, f"{data.classes} classes", f"one foreground probability, or one of {', '.join(usable)}"
        )
    return posthoc.create(method, **({"num_classes": data.classes} if kind.multiclass else {})).to(device)


def _saturation_warnings(calibrator: Calibrator, histogram: LogitHistogram) -> list[str]:
    slopes = all(np.ndim(getattr(calibrator, name)) == 0 for name in calibrator.tables)
    if not slopes or histogram.saturated < SATURATED:
        return []
    return [
        f"{100 * histogram.saturated:.0f} % of the pixels are at levels 0 and 255, where 8 bits cannot tell logits "
        f"apart: {calibrator.method} suits these maps, but not the model behind them; fit on 16-bit or float maps"
    ]
