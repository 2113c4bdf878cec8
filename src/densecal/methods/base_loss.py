"""The loss that a method builds on: the weighted sum of a loss per pixel and of losses per region.

    L = w_bce * pixels + sum_r w_r * region_r

`pixels` is the (binary) cross entropy, or what the method puts in its place, such as the focal loss. Every region loss
is the mean over images of its value on the method's targets, so perturbed and smoothed labels reach all terms.

The adaptive rules ascend g = L(inverted y) - L(y) of each image. For this sum that is

    g = w_bce * g_bce + sum_r w_r * (region_r(inverted y) - region_r(y))

With hard inversion a perturbed label is the inverted one, and g is exactly the derivative of the expected loss in
alpha. With a softer technique it is b * g for the cross entropy, which is linear in its labels. For region losses,
which are not, b * g is the slope of the chord between the two hard labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from densecal.methods.losses import pixel_shares
from densecal.methods.regions import REGIONS, Region, SoftLabels
from densecal.runtime.registry import suggestion

LossTerms = Mapping[str, float | Mapping[str, float]]
"""Weights of terms by name, such as ``{"bce": 1, "dice": 1}``; or the weight and options of a term."""
PIXELS = "bce"
"""The name of the loss per pixel."""


class BaseLoss(NamedTuple):
    """The weights of a base loss.

    Attributes:
        pixels: Weight of the loss per pixel.
        regions: Region losses with their weights.
    """

    pixels: float
    regions: tuple[tuple[float, Region], ...]

    def region_mean(self, logits: Tensor, labels: SoftLabels, weight: Tensor | None) -> Tensor:
        """Return the weighted sum of the region losses, each averaged over the images with valid pixels.

        Args:
            logits: (B, K, H, W), float32.
            labels: Targets.
            weight: Weight of each sample (B,), or of each pixel (B, 1, H, W).
        """
        values = self._values(logits, labels, weight if weight is not None and weight.ndim == 4 else None)
        return (values * pixel_shares(labels.valid.flatten(1).any(dim=1), weight)).mean()

    def region_gap(self, logits: Tensor, labels: SoftLabels) -> Tensor:
        """Return how much higher the region losses of each image would be with inverted labels, (B,)."""
        return self._values(logits, labels.invert(), None) - self._values(logits, labels, None)

    def _values(self, logits: Tensor, labels: SoftLabels, weight: Tensor | None) -> Tensor:
        return torch.stack([w * region(logits, labels, weight) for w, region in self.regions]).sum(dim=0)


def parse_loss(terms: LossTerms | None) -> BaseLoss:
    """Return the base loss that terms describe; cross entropy alone for None.

    Raises:
        ValueError: Names the term and what was expected.
    """
    if terms is None:
        return BaseLoss(1.0, ())
    if not isinstance(terms, Mapping) or not terms:
        raise ValueError(f"loss: found {terms!r}; expected weights of terms, such as {{bce: 1, dice: 1}}")
    pixels, regions = 0.0, []
    for name, term in terms.items():
        known = [PIXELS, *REGIONS.names()]
        if name not in known:
            question = suggestion(str(name), known)
            hint = f" ({question})" if question else ""
            raise ValueError(f"loss: found {str(name)[:100]!r}; expected one of {', '.join(known)}{hint}")
        options = dict(term) if isinstance(term, Mapping) else {"weight": term}
        allowed = ["weight", *(REGIONS.options(name) if name != PIXELS else [])]
        for option, number in options.items():
            if option not in allowed:
                raise ValueError(f"loss.{name}: found {str(option)[:100]!r}; expected one of {', '.join(allowed)}")
            _check_number(f"loss.{name}" if option == "weight" else f"loss.{name}.{option}", number)
        weight = float(options.pop("weight", 1.0))
        if name == PIXELS:
            pixels = weight
        elif weight:
            regions.append((weight, REGIONS.create(name, **options)))
    if not pixels and not regions:
        raise ValueError(f"loss: found {dict(terms)!r}; expected a term with a weight above 0")
    return BaseLoss(pixels, tuple(regions))


def _check_number(where: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{where}: found {value!r}; expected a number of at least 0")
