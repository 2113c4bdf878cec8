"""Intervals of figures: whole images, or groups of them, are resampled, because pixels of one image are alike.

With theta_b = (sum of confidence - number correct in bin b) / pixels, ECE, OE and UE are sums over bins of |theta_b|,
its positive and its negative part; the other figures are ratios of sums over images. Every deviation of a resample is
studentised: multiplied by s / s*, the spread of the units over that of the resample.

* Ratios: (low, high) are percentiles of (figure - deviation), the bootstrap-t interval.
* ECE, OE, UE count noise as error, so an estimate near 0 lies above the truth and a resample further above. Their
  interval inverts a test: t is in it unless the estimate would be an accident (2.5 % on either side) if the figure were
  t. The test takes theta(t) to be the gaps with that figure nearest to the estimated ones: small gaps shrunk to 0 below
  the estimate, moved along their covariance above it. The upper end of the ECE is at least those of OE and UE.
* Differences: percentiles of (difference - deviation). For ECE, OE and UE they are extended by the difference that
  noise alone would show if every gap within 3 standard errors of 0 were 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from densecal.metrics import compiled
from densecal.metrics.levels import ROW_SCALARS

Floats = NDArray[np.float64]
Interval = tuple[float, float]

REPLICATES = 1000
LEVEL = 0.95
_TAIL = (1.0 - LEVEL) / 2
_BLOCK = 1 << 21
FEW_UNITS = 10
"""With fewer units a resample says too little about the spread: Student's t instead."""
_MOST = 4.0
"""Largest s / s*: a resample that misses the only unusual image has no spread of its own."""
_CLEAR = 3.0
"""Standard errors from which on the sign of a gap is taken as known."""
_STEPS = 12
_SIGNS = {"ece_ew": 0.0, "oe_ew": 1.0, "ue_ew": -1.0}
"""Gaps that count: both signs, over-confidence, under-confidence."""
_SHARES = ("ece_ew", "oe_ew", "ue_ew", "accuracy", "mean_confidence", "ece_image_mean")


