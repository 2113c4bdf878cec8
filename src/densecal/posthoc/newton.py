"""Newton's method with backtracking for smooth convex functions of a few parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Function = Callable[[Floats], tuple[float, Floats, Floats]]
"""Value, gradient and Hessian at a point."""


class NoMinimumError(Exception):
    """The function has no minimum, or it was not reached."""


def minimise(
    function: Function, start: list[float] | Floats, tolerance: float = 1e-14, evaluations: int = 200
) -> Floats:
    """The minimum of a convex function of moderate scale, such as a mean NLL.

    Args:
        function: Gives value, gradient and Hessian; a singular Hessian is taken with its pseudo-inverse.
        start: Where to begin.
        tolerance: Stop when the step to come lowers the value by about this much; that step is still taken, and
            leaves an error of the order of its square.
        evaluations: Give up after so many.

    Raises:
        NoMinimumError: Not reached.
    """
    x = np.asarray(start, dtype=np.float64)
    value, gradient, hessian = function(x)
    step, decrease = _newton_step(gradient, hessian)
    share = 1.0
    for _ in range(evaluations - 1):
        if decrease <= tolerance:
            return x + step
        trial = function(x + share * step)
        # the slack is the rounding of the value, which hides the last small decreases
        if trial[0] <= value - 1e-4 * share * decrease + 1e-13 * (1.0 + abs(value)):
            x = x + share * step
            value, gradient, hessian = trial
            step, decrease = _newton_step(gradient, hessian)
            share = min(1.0, 4.0 * share)
        else:
            share /= 4.0
    raise NoMinimumError


def _newton_step(gradient: Floats, hessian: Floats) -> tuple[Floats, float]:
    """The full step, and how much it lowers the value of the quadratic model, twice."""
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise NoMinimumError
    step = -np.asarray(np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0], dtype=np.float64)
    return step, -float(gradient @ step)
