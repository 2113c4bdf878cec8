"""Label smoothing: every label is always perturbed with a small strength."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from densecal.labels import check_smoothing
from densecal.methods.base import Method, on_device
from densecal.methods.losses import SmoothedLabels
from densecal.methods.registry import register


@register("label-smoothing")
class LabelSmoothing(Method):
    """Label smoothing.

    Args:
        beta: Strength on the full scale, [0, 1): targets are 1 - beta/2 and beta/2. The paper does not say on which
            scale its 0.03 is; 0.06 is the other reading.
        **common: See `Method`.
    """

    def __init__(self, *, beta: float = 0.03, **common: Any) -> None:
        super().__init__(**common)
        check_smoothing(beta)
        self.strength = beta

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | SmoothedLabels]:
        """Smooth the labels, except those of padding samples, whose index is negative."""
        super().prepare(images, masks, index)
        return images, self.perturb_labels(masks, self.strength * (on_device(index, masks.device) >= 0))
