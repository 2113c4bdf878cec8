"""Training of networks with several heads: region losses, and a criterion with the same targets for all heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from densecal.methods import Method
from densecal.methods.losses import pixel_shares

Region = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Maps probabilities and masks (B, 1, H, W), both 0 at void pixels, and weights of the samples (B,) to a loss."""


def dice_loss(p: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return 1 - (2 sum py + 1e-5) / (sum p + sum y + 1e-5), with sums over the whole batch."""
    both, either = ((p * y).flatten(1).sum(dim=1), (p + y).flatten(1).sum(dim=1))
    if weight is not None:
        both, either = both * weight, either * weight
    return 1 - (2 * both.sum() + 1e-5) / (either.sum() + 1e-5)


def iou_loss(p: Tensor, y: Tensor, weight: Tensor | None = None, w: Tensor | None = None) -> Tensor:
    """Return the mean over images of 1 - (I + 1) / (U - I + 1), I = sum w p y, U = sum w (p + y); w is 1 by default."""
    w = torch.ones_like(p) if w is None else w
    I, U = ((w * values).flatten(1).sum(dim=1) for values in (p * y, p + y))  # noqa: E741
    return image_mean(1 - (I + 1) / (U - I + 1), weight)


def image_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of one value per image (B,) over the images that are not padding."""
    return (values * pixel_shares(torch.ones_like(values, dtype=torch.bool), weight)).mean()


def probabilities(logits: Tensor, masks: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return p and y for a region loss, in float32 and 0 at void pixels."""
    valid = masks != ignore_index
    return logits.float().sigmoid() * valid, torch.where(valid, masks, 0).float()


class AllHeads:
    """The criterion of a network whose ``forward(images, heads=True)`` returns all its heads, the test head first.

    L = sum over the heads of method.loss(z, targets) + region_weight * region(sigmoid(z), clean mask). The method
    prepares the targets once, so all heads see the same draw per image.

    Args:
        region: The loss added to the method's.
        region_weight: Its weight; 0 leaves it out.
    """

    def __init__(self, region: Region, region_weight: float) -> None:
        self.region = region
        self.region_weight = region_weight

    def step(
        self,
        model: nn.Module,
        images: Tensor,
        masks: Tensor,
        targets: Any,
        method: Method,
        weight: Tensor | None,
        index: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return losses by the name of their optimizer, and the logits of the test head."""
        heads = model(images, heads=True)
        loss = torch.stack([method.loss(z, targets, weight) for z in heads]).sum()
        if self.region_weight:
            regions = [self.region(*probabilities(z, masks, method.ignore_index), weight) for z in heads]
            loss = loss + self.region_weight * torch.stack(regions).sum()
        return {"main": loss}, heads[0]


def check_saliency(classes: int, region_weight: float) -> None:
    """Raise ValueError for settings that the published saliency networks do not support."""
    if classes != 1:
        raise ValueError(f"classes is {classes}; expected 1 (foreground and background)")
    if region_weight < 0:
        raise ValueError(f"region_weight is {region_weight}; expected at least 0")
