"""Newton's method with backtracking for smooth convex functions of a few parameters.

Those of scipy's minimisers that take a Hessian either stop short of full precision (Newton-CG, trust-constr) or report
failure at the minimum, where rounding hides the last decrease (trust-exact, dogleg). A function without a minimum could
then not be told from one whose minimum was reached.
"""

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
    """Return the minimum of a convex function of moderate scale, such as a mean NLL.

    Args:
        function: Gives value, gradient and Hessian. A singular Hessian is replaced by its pseudo-inverse.
        start: Where to begin.
        tolerance: Stop when the next step would lower the value by about this much. That step is still taken, and
            leaves an error of the order of its square.
        evaluations: Give up after this many.

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
    """Return the full step, and twice its decrease of the quadratic model."""
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise NoMinimumError
    step = -np.asarray(np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0], dtype=np.float64)
    return step, -float(gradient @ step)
