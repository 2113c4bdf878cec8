"""Perturbed labels: p(y, beta), techniques HI, SI, M and DM, label smoothing; one sigmoid logit or K classes.

beta is on the FULL scale everywhere: t = (1 - beta) * y + beta * u with u uniform. The paper's tables and its
code print the HALF scale b = beta / 2:

    technique                  beta (here)   b (paper's tables)   label for y=1 / y=0   alpha
    hi  hard inversion         2.0           1.0                  0 / 1                 [0, 1/2)
    si  soft inversion         1.5           0.75                 0.25 / 0.75           [0, 2/3)
    m   moderation             1.0           0.5                  0.5 / 0.5             [0, 1)
    dm  dynamic moderation     1.0           0.5                  0.5 + noise           [0, 1)
    label smoothing            [0, 1)        beta / 2             1 - beta/2 / beta/2   1
    DisturbLabel               1.0           0.5                  0.5 / 0.5             (0, 1)

`num_classes` is 1 for one sigmoid logit, whose labels take K = 2 values, and K for K softmax logits.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

# Position of a technique between moderation (0: uniform) and hard inversion (1: no mass on the true class).
TECHNIQUES: dict[str, float] = {"hi": 1.0, "si": 0.5, "m": 0.0, "dm": 0.0}


def label_values(num_classes: int) -> int:
    """Return K: how many values a label can take."""
    return max(num_classes, 2)


def max_beta(num_classes: int = 1) -> float:
    """Return K / (K - 1), the strength that leaves the true class no mass: hard inversion."""
    K = label_values(num_classes)
    return K / (K - 1)


def max_alpha(beta: float) -> float:
    """Return min(1, 1 / beta): below it the expected label keeps its arg-max."""
    return min(1.0, 1.0 / beta) if beta > 0 else 1.0


def technique_strength(name: str, num_classes: int = 1) -> float:
    """Return the full-scale beta of a technique.

    Examples:
        >>> [technique_strength(name) for name in TECHNIQUES]
        [2.0, 1.5, 1.0, 1.0]
    """
    if name not in TECHNIQUES:
        raise ValueError(f"technique: found {name!r}; expected one of {', '.join(TECHNIQUES)}")
    return 1.0 + TECHNIQUES[name] / (label_values(num_classes) - 1)


def half_scale(beta: Number, num_classes: int = 1) -> Number:
    """Return b = beta * (K - 1) / K, the share of the inverted label: L(t) = (1 - b) L(y) + b L(inverted y)."""
    K = label_values(num_classes)
    return beta * ((K - 1) / K)


def perturb(y: Tensor, beta: float | Tensor, num_classes: int = 1) -> Tensor:
    """Perturb labels with strength beta: (1 - beta) * y + beta / K, with K = 2 for one sigmoid logit.

    Args:
        y: Foreground probability (one sigmoid logit) or class probabilities (K classes), hard or soft.
        beta: Strength on the full scale, in [0, 2] for one sigmoid logit, [0, K / (K - 1)] for K classes. A
            tensor holds one strength per image (first dimension of `y`) or broadcasts as it is. Its values
            are not checked, because that would make the host wait for the device.
        num_classes: 1 for one sigmoid logit, K for K classes.

    Returns:
        Labels of the shape of `y`.

    Raises:
        ValueError: A float beta outside its range.

    Examples:
        >>> perturb(torch.tensor([0.0, 1.0]), 1.5)
        tensor([0.7500, 0.2500])
    """
    if isinstance(beta, Tensor):
        beta = _per_image(beta, y)
    else:
        check_beta(beta, num_classes)
        beta = float(beta)
    return (1 - beta) * y + beta / label_values(num_classes)


def moderation_noise(uniform: Tensor, bound: float = 0.5) -> Tensor:
    """Turn uniforms into dynamic moderation's noise: standard normal truncated to [-bound, bound].

    Args:
        uniform: Draws in [0, 1), one per pixel.
        bound: 0.5 in the paper, 0.25 in its code; at most 0.5, which keeps labels in [0, 1].
    """
    check_noise_bound(bound)
    mass = math.erf(bound / math.sqrt(2))
    return (math.sqrt(2) * torch.erfinv((2 * uniform - 1) * mass)).clamp(-bound, bound)


def check_beta(beta: float, num_classes: int = 1) -> None:
    """Raise ValueError for a strength outside [0, K / (K - 1)]."""
    top = max_beta(num_classes)
    if not 0 <= beta <= top:
        raise ValueError(
            f"beta: found {beta}; expected 0 <= beta <= {top:g}. beta is on the full scale; the paper's "
            f"tables and code print the half scale, where hard inversion is 1.0 (here beta = {top:g})"
        )


def check_smoothing(s: float) -> None:
    """Raise ValueError for a strength at which smoothed labels would lose their arg-max."""
    if not 0 <= s < 1:
        raise ValueError(f"label smoothing beta: found {s}; expected 0 <= beta < 1 (full scale)")


def check_alpha(alpha: float, beta: float) -> None:
    """Raise ValueError for a probability at which the expected label would lose its arg-max."""
    if not 0 <= alpha < max_alpha(beta):
        raise ValueError(f"alpha: found {alpha}; expected 0 <= alpha < {max_alpha(beta):g} at beta = {beta:g}")


def check_noise_bound(bound: float) -> None:
    """Raise ValueError for noise that would move dynamic moderation's labels out of [0, 1]."""
    if not 0 < bound <= 0.5:
        raise ValueError(f"noise_bound: found {bound}; expected 0 < bound <= 0.5 (paper 0.5, its code 0.25)")


def _per_image(value: Tensor, y: Tensor) -> Tensor:
    """Line up one value per image (B,) with labels whose first dimension is the image."""
    return value.view(-1, *[1] * (y.ndim - 1)) if value.ndim == 1 else value
