"""Closed-loop adaptive label perturbation: its level follows what validation measures, not a bound on the labels.

ASLP-MC stops a label's expected confidence at the accuracy A. The network is less confident than its labels, so it ends
under-confident. Here the bound is a state C that an integrator moves by the measured gap, once per epoch:

    C <- clip(C - gain * gap, C_min, 1),    gap = mean confidence - accuracy on validation, smoothed over epochs

and alpha_i climbs along the image's gradient to the threshold (1 - C) / b and no further, as in ASLP-MC's exact form.
Over-confidence lowers C and raises the perturbation; under-confidence does the reverse. Clipping the state itself is
the anti-windup: C never leaves what perturbation can reach.

Stability. Let the confidence respond to a change of C an epoch later (alpha moves after a visit and acts at the next),
with a first-order lag of rate rho in (0, 1] per epoch and slope at most 1 (labels more confident by dC cannot make a
network that fits them more confident by more). With a weight s of the past in the smoothed gap, the loop's
characteristic polynomial is (z - 1) (z - 1 + rho) (z - s) + gain * rho * (1 - s) z, whose roots lie inside the unit
circle exactly when 0 < gain < 1 - s * (1 - rho): for every rho, when gain + s < 1. The defaults add up to 0.8.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from densecal.methods.aslp import ASLPMC
from densecal.methods.base_loss import LossTerms
from densecal.methods.registry import register


@register("aslp-cl")
class ASLPCL(ASLPMC):
    """ASLP in closed loop: perturbation rises while validation is over-confident and falls while it is not.

    Args:
        gain: Gain of the integrator, above 0.
        smoothing: Weight of the past in the smoothed gap, at least 0; ``gain + smoothing`` must be below 1.
        floor: C_min, the lowest expected confidence of a label.
        eta: Step size of alpha; by default large enough to reach the threshold in one visit.
        warmup: Epochs before the loop closes.
        technique: As for `aslp-mei`, like `noise_bound`, `grad_norm` and `band`.
        num_samples: As for `Method`, like `num_classes`, `ignore_index`, `seed` and `loss`.
    """

    bound: Tensor
    smoothed_gap: Tensor

    def __init__(
        self,
        *,
        gain: float = 0.5,
        smoothing: float = 0.3,
        floor: float = 0.75,
        eta: float = 0.05,
        warmup: int = 1,
        technique: str = "hi",
        noise_bound: float = 0.5,
        grad_norm: str = "paper",
        band: int | None = None,
        num_samples: int,
        num_classes: int = 1,
        ignore_index: int = 255,
        seed: int = 0,
        loss: LossTerms | None = None,
    ) -> None:
        super().__init__(
            eta=eta, lam=0.0, warmup=warmup, constraint="exact", technique=technique, noise_bound=noise_bound,
            grad_norm=grad_norm, band=band,
            num_samples=num_samples, num_classes=num_classes, ignore_index=ignore_index, seed=seed, loss=loss,
        )  # fmt: skip
        if not 0 < gain < 1:
            raise ValueError(f"gain: found {gain}; expected above 0 and below 1, where the loop is stable")
        if not 0 <= smoothing < 1 - gain:
            raise ValueError(
                f"smoothing: found {smoothing} with gain {gain}; expected at least 0, and both together below 1, "
                "where the loop is stable"
            )
        if not 0.5 <= floor <= 1:
            raise ValueError(f"floor: found {floor}; expected a confidence from 0.5 to 1")
        self.gain, self.smoothing, self.floor = gain, smoothing, floor
        self.register_buffer("bound", torch.tensor(1.0))
        self.register_buffer("smoothed_gap", torch.tensor(math.nan))

    def target_accuracy(self) -> Tensor:
        """Return C, the bound on the expected confidence of labels."""
        return self.bound

    def after_epoch(self, result: Any) -> None:
        """Move the bound by the gap that validation measured."""
        gap = float(result.mean_confidence) - float(result.accuracy)
        if self.epoch + 1 >= self.warmup:
            old = self.smoothed_gap.item()
            new = gap if math.isnan(old) else self.smoothing * old + (1 - self.smoothing) * gap
            self.smoothed_gap.fill_(new)
            self.bound.sub_(self.gain * new).clamp_(self.floor, 1.0)
        super().after_epoch(result)

    def statistics(self) -> dict[str, float]:
        """Add the bound and the gap to what adaptive methods log."""
        statistics = super().statistics()
        statistics["bound"] = statistics.pop("accuracy")
        gap = self.smoothed_gap.item()
        return statistics if math.isnan(gap) else statistics | {"gap": gap}
