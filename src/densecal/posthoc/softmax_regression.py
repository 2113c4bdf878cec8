"""Regression with a softmax: the convex problem behind matrix, Dirichlet and class-conditional calibration.

The features f (F,) of a pixel make its K logits:

    z = A' Theta f        Theta (R, F) is sought, A (R, K) says how its rows make K logits
    L = mean of -log softmax(z)_y + sum of penalty (Theta - target)^2,        Theta >= lower

L is convex. Its minimum is found by Newton steps, projected onto the bounds (Bertsekas 1982). The slope is that of all
pixels. The curvature, which only affects the speed, is that of the first pixels, and the search starts on them.
Where a curvature of all parameters would be too large (more than about 35 classes), L-BFGS-B does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize

from densecal.posthoc.newton import NoMinimumError

MAX_STEPS = 100
TOLERANCE = 1e-9
"""The search ends where the next step would lower the mean NLL by less."""
_FIRST = 1 << 15
"""Pixels that the curvature is computed on."""
_LARGEST_CURVATURE = 1300
_ROWS = 1 << 13
_DAMPING = 1e-10
_NEAR = 1e-6
_FLAT = 1e3
"""A parameter this large means that the minimum is at infinity."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """What is minimised.

    Attributes:
        features: (N, F), floats of any precision, in random order.
        labels: (N,) indices of the K logits.
        mix: A, (R, K).
        penalty: (R, F), at least 0.
        target: (R, F), where the penalty is 0.
        lower: Lower bounds, one for all parameters or (R, F).
    """

    features: NDArray[np.floating]
    labels: Ints
    mix: Floats
    penalty: Floats
    target: Floats
    lower: float | Floats = -np.inf

    def first(self, count: int) -> Problem:
        """Return the problem on the first pixels."""
        return replace(self, features=self.features[:count], labels=self.labels[:count])

    def value(self, theta: Floats) -> tuple[float, Floats]:
        """Return L and its slope at parameters (R, F)."""
        total, slope = 0.0, np.zeros((self.features.shape[1], self.mix.shape[1]))
        for f, y in self._chunks():
            log_p = _log_softmax(f @ (theta.T @ self.mix))
            index = np.arange(len(y))
            total -= float(log_p[index, y].sum())
            residual = np.exp(log_p)
            residual[index, y] -= 1.0
            slope += f.T @ residual
        n = len(self.labels)
        away = theta - self.target
        value = total / n + float((self.penalty * away * away).sum())
        return value, self.mix @ slope.T / n + 2.0 * self.penalty * away

    def curvature(self, theta: Floats) -> Floats:
        """Return the second derivatives at parameters (R, F), (RF, RF)."""
        R, F = theta.shape
        blocks = np.zeros((R, F, R, F))
        for f, y in self._chunks():
            p = np.exp(_log_softmax(f @ (theta.T @ self.mix)))
            mean = p @ self.mix.T
            for r in range(R):
                # the covariance of rows r and s of A under p, for s up to r
                covariance = p @ (self.mix[r] * self.mix[: r + 1]).T - mean[:, r : r + 1] * mean[:, : r + 1]
                weighted = (covariance[:, :, None] * f[:, None, :]).reshape(len(y), -1)
                blocks[r, :, : r + 1] += (f.T @ weighted).reshape(F, r + 1, F)
        for r in range(R):
            for s in range(r):
                blocks[s, :, r] = blocks[r, :, s].T
        matrix = blocks.reshape(R * F, R * F) / len(self.labels)
        matrix[np.diag_indices(R * F)] += 2.0 * self.penalty.ravel()
        return np.asarray(matrix)

    def _chunks(self) -> Iterator[tuple[Floats, Ints]]:
        for first in range(0, len(self.labels), _ROWS):
            rows = slice(first, first + _ROWS)
            yield self.features[rows].astype(np.float64), self.labels[rows]


def solve(problem: Problem, start: Floats) -> Floats:
    """Return the parameters (R, F) of least L.

    Args:
        problem: What to minimise.
        start: Where to begin, within the bounds.

    Raises:
        NoMinimumError: There is none, or it was not reached.
    """
    if start.size > _LARGEST_CURVATURE:
        return _solve_without_curvature(problem, start)
    few = problem.first(_FIRST)
    theta = _newton(few, few, start)
    return theta if len(problem.labels) <= _FIRST else _newton(problem, few, theta)


def _newton(problem: Problem, few: Problem, theta: Floats) -> Floats:
    """Minimise by projected Newton steps, with the curvature of a few pixels."""
    value, slope = problem.value(theta)
    for _ in range(MAX_STEPS):
        if not np.isfinite(value) or np.abs(theta).max() > _FLAT:
            raise NoMinimumError
        # parameters at their bounds stay there, and those close to one move onto it
        free = ~((theta <= problem.lower + _NEAR) & (slope > 0.0)).ravel()
        curvature = few.curvature(theta)
        step = np.maximum(problem.lower - theta, -_NEAR).ravel()
        step[free] = _solve_damped(curvature[np.ix_(free, free)], -slope.ravel()[free])
        decrease = -float(slope.ravel() @ step)
        if decrease <= TOLERANCE:
            return theta
        theta, value, slope = _search(problem, theta, value, slope, step.reshape(theta.shape))
    raise NoMinimumError


def _search(problem: Problem, theta: Floats, value: float, slope: Floats, step: Floats) -> tuple[Floats, float, Floats]:
    """Return a point along the step, within the bounds, at which L is lower, with L and its slope."""
    share = 1.0
    for _ in range(30):
        trial = np.maximum(theta + share * step, problem.lower)
        new_value, new_slope = problem.value(trial)
        if new_value <= value + 1e-4 * float((slope * (trial - theta)).sum()):
            return trial, new_value, new_slope
        share /= 2.0
    raise NoMinimumError


def _solve_damped(curvature: Floats, right: Floats) -> Floats:
    """Solve for a step. The curvature is flat in some directions: adding a constant to all logits changes nothing."""
    damping = _DAMPING * max(float(np.diag(curvature).max(initial=0.0)), 1e-12)
    for _ in range(8):
        damped = curvature.copy()
        damped[np.diag_indices(len(damped))] += damping
        try:
            return np.asarray(cho_solve(cho_factor(damped), right))
        except (LinAlgError, ValueError):
            damping *= 100.0
    raise NoMinimumError


def _solve_without_curvature(problem: Problem, start: Floats) -> Floats:
    """Minimise by L-BFGS-B: on a sixteenth of the pixels, then on all."""
    theta, bounds = start, [(low, None) for low in np.broadcast_to(problem.lower, start.shape).ravel()]
    for part in (problem.first(max(_FIRST, len(problem.labels) // 16)), problem):

        def function(x: Floats, part: Problem = part) -> tuple[float, Floats]:
            value, slope = part.value(x.reshape(start.shape))
            return value, slope.ravel()

        result = minimize(
            function,
            theta.ravel(),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "maxcor": 20, "ftol": TOLERANCE, "gtol": 1e-7},
        )
        theta = result.x.reshape(start.shape)
        if not np.isfinite(result.fun) or np.abs(theta).max() > _FLAT:
            raise NoMinimumError
    return np.asarray(theta)


def _log_softmax(z: Floats) -> Floats:
    z = z - z.max(axis=1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
