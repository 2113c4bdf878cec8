"""The weights of a mixture by maximum likelihood: for ensemble temperature scaling and for prior shift.

L(w) = -mean of ln(sum of w_j q_j) over pixels, for w >= 0 with sum 1. L is convex. The condition on the sum is met by
itself at the minimum of L + sum of w, because L(c w) = L(w) - ln c. Some steps of EM (w_j <- mean of w_j q_j / w'q,
Saerens 2002) come close, projected Newton steps end at the minimum, which EM alone reaches only slowly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EM_STEPS = 20
NEWTON_STEPS = 100
_TOLERANCE = 1e-13
_LEAST = 1e-30
"""Densities below this count as this, so that one impossible pixel does not decide alone."""
_NEAR, _NOTHING = 1e-6, 1e-12
_ROWS = 1 << 15

Floats = NDArray[np.float64]


def mixture_weights(q: NDArray[np.floating], pixels: Floats | None = None) -> Floats:
    """Return the weights of components with densities q (N, J).

    Args:
        q: Density of each component at each pixel, not negative.
        pixels: (N,) how often each pixel counts; once by default.
    """
    n = np.ones(len(q)) if pixels is None else pixels
    n = n / n.sum()
    w = np.full(q.shape[1], 1.0 / q.shape[1])
    for _ in range(EM_STEPS):
        w = w * (1.0 - _evaluate(q, n, w, curved=False)[1])
    w /= w.sum()
    for _ in range(NEWTON_STEPS):
        value, slope, curvature = _evaluate(q, n, w)
        free = ~((w <= _NEAR) & (slope > 0.0))
        step = -w  # the step of weights held at 0, or almost there
        step[free] = -np.linalg.lstsq(curvature[np.ix_(free, free)], slope[free], rcond=1e-13)[0]
        if -float(slope @ step) <= _TOLERANCE:
            break
        share = 1.0
        while share > 1e-6:
            trial = np.maximum(w + share * step, 0.0)
            if _evaluate(q, n, trial, curved=False)[0] <= value + 1e-4 * float(slope @ (trial - w)):
                break
            share /= 2.0
        else:
            break
        w = trial
    w = np.where(w < _NOTHING * w.sum(), 0.0, w)
    return np.asarray(w / w.sum())


def _evaluate(q: NDArray[np.floating], n: Floats, w: Floats, curved: bool = True) -> tuple[float, Floats, Floats]:
    """Return L + sum of w, its slope and its curvature."""
    value, slope, curvature = float(w.sum()), np.ones_like(w), np.zeros((len(w), len(w)))
    for first in range(0, len(n), _ROWS):
        part = np.maximum(q[first : first + _ROWS].astype(np.float64), _LEAST)
        share, density = n[first : first + _ROWS], part @ w
        if not (density > 0.0).all():
            return np.inf, slope, curvature
        value -= float(share @ np.log(density))
        ratio = part / density[:, None]
        slope -= share @ ratio
        if curved:
            curvature += (ratio * share[:, None]).T @ ratio
    return value, slope, curvature
