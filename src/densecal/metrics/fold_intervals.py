"""Intervals of figures that are not sums over images: smECE, TACE, and the calibration and refinement of scores.

Images are dealt into folds by their names, and the pixels of every fold are counted by class, outcome and logit. The
folds are resampled as `bootstrap` resamples images: pixels of one image stay together, and the memory is the same for
any number of images. Each figure becomes one that `bootstrap` knows:

* smECE of bandwidth s is an ECE whose gaps are those of the smoothed residual at the points of a mesh.
* TACE is an ECE whose gaps are those of the equal-mass bins of all images.
* Calibration and refinement are means of scores under the best rising map, which is the same for all resamples: the
  best of many maps changes a score only to second order where the images change. This map knows the images that it is
  judged on, so calibration looks too large. The lower end of calibration, and the upper end of refinement, therefore
  judge every fold under the best rising map of the other folds.

Within a bin of the logit, all pixels count with their mean probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from densecal.metrics.bootstrap import interval
from densecal.metrics.class_tables import TACE_THRESHOLD
from densecal.metrics.levels import MAX_LEVEL, NLL_FLOOR, ROW_SCALARS
from densecal.metrics.pooling import rising_shares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[float, float]

_MESH = 128
_NARROWEST, _WIDTHS = 2 / 1024, 1024
_HALVED = 1 / 1000
"""relplot counts pixels by half at 0 and 1, and by less than one up to this distance."""


@dataclass(frozen=True)
class _View:
    """The probabilities of one class, or the confidences, by fold and bin.

    Attributes:
        value: Mean probability of every bin, (B,).
        count: Pixels, (F, B).
        hits: Pixels with outcome 1, (F, B).
        sums: Sums of the probabilities, (F, B).
    """

    value: Floats
    count: Ints
    hits: Ints
    sums: Floats

    @classmethod
    def of(cls, counts: Ints) -> _View:
        """Return the view of counts (F, 3, B), without empty bins, in rising order."""
        misses, hits, levels = np.moveaxis(counts, 1, 0)
        sums = levels / MAX_LEVEL
        return cls._sorted(misses + hits, hits, sums)

    @classmethod
    def _sorted(cls, count: Ints, hits: Ints, sums: Floats) -> _View:
        pixels = count.sum(axis=0)
        value = sums.sum(axis=0) / np.maximum(pixels, 1)
        order = np.argsort(value, kind="stable")
        order = order[pixels[order] > 0]
        return cls(value[order], count[:, order], hits[:, order], sums[:, order])

    def mirror(self) -> _View:
        """Return the pixels as seen from the other class."""
        return self._sorted(self.count, self.count - self.hits, self.count - self.sums)

    def top(self) -> _View:
        """Return the confidence of a foreground probability, and whether the pixels are right."""
        up = self.value > 0.5
        other = self.count - self.sums
        return self._sorted(self.count, np.where(up, self.hits, self.count - self.hits), np.where(up, self.sums, other))

    @property
    def gaps(self) -> Floats:
        """Sum of probability minus outcome, (F, B)."""
        return np.asarray(self.sums - self.hits)


def fold_intervals(counts: Ints, figures: dict[str, float], bins: int) -> dict[str, Interval]:
    """Return intervals (95 %) of the figures that need folds.

    Args:
        counts: (F, C, 3, B): pixels of folds by class with outcome 0, with outcome 1, and the sum of their 16-bit
            levels, by bins of the logit. C is 1 for a foreground probability; else the K classes, and the winning one.
        figures: The figures of all images, which the intervals contain. Those that are NaN have none.
        bins: Equal-mass bins of TACE.
    """
    counts = counts[counts[:, 0, :2].any(axis=(1, 2))]
    if len(counts) < 2:
        return {}
    views = [_View.of(counts[:, c]) for c in range(counts.shape[1])]
    if len(views) == 1:
        foreground = views[0]
        top, classes, scored = foreground.top(), [foreground.mirror(), foreground], [foreground]
    else:
        *classes, top = views
        foreground, scored = None, classes
    tables = {"smece": _smooth_rows(top, figures["smece"], halved=True)}
    tables["smece_exact"] = _smooth_rows(top, figures["smece_exact"])
    if foreground is not None:
        tables["smece_foreground"] = _smooth_rows(foreground, figures["smece_foreground"], halved=True)
        tables["smece_foreground_exact"] = _smooth_rows(foreground, figures["smece_foreground_exact"])
    tables["tace"] = _thresholded_rows(classes, bins)
    ends = {name: interval(rows, "ece_ew") for name, rows in tables.items()}
    ends |= _score_intervals(scored, binary=foreground is not None)
    known = {name: figures[name] for name in ends if not math.isnan(figures[name])}
    return {name: (min(ends[name][0], value), max(ends[name][1], value)) for name, value in known.items()}


def _rows(pixels: Floats, scores: Floats | None = None, gaps: Floats | None = None) -> Floats:
    """Return a table such as `bootstrap` resamples, with a score or with gaps."""
    rows = np.zeros((len(pixels), len(ROW_SCALARS) + (1 if gaps is None else gaps.shape[1])))
    rows[:, 0] = pixels
    if scores is not None:
        rows[:, ROW_SCALARS.index("brier")] = scores
    if gaps is not None:
        rows[:, len(ROW_SCALARS) :] = gaps
    return rows


def _smooth_rows(view: _View, error: float, halved: bool = False) -> Floats:
    """Return the smoothed residuals of every fold at the points of a mesh, at the bandwidth of an smECE.

    Args:
        view: The probabilities.
        error: The smECE, whose bandwidth is the same number.
        halved: Count pixels near 0 and 1 by less, as relplot does.
    """
    width = max(math.ceil(error * _WIDTHS) / _WIDTHS, _NARROWEST)
    mesh = (np.arange(_MESH) + 0.5) / _MESH
    images = np.concatenate([view.value, -view.value, 2.0 - view.value])
    kernel = np.exp(-0.5 * ((mesh[:, None] - images) / width) ** 2).reshape(_MESH, 3, -1).sum(axis=1)
    kernel /= kernel.sum(axis=0)
    weight = np.ones(len(view.value))
    if halved:
        weight -= 0.5 * np.maximum(1.0 - np.minimum(view.value, 1.0 - view.value) / _HALVED, 0.0)
    return _rows((view.count * weight).sum(axis=1), gaps=(view.gaps * weight) @ kernel.T)


def _thresholded_rows(classes: list[_View], bins: int) -> Floats:
    """Return the gaps of every fold in the equal-mass bins of every class, above the threshold of TACE."""
    pixels = classes[0].count.sum(axis=1).astype(np.float64)
    parts = [np.zeros((len(pixels), 0))]
    for view in classes:
        kept = view.value > TACE_THRESHOLD
        if not kept.any():
            continue
        mass = view.count[:, kept].sum(axis=0)
        middle = (np.cumsum(mass) - mass / 2) / mass.sum()
        index = np.minimum((middle * bins).astype(np.int64), bins - 1)
        gaps = view.gaps[:, kept] @ (index[:, None] == np.arange(bins)).astype(np.float64)
        parts.append(gaps * (pixels.sum() / mass.sum()))
    return _rows(pixels, gaps=np.concatenate(parts, axis=1) / max(len(parts) - 1, 1))


def _score_intervals(classes: list[_View], binary: bool) -> dict[str, Interval]:
    """Return the intervals of calibration and refinement of the Brier score and of the NLL."""
    pixels = classes[0].count.sum(axis=1).astype(np.float64)
    shape = 2, len(pixels)
    plain, known, unknown = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for view in classes:
        plain += _scores(view, view.value, binary)
        known += _scores(view, rising_shares(view.hits.sum(axis=0), view.count.sum(axis=0)), binary)
        unknown += _scores(view, np.stack(list(_other_maps(view))), binary)
    ends = {}
    for k, name in enumerate(("brier", "nll")):
        calibration = [interval(_rows(pixels, plain[k] - refined[k]), "brier") for refined in (unknown, known)]
        refinement = [interval(_rows(pixels, refined[k]), "brier") for refined in (known, unknown)]
        ends[f"{name}_calibration"] = calibration[0][0], calibration[1][1]
        ends[f"{name}_refinement"] = refinement[0][0], refinement[1][1]
    return ends


def _other_maps(view: _View) -> Iterator[Floats]:
    """Yield the best rising map of the other folds for every fold."""
    hits, count = view.hits.sum(axis=0), view.count.sum(axis=0)
    for fold_hits, fold_count in zip(view.hits, view.count, strict=True):
        rest = count - fold_count
        seen = rest > 0
        shares = rising_shares((hits - fold_hits)[seen], rest[seen])
        # a bin that only this fold has lies between its neighbours
        yield np.interp(np.arange(len(rest)), np.flatnonzero(seen), shares)


def _scores(view: _View, p: Floats, binary: bool) -> Floats:
    """Return the Brier score and the NLL of every fold, (2, F), where pixels of a bin have the probability p.

    Args:
        view: The pixels.
        p: (B,), or for every fold (F, B).
        binary: Whether a foreground probability is scored. Else one of several classes, see `decomposition`.
    """
    hits, clear = view.hits, view.count - view.hits
    brier = (clear * p**2 + hits * (1.0 - p) ** 2).sum(axis=1)
    safe = np.clip(p, NLL_FLOOR, 1.0 - NLL_FLOOR)
    if binary:
        nll = -(xlogy(hits, safe) + xlogy(clear, 1.0 - safe)).sum(axis=1)
    else:
        nll = -xlogy(hits, safe).sum(axis=1) + (view.count * p - hits).sum(axis=1)
    return np.stack([brier, nll])
