"""The band around a mask's boundary: the pixels that a perturbation may be confined to."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import max_pool2d


def boundary_band(masks: Tensor, width: int, num_classes: int = 1, ignore_index: int = 255) -> Tensor:
    """Return which pixels have a valid pixel of another class at most `width` rows and columns away.

    This is the chessboard distance: a square of side 2 * width + 1 around the pixel holds two classes.

    Args:
        masks: (B, 1, H, W) in [0, 1], foreground above 0.5, or (B, H, W) of class indices.
        width: Width of the band on each side of the boundary, in pixels.
        num_classes: 1 for foreground masks, K for class indices.
        ignore_index: Value of void pixels, which bound no class and lie in no band.

    Returns:
        Booleans of the shape of `masks`.
    """
    void = masks == ignore_index
    labels = (masks > 0.5 if num_classes == 1 else masks).float()
    highest = _window_maximum(labels.masked_fill(void, -math.inf), width)
    lowest = -_window_maximum((-labels).masked_fill(void, -math.inf), width)
    return (highest > lowest) & ~void


def check_band(band: int | None) -> None:
    """Raise ValueError unless a band is None or a whole number of pixels."""
    if band is not None and (isinstance(band, bool) or not isinstance(band, int) or band < 1):
        raise ValueError(f"band: found {band!r}; expected a whole number of pixels, at least 1")


def _window_maximum(values: Tensor, width: int) -> Tensor:
    # Rows, then columns: 2 (2d + 1) reads per pixel instead of (2d + 1)^2.
    side = 2 * width + 1
    rows = max_pool2d(values, (side, 1), stride=1, padding=(width, 0))
    return max_pool2d(rows, (1, side), stride=1, padding=(0, width))
