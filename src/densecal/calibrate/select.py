"""Choosing a calibrator by cross-validation over images, or over groups of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from densecal import posthoc
from densecal.errors import InputError
from densecal.metrics.levels import NLL_FLOOR
from densecal.posthoc import Calibrator, LogitHistogram, applicable
from densecal.posthoc.pixel_sample import PixelSample
from densecal.runtime.progress import Progress, retitle, silent

NONE = "none"
"""The candidate that leaves the maps as they are."""
FOLDS = 5
SAMPLE = 1 << 18
"""Size of the sample of pixels, over all images, on which calibrators of K classes are fitted and judged."""
_BINS = 10

Floats = NDArray[np.float64]


class SelectData(Protocol):
    """Held-out images, read once."""

    @property
    def classes(self) -> int:
        """1 for one logit per pixel, K for K classes."""
        ...

    def __len__(self) -> int: ...

    def histograms(self, parts: Sequence[int], progress: Progress = silent) -> list[LogitHistogram]:
        """Count logits and labels of the images of part 0, 1, ...; one logit per pixel."""
        ...

    def sample(self, limit: int, progress: Progress = silent) -> PixelSample:
        """Return a sample of the pixels of K classes, with the numbers of their images."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A calibrator, judged on images that it was not fitted on.

    Attributes:
        method: Name of the calibrator, or "none".
        nll: Mean NLL of the pixels, with probabilities clipped at 1e-7; NaN if the calibrator could not be fitted.
        ece: ECE of the winning class, with ten equal-width bins.
        flip_rate: Share of the pixels whose decision it changes.
        problem: Why it could not be fitted.
    """

    method: str
    nll: float
    ece: float
    flip_rate: float
    problem: str = ""


@dataclass(frozen=True)
class Selection:
    """All candidates.

    Attributes:
        candidates: In the order of their NLL, followed by those that could not be fitted.
        images: Number of images.
        groups: Number of groups whose images stayed together; None without groups.
        folds: Number of folds.
    """

    candidates: list[Candidate]
    images: int
    groups: int | None
    folds: int

    @property
    def best(self) -> str:
        """The method with the least NLL."""
        return self.candidates[0].method


def select(
    data: SelectData,
    methods: Sequence[str] | None = None,
    folds: int = FOLDS,
    groups: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Selection:
    """Fit every calibrator on all folds but one, and judge it on that one, for each fold in turn.

    Args:
        data: Held-out images.
        methods: Calibrators to try. By default all that need only logits.
        folds: Number of folds.
        groups: The group of every image. A group stays in one fold.
        progress: Called with the number of images read.
    """
    methods = applicable(data.classes) if methods is None else list(methods)
    for method in methods:
        if method not in applicable(data.classes):
            posthoc.find(method, "--methods")
            expected = f"one of {', '.join(applicable(data.classes))}"
            raise InputError("--methods", f"{method}, which does not apply here", expected)
    units = [str(i) for i in range(len(data))] if groups is None else list(groups)
    parts = split(units, folds)
    count = max(parts) + 1
    tallies = {method: _Tally() for method in (NONE, *methods)}
    problems: dict[str, str] = {}
    progress = retitle(progress, "Reading")
    for fitted_on, judged_on in _folds(data, parts, count, progress):
        for method, tally in tallies.items():
            if method in problems:
                continue
            try:
                calibrator = None if method == NONE else _create(method, data.classes).fit(fitted_on)
                _judge(tally, calibrator, judged_on)
            except InputError as error:
                problems[method] = str(error)
    candidates = [
        Candidate(method, *tally.scores()) if method not in problems
        else Candidate(method, np.nan, np.nan, np.nan, problems[method])
        for method, tally in tallies.items()
    ]  # fmt: skip
    order = sorted(candidates, key=lambda c: (bool(c.problem), 0.0 if c.problem else c.nll))
    return Selection(order, len(data), None if groups is None else len(set(units)), count)


def split(units: Sequence[str], folds: int) -> list[int]:
    """Return the fold of every image. Units are dealt to the folds in a random but fixed order."""
    names = sorted(set(units))
    if len(names) < 2:
        raise InputError("calibrate select", f"{len(names)} image or group", "two or more, to fit and to judge on")
    order = np.random.default_rng(0).permutation(len(names))
    part = {names[unit]: rank % min(folds, len(names)) for rank, unit in enumerate(order)}
    return [part[unit] for unit in units]


def _folds(data: SelectData, parts: list[int], count: int, progress: Progress) -> Any:
    """Yield, for every fold, the data to fit on and the data to judge on."""
    if data.classes > 1:
        sample = data.sample(SAMPLE, progress)
        part_of = np.array(parts)[sample.images]
        for part in range(count):
            yield sample.select(part_of != part), sample.select(part_of == part)
        return
    histograms = data.histograms(parts, progress)
    for part in range(count):
        rest = LogitHistogram()
        for other in range(count):
            if other != part:
                rest.merge(histograms[other])
        yield rest, histograms[part]


def _create(method: str, classes: int) -> Calibrator:
    return posthoc.create(method, **({"num_classes": classes} if posthoc.find(method).multiclass else {}))


@dataclass
class _Tally:
    """Sums over pixels."""

    pixels: float = 0.0
    nll: float = 0.0
    flips: float = 0.0
    gaps: Floats = field(default_factory=lambda: np.zeros(_BINS))

    def add(self, true: Floats, confidence: Floats, right: Any, flipped: Any, n: Floats) -> None:
        """Add n pixels with each probability of the true class."""
        self.pixels += float(n.sum())
        self.nll -= float(n @ np.log(np.clip(true, NLL_FLOOR, 1.0 - NLL_FLOOR)))
        self.flips += float(n @ flipped)
        bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
        self.gaps += np.bincount(bins, n * (confidence - right), _BINS)

    def scores(self) -> tuple[float, float, float]:
        """Return NLL, ECE and flip rate."""
        pixels = max(self.pixels, 1.0)
        return self.nll / pixels, float(np.abs(self.gaps).sum()) / pixels, self.flips / pixels


def _judge(tally: _Tally, calibrator: Calibrator | None, data: LogitHistogram | PixelSample) -> None:
    if isinstance(data, LogitHistogram):
        z, y, n = data.by_label()
        p = expit(z) if calibrator is None else calibrator(z.reshape(1, 1, 1, -1)).ravel()
        right, flipped = (p > 0.5) == (y == 1), (p > 0.5) != (z > 0)
        tally.add(np.where(y == 1, p, 1.0 - p), np.maximum(p, 1.0 - p), right, flipped, n)
        return
    for batch in data():
        z, y = batch.logits[0, :, 0].astype(np.float64), batch.masks[0, 0]
        p = np.exp(z) if calibrator is None else calibrator(z[None, :, None])[0, :, 0]
        chosen = p.argmax(axis=0)
        true = np.take_along_axis(p, y[None], 0)[0]
        tally.add(true, p.max(axis=0), chosen == y, chosen != z.argmax(axis=0), np.ones(len(y)))
