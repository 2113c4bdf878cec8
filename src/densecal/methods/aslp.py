"""Adaptive (stochastic) label perturbation, ICCV 2023: the learning rules ASLP-MEI, ASLP-MC and ALS.

Image i has a probability alpha_i that its labels are perturbed with strength beta (ASLP), or a strength
beta_i of label smoothing (ALS). After each visit this value takes an ascent step on the image's expected
loss, whose derivative is a multiple of g = L(1 - y) - L(y), held back by a regulariser r <= 0:

    value <- clamp(value + eta * (g' + lambda * r))

    rule        g'                                              r
    aslp-mei    g (grad_norm none: b * g, confidence: g / b)    min((A_now - A_lm) / A_lm, 0)
    aslp-mc     the same                                        min((1 - b * alpha) - A, 0)
    als         (K-1)/K * g                                     min((1 - (K-1)/K * beta_i) - A, 0)

b = beta * (K-1)/K, which is beta/2 for one sigmoid logit. A_now is the accuracy of the last validation, A_lm
the ideal accuracy, A the frozen or the running accuracy. `constraint="exact"` replaces lambda * r: the value climbs to
the threshold at which the expected confidence is A, and no further.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from densecal.labels import half_scale, max_alpha, technique_strength
from densecal.methods.adaptive import Adaptive
from densecal.methods.band import check_band
from densecal.methods.base import check_choice, on_device
from densecal.methods.losses import SmoothedLabels, class_gap, image_gap
from densecal.methods.registry import register
from densecal.methods.slp import check_technique, sample_targets

__all__ = ["ALS", "ASLPMC", "ASLPMEI", "class_gap", "image_gap", "stability"]

MARGIN = 0.01
"""How far values stay below the largest admissible one, as in the authors' code."""


def normalise(gap: Tensor, b: float, grad_norm: str) -> Tensor:
    """Return g': the derivative b * g of the loss in alpha, divided by 1, b or b^2."""
    return {"none": b * gap, "paper": gap, "confidence": gap / b}[grad_norm]


def accuracy_regulariser(now: Tensor, ideal: Tensor) -> Tensor:
    """Return MEI's r: minus the relative loss of accuracy."""
    return ((now - ideal) / ideal).clamp(max=0)


def confidence_regulariser(value: Tensor, accuracy: Tensor, b: float) -> Tensor:
    """Return MC's r: minus the shortfall of the expected confidence 1 - b * value from the accuracy."""
    return ((1 - accuracy) - b * value).clamp(max=0)


def threshold(accuracy: Tensor, b: float) -> Tensor:
    """Return the value at which the expected confidence equals the accuracy."""
    return (1 - accuracy) / b


def ascend(value: Tensor, gradient: Tensor, regulariser: Tensor, eta: float, lam: float) -> Tensor:
    """Take one step of a rule, before the clamp."""
    return value + eta * (gradient + lam * regulariser)


def clamp(value: Tensor, beta: float) -> Tensor:
    """Keep a probability in [0, min(1, 1/beta) - 0.01]; with beta = 1, a smoothing strength in [0, 0.99]."""
    return value.clamp(0, max_alpha(beta) - MARGIN)


class Stability(NamedTuple):
    """How the MC rule behaves around its fixed point.

    Attributes:
        multiplier: mu = 1 - eta * lambda * b, by which a deviation is multiplied at each visit: monotone
            above 0, one step at 0, damped oscillation above -1, endless oscillation from -1 down.
        max_lam: The lambda below which oscillation dies out.
    """

    multiplier: float
    max_lam: float


def stability(eta: float, lam: float, beta: float, num_classes: int = 1) -> Stability:
    """Return the multiplier and the stability bound of the MC rule.

    Examples:
        >>> stability(eta=0.002, lam=2000, beta=2.0)
        Stability(multiplier=-3.0, max_lam=1000.0)
    """
    speed = eta * half_scale(beta, num_classes)
    return Stability(1 - speed * lam, 2 / speed)


class _Stochastic(Adaptive):
    """What ASLP-MEI and ASLP-MC share: a probability per image, and the technique."""

    def __init__(
        self,
        *,
        technique: str = "hi",
        noise_bound: float = 0.5,
        grad_norm: str = "paper",
        band: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_technique(technique, noise_bound, self.num_classes)
        check_band(band)
        check_choice("grad_norm", grad_norm, ("none", "paper", "confidence"))
        self.technique = technique
        self.noise_bound = noise_bound
        self.grad_norm = grad_norm
        self.band = band
        self.technique_beta = technique_strength(technique, self.num_classes)
        self.b = half_scale(self.technique_beta, self.num_classes)

    @property
    def alpha(self) -> Tensor:
        """Perturbation probability of each training image, (num_samples,): a view of the state."""
        return self.values[: self.num_samples]

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | SmoothedLabels]:
        """Perturb the labels of image i with probability alpha_i."""
        super().prepare(images, masks, index)
        alpha = self.values_of(index)
        index = on_device(index, self.values.device)
        return images, sample_targets(self, masks, index, alpha, self.technique, self.noise_bound, self.band)