def intervals(rows: Floats, groups: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    """Return intervals (95 %) of the figures that follow from the per-image table.

    Args:
        rows: ``Sketch.image_rows()``.
        groups: The group of every image (patient, video, scene), where images of one group are alike: the units
            that are resampled. Default: every image is a unit.

    Returns:
        (low, high) for ece_ew, oe_ew, ue_ew, brier, nll, accuracy, mean_confidence and ece_image_mean. Both are NaN
        where there is only one unit.
    """
    table = _units(with_image_ece(rows), _kept(rows, groups))
    point = {name: float(value) for name, value in figures(table.sum(axis=0)).items()}
    if len(table) < 2:
        return dict.fromkeys(point, (np.nan, np.nan))
    sample = _Sample(table)
    return _ends(sample, point, _studentise([sample], list(point)))


def interval(rows: Floats, name: str) -> tuple[float, float]:
    """Return the interval of one figure, as `intervals` does; NaN where there is only one unit."""
    table = _units(with_image_ece(rows), None)
    names = list(_SIGNS) if name == "ece_ew" else [name]
    point = figures(table.sum(axis=0))
    if len(table) < 2:
        return np.nan, np.nan
    sample = _Sample(table)
    return _ends(sample, {key: float(point[key]) for key in names}, _studentise([sample], names))[name]


def replicate_intervals(total: Floats, resampled: Floats) -> dict[str, tuple[float, float]]:
    """Return the intervals of `intervals` from resamples alone, for so many units that they need no studentising.

    Args:
        total: Sums of ``with_image_ece``.
        resampled: The same of every resample, (resamples, columns).
    """
    point = {name: float(value) for name, value in figures(total).items()}
    return _ends(_Resamples(total, resampled), point, [np.ones(len(resampled))] * len(point))


def _ends(sample: _Estimates, point: dict[str, float], scales: Sequence[Floats]) -> dict[str, tuple[float, float]]:
    """Return the interval of every figure, given s / s* of every resample."""
    scale_of = dict(zip(point, scales, strict=True))
    ratios = [name for name in point if name not in _SIGNS]
    bounds = _percentiles_of([point[name] - scale_of[name] * sample.deviation(name) for name in ratios])
    found = dict(zip(ratios, bounds, strict=True))
    ends = {}
    for name, scale in scale_of.items():
        low, high = _invert(sample, name, scale) if name in _SIGNS else found[name]
        low, high = max(min(low, point[name]), 0.0), max(high, point[name])
        ends[name] = (low, min(high, 1.0) if name in _SHARES else high)
    if "ece_ew" in ends:  # ECE = OE + UE: where one of these may be large, so may the ECE
        ends["ece_ew"] = (ends["ece_ew"][0], max(ends[name][1] for name in _SIGNS))
    return ends


def paired_intervals(
    rows_a: Floats, rows_b: Floats, groups: Sequence[str] | None = None
) -> dict[str, tuple[float, float]]:
    """Return intervals (95 %) of the difference a - b of two methods on the same images, resampled together.

    Where an interval leaves out 0, the difference is not an accident of which images were drawn.

    Args:
        rows_a: ``Sketch.image_rows()`` of one method.
        rows_b: ``Sketch.image_rows()`` of the other, with the images in the same order.
        groups: The group of every image, as for `intervals`.
    """
    if rows_a.shape != rows_b.shape or ((rows_a[:, 0] > 0) != (rows_b[:, 0] > 0)).any():
        raise ValueError(
            f"paired intervals need the same images and bins: tables of shape {rows_a.shape} and {rows_b.shape}"
        )
    both = _units(np.concatenate([with_image_ece(rows_a), with_image_ece(rows_b)], axis=1), _kept(rows_a, groups))
    width = both.shape[1] // 2
    tables = both[:, :width], both[:, width:]
    points = [figures(table.sum(axis=0)) for table in tables]
    point = {name: float(points[0][name] - points[1][name]) for name in points[0]}
    if len(both) < 2:
        return dict.fromkeys(point, (np.nan, np.nan))
    a, b = (_Sample(table) for table in tables)
    ends = {}
    for name, scale in zip(point, _studentise([a, b], list(point)), strict=True):
        if name in _SIGNS:
            low, high = _gap_difference(a, b, name, scale)
        else:
            low, high = percentiles(point[name] - scale * (a.deviation(name) - b.deviation(name)))
        ends[name] = (min(low, point[name]), max(high, point[name]))
    return ends


def figures(totals: Floats) -> dict[str, Floats]:
    """Return the figures of sums over images; ``totals`` (..., 5 + bins + 2) are summed rows of ``with_image_ece``."""
    sums = dict(zip(ROW_SCALARS, np.moveaxis(totals, -1, 0), strict=False))
    gaps = totals[..., len(ROW_SCALARS) : -2]
    n = sums["count"]
    return {
        "ece_ew": np.abs(gaps).sum(axis=-1) / n,
        "oe_ew": np.maximum(gaps, 0.0).sum(axis=-1) / n,
        "ue_ew": np.maximum(-gaps, 0.0).sum(axis=-1) / n,
        "brier": sums["brier"] / n,
        "nll": sums["nll"] / n,
        "accuracy": sums["correct"] / n,
        "mean_confidence": sums["confidence"] / n,
        "ece_image_mean": totals[..., -2] / totals[..., -1],
    }


def column_sums(rows: Floats) -> Floats:
    """Return the sums over images. NumPy's error does not grow with their number where they lie side by side."""
    return np.asarray(np.ascontiguousarray(rows.T).sum(axis=1))


def with_image_ece(rows: Floats) -> Floats:
    """Append every image's own ECE and a 1 to its row; drop images without valid pixels."""
    rows = rows[rows[:, 0] > 0]
    own = np.abs(rows[:, len(ROW_SCALARS) :]).sum(axis=1) / rows[:, 0]
    return np.column_stack([rows, own, np.ones(len(rows))])


def _kept(rows: Floats, groups: Sequence[str] | None) -> list[str] | None:
    """Return the groups of the images that have valid pixels."""
    if groups is None:
        return None
    return [group for group, pixels in zip(groups, rows[:, 0], strict=True) if pixels > 0]


def _units(table: Floats, groups: list[str] | None) -> Floats:
    """Sum the rows of every group, and order all by content, so that the order of images cannot change an interval."""
    order = np.lexsort(table.T[::-1])
    table = table[order]
    if groups is None:
        return table
    names, unit = np.unique(np.asarray(groups, dtype=object)[order].astype(str), return_inverse=True)
    sums = np.zeros((len(names), table.shape[1]))
    np.add.at(sums, unit, table)
    return np.asarray(sums[np.lexsort(sums.T[::-1])])


class _Estimates:
    """The estimates of one method, and their values in resamples.

    Attributes:
        table: Rows whose sums are the estimates: columns of ``with_image_ece`` without empty bins.
        theta: Gap of every bin.
        covariance: That of the gaps.
        errors: Standard errors of the gaps.
        resampled: Sums over the units of every resample.
    """

    table: Floats
    theta: Floats
    covariance: Floats
    errors: Floats
    resampled: Floats

    def direction(self, name: str) -> Floats:
        """Return how the figure changes with the gaps: their signs, or 1 or -1 where they count."""
        sign = _SIGNS[name]
        if sign == 0.0:
            return np.sign(self.theta)
        counted = sign * self.theta > 0
        return np.asarray(sign * (counted if counted.any() else self.may_count(sign)), dtype=np.float64)

    def may_count(self, sign: float) -> NDArray[np.bool_]:
        """Return which gaps may truly have the given sign."""
        return np.asarray(sign * self.theta > -_CLEAR * self.errors)

    def deviation(self, name: str) -> Floats:
        """Return figure of a resample - figure, for every resample."""
        numerator, denominator = self._ratio(name, self.resampled)
        exact, units = self._ratio(name, self.table)
        return np.asarray(numerator / denominator - exact.sum() / units.sum())

    @cached_property
    def theta_deviation(self) -> Floats:
        """Return theta of a resample - theta, for every resample: (bins, resamples)."""
        gaps = self.resampled[:, len(ROW_SCALARS) : -2]
        return np.ascontiguousarray((gaps / self.resampled[:, :1] - self.theta).T)

    @staticmethod
    def _ratio(name: str, table: Floats) -> tuple[Floats, Floats]:
        """Return the columns whose sums are the numerator and the denominator of a figure."""
        if name == "ece_image_mean":
            return table[:, -2], table[:, -1]
        column = {"accuracy": "correct", "mean_confidence": "confidence"}.get(name, name)
        return table[:, ROW_SCALARS.index(column)], table[:, 0]


class _Sample(_Estimates):
    """The units of one method, all at hand."""

    def __init__(self, table: Floats) -> None:
        total = table.sum(axis=0)
        gaps = table[:, len(ROW_SCALARS) : -2]
        self.table = table[:, np.concatenate([np.ones(len(ROW_SCALARS), bool), gaps.any(axis=0), [True, True]])]
        self.gaps = self.table[:, len(ROW_SCALARS) : -2]
        self.theta: Floats = self.gaps.sum(axis=0) / total[0]
        self.residuals: Floats = (self.gaps - self.theta * table[:, :1]) / total[0]
        n = len(table)
        self.covariance: Floats = n / (n - 1) * self.residuals.T @ self.residuals
        self.errors: Floats = np.sqrt(np.diag(self.covariance))
        self.resampled: Floats = np.empty(0)
        """Sums over the units of every resample; `_studentise` sets it."""

    def influence(self, name: str) -> Floats:
        """Return by how much each unit moves the figure, to first order."""
        if name in _SIGNS:
            return np.asarray(self.residuals @ self.direction(name))
        numerator, denominator = self._ratio(name, self.table)
        total = denominator.sum()
        return np.asarray((numerator - numerator.sum() / total * denominator) / total)

    def weight(self, name: str) -> Floats:
        """Return the share of each unit in the denominator of the figure."""
        denominator = self.table[:, -1 if name == "ece_image_mean" else 0]
        return np.asarray(denominator / denominator.sum())


class _Resamples(_Estimates):
    """Sums alone: the covariance is that of the resamples."""

    def __init__(self, total: Floats, resampled: Floats) -> None:
        gaps = resampled[:, len(ROW_SCALARS) : -2]
        filled = gaps.any(axis=0) | (total[len(ROW_SCALARS) : -2] != 0)
        kept = np.concatenate([np.ones(len(ROW_SCALARS), bool), filled, [True, True]])
        self.table, self.resampled = total[None, kept], resampled[:, kept]
        self.theta = self.table[0, len(ROW_SCALARS) : -2] / total[0]
        deviation = self.theta_deviation
        self.covariance = deviation @ deviation.T / len(resampled)
        self.errors = np.sqrt(np.diag(self.covariance))


def _studentise(samples: list[_Sample], names: Sequence[str]) -> list[Floats]:
    """Resample all samples together, and return s / s* of every figure, or difference of two, for every resample."""
    n = len(samples[0].table)
    u, *less = (np.column_stack([sample.influence(name) for name in names]) for sample in samples)
    u = u - less[0] if less else u
    weight = np.column_stack([samples[0].weight(name) for name in names])
    widths = [sample.table.shape[1] for sample in samples] + [len(names)] * 4
    products = [u, weight, u * u, u * weight, weight * weight]
    sums = _resample(np.column_stack([*(sample.table for sample in samples), *products]))
    *parts, u1, w1, uu, uw, ww = np.split(sums, np.cumsum(widths), axis=1)
    for sample, part in zip(samples, parts, strict=True):
        sample.resampled = part
    if n < FEW_UNITS:
        # resamples are narrower than the truth by sqrt(1 - 1/n), and know nothing of the uncertainty of s
        factor = float(stdtrit(n - 1, 1.0 - _TAIL) / stdtrit(1e9, 1.0 - _TAIL)) * np.sqrt(n / (n - 1))
        return [np.full(REPLICATES, factor)] * len(names)
    spread = np.sqrt((u * u).sum(axis=0))
    # the figure of a resample differs by u1 / w1, about which its units spread
    shift = u1 / w1
    resampled = np.sqrt(np.maximum(uu - 2.0 * shift * uw + shift**2 * ww, 0.0)) / w1
    return list((spread / np.maximum(resampled, np.where(spread > 0, spread / _MOST, 1.0))).T)


def _resample(table: Floats) -> Floats:
    """Return the column sums of every resample of the units."""
    weights = _few_weights(len(table)) if len(table) * REPLICATES <= _BLOCK else _weights(len(table))
    return np.concatenate([block @ table for block in weights])


@lru_cache(maxsize=1)
def _few_weights(units: int) -> tuple[Floats, ...]:
    """Keep the weights of the last call, because a comparison resamples the same images for every two methods."""
    return tuple(_weights(units))


def _weights(units: int) -> Iterator[Floats]:
    """Yield how often each unit is in each resample, block by block: always the same for as many units."""
    rng = np.random.default_rng(0)
    step = max(1, _BLOCK // units)
    for first in range(0, REPLICATES, step):
        count = min(step, REPLICATES - first)
        drawn = rng.integers(0, units, (count, units))
        drawn += units * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)


def percentiles(values: Floats) -> Interval:
    """Return the ends of the middle 95 %."""
    return _percentiles_of([values])[0]


def _percentiles_of(rows: Sequence[Floats]) -> list[Interval]:
    """Return the ends of the middle 95 % of every row, in one call of NumPy, whose start takes longer than the rest."""
    if not rows:
        return []
    low, high = np.percentile(rows, [100.0 * _TAIL, 100.0 * (1.0 - _TAIL)], axis=1)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _size(theta: Floats, sign: float, out: Floats | None = None) -> Floats:
    """Return the figure of gaps (bins, ...), of which those of one sign count, or all for 0.

    With ``out``, an array like them is overwritten and none is made.
    """
    counted = np.abs(theta, out=out) if sign == 0.0 else np.maximum(np.multiply(sign, theta, out=out), 0.0, out=out)
    return np.asarray(counted.sum(axis=0))


def _invert(sample: _Estimates, name: str, scale: Floats) -> tuple[float, float]:
    """Return the smallest and the largest figure under which the estimate is not an accident."""
    theta, direction, counted = sample.theta, sample.direction(name), _SIGNS[name]
    noise = sample.theta_deviation * scale
    estimate = float(_size(theta, counted))
    length = float(np.sqrt(direction @ sample.covariance @ direction))
    if length == 0.0:
        return estimate, estimate
    sign = np.sign(theta) if counted == 0.0 else np.full(len(theta), counted)
    free = sample.may_count(counted) if counted != 0.0 else np.ones(len(theta), bool)
    variance = np.maximum(sample.errors**2, sys.float_info.min)  # a gap that all units share shrinks last
    positive = np.maximum(sign * theta, 0.0)
    upward = sample.covariance @ direction / length

    def below(m: float) -> Floats:
        return np.where(free, sign * np.maximum(positive - m * variance, 0.0), theta)

    def above(m: float) -> Floats:
        return np.asarray(theta + m * upward)

    resamples = noise.shape[1]
    # NumPy adds a single column in pairs, compiled functions one after the other
    native = compiled.native if resamples > 1 else None
    moved = np.empty_like(noise)

    def is_plausible(gaps: Floats, side: int) -> bool:
        if native is not None:
            return bool(native.often_reached(gaps, noise, counted, side, estimate, _TAIL, len(gaps), resamples))
        return _often_reached(gaps, noise, counted, side, estimate, _TAIL, moved)

    least = below(np.inf)
    if not is_plausible(least, 1):
        least = below(_last(lambda m: is_plausible(below(m), 1), length / float(variance.sum())))
    most = above(_last(lambda m: is_plausible(above(m), -1), 1.0))
    return float(_size(least, counted)), float(_size(most, counted))


def _often_reached(
    gaps: Floats, noise: Floats, sign: float, side: int, estimate: float, share: float, moved: Floats
) -> bool:
    """Return whether the figure of gaps + noise is at least (side 1) or at most (-1) the estimate so often.

    ``moved``, an array like the noise, is overwritten: a new one for every guess would take longer than the rest.
    """
    sizes = _size(np.add(gaps[:, None], noise, out=moved), sign, out=moved)
    return bool(np.count_nonzero(side * (sizes - estimate) >= 0.0) / len(sizes) >= share)


def _last(holds: Callable[[float], bool], step: float) -> float:
    """Return the largest m >= 0 for which a condition holds that is false from some m on; 0 where it never holds."""
    low, high = 0.0, step
    while holds(high) and high < 1e6 * step:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _gap_difference(a: _Sample, b: _Sample, name: str, scale: Floats) -> tuple[float, float]:
    """Return the interval of the difference of two ECEs, OEs or UEs."""
    sign = _SIGNS[name]
    noise = [sample.theta_deviation * scale for sample in (a, b)]
    theta = [sample.theta for sample in (a, b)]
    # the gaps if everything that may be noise were noise
    least = [np.where(np.abs(s.theta) > _CLEAR * s.errors, s.theta, 0.0) for s in (a, b)]

    def difference(x: Sequence[Floats], y: Sequence[Floats]) -> Floats:
        sides = [_size(p[:, None] + q, sign) - _size(p, sign) for p, q in zip(x, y, strict=True)]
        return np.asarray(sides[0] - sides[1])

    estimate = float(_size(theta[0], sign) - _size(theta[1], sign))
    moved = difference(theta, [-e for e in noise])
    low, high = percentiles(estimate + moved)
    # noise lifts the estimate by at most the second mean, and the percentiles by the first once more
    lift = float(np.mean(moved)) + float(np.mean(difference(least, noise)))
    return min(low, low - lift), max(high, high - lift)
