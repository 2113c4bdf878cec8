"""Smooth calibration error (smECE) and the smooth reliability diagram (Blasiok and Nakkiran 2023), without bins.

With residuals f - y of values f and outcomes y, and K a Gaussian of width sigma that is reflected at 0 and 1:

    r(t) = mean of K(t, f) (f - y),   smECE_sigma = integral over [0, 1] of |r(t)|,   smECE = smECE_sigma* = sigma*

smECE_sigma falls as sigma rises, so sigma* is the one width that equals its own error: the data determine the
resolution. Small changes of f change smECE little, which is not true of errors with bins.

The grids are those of the authors' package relplot, so that numbers can be compared with published ones: sigma is the
smallest multiple of 2^-10, from 2^-9 on, with smECE_sigma <= sigma; values are shared out between the two nearest of
1001 points or more; |r| is averaged over 200 points or more; the kernel ends at a distance of 1/2; and what lies on the
grid points 0 and 1 is not doubled by reflection, so that it weighs half. Segmentation models put most pixels near them,
which makes relplot's number up to twice that of the formula. With ``exact`` those pixels weigh as much as any other,
|r| is integrated over 1001 points or more, and the kernel does not end before it is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from densecal.metrics.curves import Atoms, Floats

MESH = 101
"""Points of the smooth reliability diagram, 0 and 1 included."""
_WIDTHS = 1 << 10
_NARROWEST = 2
_POINTS, _POINTS_PER_WIDTH = 1000, 10
_EVALUATED = 200
_REACH = 9.0
"""Bandwidths from the middle of the kernel where it is 0 in float64, for the exact error."""
_LEAST_DENSITY = 1e-6
"""Where fewer pixels than this share are near, the curve has no value."""


@dataclass(frozen=True)
class SmoothCurve:
    """The smooth reliability diagram on a mesh over [0, 1].

    Attributes:
        bandwidth: sigma of the kernel.
        error: smECE at this bandwidth.
        accuracy: Share of outcome 1 around each point of the mesh, NaN beyond the values and where there are none.
        density: Density of the values, 1 on average.
    """

    bandwidth: float
    error: float
    accuracy: Floats
    density: Floats


def smooth_error(atoms: Atoms, exact: bool = False) -> tuple[float, float]:
    """Return smECE and its bandwidth.

    Args:
        atoms: Confidences with the number of correct pixels, or foreground probabilities with that of foreground.
        exact: Follow the formula where relplot does not: pixels at 0 and 1 weigh as much as others.
    """
    grids = _Grids(atoms, exact)
    low, high = _NARROWEST - 1, _WIDTHS  # the error is above the narrower width, unless that is the narrowest
    while high - low > 1:
        middle = (low + high) // 2
        if grids.error(middle / _WIDTHS) > middle / _WIDTHS:
            low = middle
        else:
            high = middle
    return grids.error(high / _WIDTHS), high / _WIDTHS


def smooth_curve(atoms: Atoms, points: int = MESH) -> SmoothCurve:
    """Return the smooth reliability diagram at the bandwidth of smECE, at equally spaced points from 0 to 1."""
    error, bandwidth = smooth_error(atoms)
    gap, density = _Grids(atoms).smooth(bandwidth, points)
    value, _ = _Grids(Atoms(atoms.value, atoms.count, np.zeros_like(atoms.hits))).smooth(bandwidth, points)
    hits = value - gap
    mass = np.maximum(density, 0.0) / atoms.total
    mesh, step = np.linspace(0.0, 1.0, points), 1.0 / (points - 1)
    seen = (mass > _LEAST_DENSITY) & (mesh > atoms.value[0] - step) & (mesh < atoms.value[-1] + step)
    accuracy = np.full(points, np.nan)
    accuracy[seen] = np.clip(hits[seen] / density[seen], 0.0, 1.0)
    return SmoothCurve(bandwidth, error, accuracy, mass / mass.mean())


class _Grids:
    """Values shared out over regular grids, each of which is made once."""

    def __init__(self, atoms: Atoms, exact: bool = False) -> None:
        self._atoms, self._exact = atoms, exact
        self._made: dict[int, Floats] = {}

    def error(self, bandwidth: float) -> float:
        """Return smECE_sigma."""
        least = _POINTS + 1 if self._exact else _EVALUATED
        gap, density = self.smooth(bandwidth, max(round(_POINTS_PER_WIDTH / bandwidth), least))
        residual = np.abs(gap)
        if self._exact:
            return float(np.trapezoid(residual) / np.trapezoid(density))
        return float(residual.sum() / density.sum())

    def smooth(self, bandwidth: float, points: int) -> tuple[Floats, Floats]:
        """Return gaps f - y and numbers of pixels, smoothed, at points over [0, 1]."""
        cells = max(_POINTS, round(2 * _POINTS_PER_WIDTH / bandwidth) // 2)
        if cells not in self._made:
            self._made[cells] = self._share_out(cells)
        at, grid = np.linspace(0.0, 1.0, points), np.linspace(0.0, 1.0, cells + 1)
        if self._exact:
            reach = min(math.ceil(_REACH * bandwidth * cells), 2 * cells)
            around, first = reach, 0
            distance = np.arange(-reach, reach + 1) / cells
        else:
            around, first = cells, (cells + 1) // 2
            distance = np.arange(cells + 1) / cells - 0.5
        mirrored = np.pad(self._made[cells], ((0, 0), (around, around)), "reflect")
        kernel = np.exp(-0.5 * (distance / bandwidth) ** 2)
        smoothed = _convolve(mirrored, kernel)[:, first : first + cells + 1]
        return np.interp(at, grid, smoothed[0]), np.interp(at, grid, smoothed[1])

    def _share_out(self, cells: int) -> Floats:
        """Return gaps and numbers of pixels at the points of a grid."""
        atoms = self._atoms
        position = atoms.value * cells
        left = np.minimum(position.astype(np.int64), cells - 1)
        share = position - left

        def spread(amount: Floats) -> Floats:
            upper = np.bincount(left, share * amount, cells)
            whole = np.bincount(left, amount, cells)
            return np.append(whole - upper, 0.0) + np.insert(upper, 0, 0.0)

        count = atoms.count.astype(np.float64)
        shared = np.stack([spread(atoms.value * count - atoms.hits), spread(count)])
        if self._exact:  # 0 and 1 are their own mirror images
            shared[:, [0, -1]] *= 2.0
        return shared


def _convolve(values: Floats, kernel: Floats) -> Floats:
    """Return the part of the convolution of rows where the kernel lies inside the values."""
    length = values.shape[1]
    size = next_fast_len(length, real=True)  # what wraps around falls outside of that part
    product = rfft(values, size) * rfft(kernel, size)
    return np.asarray(irfft(product, size)[:, len(kernel) - 1 : length])
