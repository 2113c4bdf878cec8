"""Reliability curves and the figures that follow from them: pure functions of counted (confidence, outcome) pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SWEEP_MAX_BINS = 100
_DOUBTFUL = 1e-9
"""Steps of the accuracy from bin to bin that float64 sums might have the wrong sign of."""
_ASYMPTOTIC = 1000.0


@dataclass(frozen=True)
class ReliabilityCurve:
    """Count, mean confidence and accuracy of binned predictions; every binned figure follows from them.

    Attributes:
        count: Predictions in each bin, as integers.
        confidence: Mean confidence C_b (0 in empty bins).
        accuracy: Share of correct predictions A_b (0 in empty bins).
    """

    count: NDArray[Any]
    confidence: Floats
    accuracy: Floats

    @classmethod
    def from_sums(
        cls, count: NDArray[np.generic], confidence: Floats, correct: NDArray[np.generic]
    ) -> ReliabilityCurve:
        """Build a curve from sums instead of means."""
        n = np.asarray(count, dtype=np.float64)
        safe = np.where(n > 0, n, 1.0)
        return cls(np.asarray(count), confidence / safe, np.asarray(correct, dtype=np.float64) / safe)

    @property
    def gap(self) -> Floats:
        """C_b - A_b: positive where over-confident."""
        return self.confidence - self.accuracy

    @property
    def mean_confidence(self) -> float:
        """Mean confidence of all predictions."""
        return float(self._share @ self.confidence)

    @property
    def mean_accuracy(self) -> float:
        """Share of all predictions that are correct."""
        return float(self._share @ self.accuracy)

    @property
    def _share(self) -> Floats:
        return np.asarray(self.count / self.count.sum())

    @property
    def ece(self) -> float:
        """Expected calibration error, sum of (n_b / N) |C_b - A_b|."""
        return float(self._share @ np.abs(self.gap))

    @property
    def oe(self) -> float:
        """Over-confidence error as the paper writes it, sum of (n_b / N) max(C_b - A_b, 0)."""
        return float(self._share @ np.maximum(self.gap, 0.0))

    @property
    def oe_weighted(self) -> float:
        """Over-confidence error with the factor C_b (Thulasidasan 2019, and the paper's published columns)."""
        return float(self._share @ (self.confidence * np.maximum(self.gap, 0.0)))

    @property
    def ue(self) -> float:
        """Under-confidence error, sum of (n_b / N) max(A_b - C_b, 0); ECE = OE + UE."""
        return float(self._share @ np.maximum(-self.gap, 0.0))

    @property
    def mce(self) -> float:
        """Maximum calibration error over the non-empty bins."""
        return float(np.abs(self.gap)[self.count > 0].max())

    @property
    def debias(self) -> float:
        """Debiased squared L2 calibration error (Kumar 2019); no root is taken, so it may be negative."""
        a, n = self.accuracy, self.count
        correction = np.where(n > 1, a * (1.0 - a) / np.maximum(n - 1.0, 1.0), 0.0)
        return float(self._share @ (self.gap**2 - correction))


@dataclass(frozen=True)
class Atoms:
    """Distinct values in rising order, each with the number of its pixels and of those with outcome 1."""

    value: Floats
    count: Ints
    hits: Ints

    @classmethod
    def from_counts(cls, value: Floats, count: Ints, hits: Ints) -> Atoms:
        """Sort the values and merge equal ones, so that no result depends on the order of pixels."""
        order = np.argsort(value)
        value = value[order]
        first = np.flatnonzero(np.concatenate([[True], value[1:] != value[:-1]]))
        return cls(value[first], np.add.reduceat(count[order], first), np.add.reduceat(hits[order], first))

    @property
    def total(self) -> int:
        """Number of pixels."""
        return int(self.count.sum())

    def mirror(self) -> Atoms:
        """Return the pixels as seen from the other class: 1 - value and the opposite outcome."""
        return Atoms.from_counts(1.0 - self.value, self.count, self.count - self.hits)


def equal_mass(atoms: Atoms, bins: int) -> ReliabilityCurve:
    """Split the sorted pixels into bins whose sizes differ by at most one; spread ties evenly over the bins they span.

    Args:
        atoms: Counted values.
        bins: Number of bins, reduced to the number of pixels if that is smaller.
    """
    return _equal_mass(atoms, bins, *_cumulative(atoms))


def sweep(atoms: Atoms) -> ReliabilityCurve:
    """Return equal-mass bins, as many as keep the accuracy non-decreasing from bin to bin (Roelofs 2022)."""
    sums = _cumulative(atoms)
    best = _equal_mass(atoms, 1, *sums)
    for bins in range(2, min(SWEEP_MAX_BINS, atoms.total) + 1):
        curve = _equal_mass(atoms, bins, *sums)
        if _drops(atoms, curve):
            break
        best = curve
    return best


def _drops(atoms: Atoms, curve: ReliabilityCurve) -> bool:
    """Return whether the accuracy of equal-mass bins falls anywhere; in fractions where floats cannot tell."""
    steps = np.diff(curve.accuracy)
    if np.any(steps < -_DOUBTFUL):
        return True
    edges = _edges(atoms.total, len(curve.count))
    ends = np.cumsum(atoms.count)
    # The atom of the pixel after every edge; the last edge ends the last atom.
    atom = np.minimum(np.searchsorted(ends, edges, side="right"), len(ends) - 1)
    doubtful = np.flatnonzero((np.abs(steps) <= _DOUBTFUL) & (atom[:-2] != atom[2:]))  # else inside one atom, and equal
    if not len(doubtful):
        return False
    # Hits before every edge, those of its own atom spread evenly: fractions of Python's integers, which never overflow.
    count, inside = atoms.count[atom], atoms.hits[atom]
    before, pixels = np.cumsum(atoms.hits)[atom] - inside, edges - (ends[atom] - count)
    bottom = count.tolist()
    parts = zip(before.tolist(), bottom, inside.tolist(), pixels.tolist(), strict=True)
    top = [earlier * n + hits * seen for earlier, n, hits, seen in parts]
    size = np.diff(edges).tolist()
    for k in doubtful.tolist():
        (low, middle, high), (a, b, c) = top[k : k + 3], bottom[k : k + 3]
        # (high / c - middle / b) / size[k + 1] < (middle / b - low / a) / size[k], times the denominators
        if (high * b - middle * c) * a * size[k] < (middle * a - low * b) * c * size[k + 1]:
            return True
    return False


def error_auroc(atoms: Atoms) -> float:
    """Return the AUROC of low confidence as a detector of wrong pixels; NaN unless right and wrong pixels occur."""
    wrong = (atoms.count - atoms.hits).astype(np.float64)
    right = atoms.hits.astype(np.float64)
    if wrong.sum() == 0 or right.sum() == 0:
        return float("nan")
    right_above = (atoms.hits.sum() - np.cumsum(atoms.hits)).astype(np.float64)
    return float(wrong @ (right_above + 0.5 * right) / (wrong.sum() * right.sum()))


def aurc(atoms: Atoms) -> float:
    """Return the area under the risk-coverage curve: the error among the k most confident pixels, averaged over k.

    Errors are spread evenly over tied pixels, which gives a closed form in harmonic numbers.
    """
    count, wrong = atoms.count[::-1], (atoms.count - atoms.hits)[::-1]
    # Differences of integers, which are exact; those of float sums are not past 2**53.
    seen, errors = ((np.cumsum(n) - n).astype(np.float64) for n in (count, wrong))
    size = count.astype(np.float64)
    rate = wrong / size
    terms = rate * size + (errors - rate * seen) * _harmonic_difference(seen, size)
    return float(terms.sum() / size.sum())


def _harmonic_difference(seen: Floats, count: Floats) -> Floats:
    """Return 1 / (seen + 1) + ... + 1 / (seen + count)."""
    x, y = seen + 1.0, seen + count + 1.0
    small = x < _ASYMPTOTIC
    result = np.empty_like(x)
    result[small] = digamma(y[small]) - digamma(x[small])
    # Far out, two digammas differ in their last digits only: the difference of their asymptotic series, term by term.
    x, y = x[~small], y[~small]
    powers = [(1.0 / y**k - 1.0 / x**k) for k in (1, 2, 4)]
    result[~small] = np.log1p(count[~small] / x) - powers[0] / 2 - powers[1] / 12 + powers[2] / 120
    return result


def _cumulative(atoms: Atoms) -> tuple[Floats, Floats, Floats]:
    """Return the numbers of pixels up to the ends of the atoms, and the sums of value and outcome up to there."""
    # Positions and outcomes are summed as integers: float sums would be rounded past 2**53, at every atom again.
    position, hits = (np.concatenate([[0], np.cumsum(n)]).astype(np.float64) for n in (atoms.count, atoms.hits))
    value = np.concatenate([[0.0], np.cumsum(atoms.value * atoms.count)])
    return position, value, hits


def _edges(total: int, bins: int) -> Ints:
    """Return the number of pixels below every edge of bins whose sizes differ by at most one, larger ones first."""
    size, extra = divmod(total, bins)
    return np.concatenate([[0], np.cumsum(size + (np.arange(bins) < extra))])


def _equal_mass(atoms: Atoms, bins: int, position: Floats, value: Floats, hits: Floats) -> ReliabilityCurve:
    edges = _edges(atoms.total, min(bins, atoms.total))
    # Linear interpolation inside an atom spreads its ties evenly.
    sums = (np.diff(np.interp(edges, position, amount)) for amount in (value, hits))
    return ReliabilityCurve.from_sums(np.diff(edges), *sums)
