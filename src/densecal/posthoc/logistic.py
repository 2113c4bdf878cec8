"""Weighted logistic regression on a few features: the loss that Platt scaling and beta calibration minimise."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from densecal.posthoc.newton import Floats, Function


def mean_nll(features: Floats, targets: Floats, pixels: Floats) -> Function:
    """Return the mean NLL of sigmoid(features @ x) as a function of x, with gradient and Hessian.

    Args:
        features: (n, d).
        targets: (n,) in [0, 1].
        pixels: (n,) weights.
    """
    share = pixels / pixels.sum()

    def function(x: Floats) -> tuple[float, Floats, Floats]:
        z = features @ x
        p, q = expit(z), expit(-z)
        # logaddexp(0, z) - t z, split so that no large numbers cancel.
        value = share @ (targets * np.logaddexp(0.0, -z) + (1.0 - targets) * np.logaddexp(0.0, z))
        gradient = features.T @ (share * ((1.0 - targets) * p - targets * q))
        hessian = (features * (share * p * q)[:, None]).T @ features
        return float(value), gradient, hessian

    return function


def overlap(z: Floats, y: Floats) -> bool:
    """Return whether no threshold on z separates the labels (ties count as separable): else the NLL has no minimum."""
    background, foreground = z[y == 0], z[y == 1]
    return bool(background.max() > foreground.min() and foreground.max() > background.min())
