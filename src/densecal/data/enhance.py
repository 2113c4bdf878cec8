"""Colours and mask noise of EBMGSOD's training: Pillow's enhancements, drawn per sample, on the batch's device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

BRIGHTNESS = CONTRAST = (0.5, 1.5)
COLOUR = (0.0, 2.0)
SHARPNESS = (0.0, 3.0)
NOISY_SHARE = 0.0015
_LUMA = (0.299, 0.587, 0.114)


def enhance(images: Tensor, draws: Tensor) -> Tensor:
    """Change brightness, contrast, colour and sharpness, in this order.

    Each blends the image with a degenerate version of it, as ``PIL.ImageEnhance`` does: black, its mean grey, its grey
    version, its smoothed version.

    Args:
        images: (B, 3, H, W) floats in [0, 1].
        draws: Uniforms (B, 4).

    Returns:
        Images in [0, 1].
    """
    brightness, contrast, colour, sharpness = (
        (low + (high - low) * draws[:, i]).view(-1, 1, 1, 1)
        for i, (low, high) in enumerate((BRIGHTNESS, CONTRAST, COLOUR, SHARPNESS))
    )
    images = _blend(torch.zeros_like(images), images, brightness)
    images = _blend(_grey(images).mean(dim=(1, 2, 3), keepdim=True), images, contrast)
    images = _blend(_grey(images), images, colour)
    return _blend(_smooth(images), images, sharpness)


def salt_and_pepper(masks: Tensor, draws: Tensor) -> Tensor:
    """Set 0.15 % of a foreground mask's pixels, half of them to 0 and half to 1.

    Args:
        masks: (B, 1, H, W).
        draws: Uniforms of the same shape.
    """
    u = draws.view_as(masks)
    return torch.where(u < NOISY_SHARE, (u < NOISY_SHARE / 2).to(masks.dtype), masks)


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return (degenerate + factor * (images - degenerate)).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    return sum(weight * images[:, c : c + 1] for c, weight in enumerate(_LUMA))  # type: ignore[return-value]


def _smooth(images: Tensor) -> Tensor:
    kernel = images.new_ones(1, 1, 3, 3)
    kernel[..., 1, 1] = 5
    flat = pad(images, (1, 1, 1, 1), mode="replicate").flatten(0, 1)[:, None]
    return conv2d(flat, kernel / 13).view_as(images)
