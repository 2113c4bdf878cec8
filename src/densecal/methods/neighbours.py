"""The labels around each pixel: what share of them, weighted by a 3 x 3 kernel, has which class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad


def neighbour_shares(planes: Tensor, valid: Tensor, kernel: Tensor) -> Tensor:
    """Return the weighted mean of the labels of the 3 x 3 pixels around each pixel, (B, K, H, W).

    Beyond the image the pixels of its border are repeated. Void neighbours are left out.

    Args:
        planes: Labels (B, K, H, W), float32, 0 at void pixels.
        valid: Booleans (B, 1, H, W).
        kernel: Weights (3, 3) of the neighbours, positive.
    """
    sums, total = _window_sum(planes, kernel), _window_sum(valid.to(planes.dtype), kernel)
    return sums / torch.where(total > 0, total, 1)


def _window_sum(planes: Tensor, kernel: Tensor) -> Tensor:
    flat = pad(planes.flatten(0, 1).unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    return conv2d(flat, kernel.view(1, 1, 3, 3)).view_as(planes)