@register("aslp-mei")
class ASLPMEI(_Stochastic):
    """ASLP for maximum entropy inference: alpha climbs as long as the accuracy stays ideal.

    The ideal accuracy is the frozen one, or the best so far if none is frozen (`schedule="warmup"`).

    Args:
        technique: `hi`, `si`, `m` or `dm` (one sigmoid logit only).
        noise_bound: Bound of dynamic moderation's noise: 0.5 in the paper, 0.25 in its code.
        grad_norm: `paper` (g), `none` (b * g) or `confidence` (g / b, the authors' code).
        band: Perturb only pixels within this chessboard distance of a boundary of the mask; by default all pixels. The
            rule stays the same; its expected confidence is then that of a pixel in the band.
        **common: See `Adaptive` and `Method`.
    """

    PRESET = "paper"

    def move(self, values: Tensor, gap: Tensor) -> Tensor:
        """Apply the MEI rule."""
        gradient = normalise(gap, self.b, self.grad_norm)
        # Before the first validation no accuracy is known to be lost.
        r = accuracy_regulariser(self.last_accuracy, self.ideal_accuracy()).nan_to_num(0.0)
        return clamp(ascend(values, gradient, r, self.eta, self.lam), self.technique_beta)


@register("aslp-mc")
class ASLPMC(_Stochastic):
    """ASLP for model calibration: alpha climbs until the expected confidence falls to the accuracy.

    Args:
        constraint: `penalty` (the paper's, weighted by lambda) or `exact` (clip at the threshold, no lambda).
        technique: As for `aslp-mei`, like `noise_bound`, `grad_norm` and `band`.
        **common: See `Adaptive` and `Method`.
    """

    def __init__(self, *, constraint: str = "penalty", **common: Any) -> None:
        super().__init__(**common)
        self.constraint = constraint
        self.multiplier = _multiplier(self, constraint, self.technique_beta)

    def move(self, values: Tensor, gap: Tensor) -> Tensor:
        """Apply the MC rule."""
        gradient = normalise(gap, self.b, self.grad_norm)
        return clamp(_move_toward_accuracy(self, self.constraint, values, gradient), self.technique_beta)


@register("als")
class ALS(Adaptive):
    """Adaptive label smoothing: beta_i climbs until the smoothed labels' confidence falls to the accuracy.

    Args:
        gradient: `exact` (the derivative (K-1)/K * g), `normalised` (g) or `literal` (the paper's formula,
            proportional to beta_i: started at 0 it stays there).
        constraint: `penalty` (the paper's, weighted by lambda) or `exact` (clip at the threshold, no lambda).
        **common: See `Adaptive` and `Method`.
    """

    VALUE = "beta"

    def __init__(self, *, gradient: str = "exact", constraint: str = "penalty", **common: Any) -> None:
        super().__init__(**common)
        check_choice("gradient", gradient, ("exact", "normalised", "literal"))
        self.gradient = gradient
        self.constraint = constraint
        self.b = half_scale(1.0, self.num_classes)
        self.multiplier = _multiplier(self, constraint, beta=1.0)

    @property
    def beta(self) -> Tensor:
        """Full-scale smoothing strength of each training image, (num_samples,): a view of the state."""
        return self.values[: self.num_samples]

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | SmoothedLabels]:
        """Smooth the labels of image i with strength beta_i."""
        super().prepare(images, masks, index)
        beta = self.values_of(index)
        self.count_perturbed(beta > 0)
        return images, self.perturb_labels(masks, beta)

    def move(self, values: Tensor, gap: Tensor) -> Tensor:
        """Apply the ALS rule."""
        derivative = self.b * gap
        gradient = {"exact": derivative, "normalised": gap, "literal": values * derivative}[self.gradient]
        return clamp(_move_toward_accuracy(self, self.constraint, values, gradient), beta=1.0)


def _move_toward_accuracy(method: Adaptive, constraint: str, values: Tensor, gradient: Tensor) -> Tensor:
    """Move values toward the threshold at which the expected confidence equals the accuracy."""
    accuracy = method.target_accuracy()
    if constraint == "exact":
        return torch.minimum(values + method.eta * gradient, threshold(accuracy, method.b))
    r = confidence_regulariser(values, accuracy, method.b)
    return ascend(values, gradient, r, method.eta, method.lam)


def _multiplier(method: Adaptive, constraint: str, beta: float) -> float | None:
    """Return mu if the rule has one; warn if its oscillation does not die out."""
    check_choice("constraint", constraint, ("penalty", "exact"))
    if constraint == "exact":
        return None
    mu, max_lam = stability(method.eta, method.lam, beta, method.num_classes)
    if mu <= -1:
        warnings.warn(
            f"eta={method.eta:g} and lam={method.lam:g} make {method.VALUE} oscillate without end "
            f"(multiplier {mu:g}): it settles for lam < {max_lam:g}, fastest at {max_lam / 2:g}, or with "
            "constraint='exact'",
            stacklevel=4,
        )
    return mu
