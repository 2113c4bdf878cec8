"""Spatially varying label smoothing (SVLS): labels are smoothed where the labels around them differ."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from densecal.methods.base import Method, on_device
from densecal.methods.losses import SoftTargets, class_planes
from densecal.methods.neighbours import neighbour_shares
from densecal.methods.registry import register


def svls_kernel(sigma: float) -> Tensor:
    """Return the 3 x 3 kernel: Gaussian weights around the centre, which weighs as much as all others together."""
    corner, side = math.exp(-1 / sigma**2), math.exp(-0.5 / sigma**2)
    centre = 4 * (corner + side)
    kernel = torch.tensor([[corner, side, corner], [side, centre, side], [corner, side, corner]])
    return kernel / (2 * centre)


@register("svls")
class SpatiallyVaryingSmoothing(Method):
    """SVLS (Islam 2021, "Spatially varying label smoothing: capturing uncertainty from expert annotations").

    The target of a pixel is the mean of the labels around it under a Gaussian kernel of 3 x 3 pixels, whose centre
    weighs as much as all neighbours together: labels stay hard inside a region and are soft along its boundary. Beyond
    the image the pixels of its border are repeated. Deviation: void neighbours are left out.

    Args:
        sigma: Standard deviation of the kernel in pixels, at least 0.2; the paper's 1.
        **common: See `Method`.
    """

    kernel: Tensor

    def __init__(self, *, sigma: float = 1.0, **common: Any) -> None:
        super().__init__(**common)
        if not 0.2 <= sigma < math.inf:
            raise ValueError(f"sigma: found {sigma}; expected at least 0.2, where neighbours have weight")
        self.register_buffer("kernel", svls_kernel(sigma), persistent=False)

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | SoftTargets]:
        """Smooth the labels along boundaries, except those of padding samples, whose index is negative."""
        super().prepare(images, masks, index)
        real = (on_device(index, masks.device) >= 0).view(-1, 1, 1, 1)
        if self.num_classes == 1:
            valid = masks != self.ignore_index
            planes = torch.where(valid, masks, 0)
            smooth = neighbour_shares(planes, valid, self.kernel.to(planes.dtype))
            return images, torch.where(valid & real, smooth, masks)
        planes = class_planes(masks, self.num_classes, self.ignore_index)
        valid = (masks != self.ignore_index).unsqueeze(1)
        smooth = neighbour_shares(planes, valid, self.kernel)
        return images, SoftTargets(masks, torch.where(real, smooth, planes))
