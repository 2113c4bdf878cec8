"""Augmentation on the batch's device: one affine map per sample moves image and mask together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from densecal.data.enhance import enhance, salt_and_pepper
from densecal.rng import Stream, uniform

Kind = Literal["none", "paper", "code", "edn", "icon", "ebmgsod"]
Padding = Literal["reflection", "zeros"]

_TRANSLATION = 0.1  # of the side
_SMALLEST_CROP = 0.8  # of the side
_CODE_BORDER = 30  # pixels that the authors' crop removes at most ...
_CODE_SIDE = 400  # ... of their images' longer side; packed images have another size
_CODE_ROTATIONS = (-15, 15)
_CODE_ROTATION_PROBABILITY = 0.2
_EDN_EDGE = 7 / 224  # of the side, from each edge
_ICON_CROP = 1 / 8  # of the side


def augment(
    images: Tensor,
    masks: Tensor,
    index: Tensor,
    epoch: int,
    seed: int,
    kind: Kind,
    ignore_index: int = 255,
) -> tuple[Tensor, Tensor]:
    """Augment a batch. The change to a sample depends only on (seed, epoch, index).

    ``paper``: horizontal flip (probability 1/2), translation by up to 10 % of the side, crop that keeps 80 to
    100 % of the side. Beyond the edge, the image and its foreground mask are mirrored alike, so that pixels and
    labels still agree.

    ``code``: as in the authors' program: flip, centred crop to W-30..W-1 by H-30..H-1 (of sides of 400 pixels),
    rotation by a whole number of degrees in [-15, 14] with probability 0.2, which leaves the corners black and
    background. Their rotation interpolates bicubically; here everything is one bilinear step.

    Three published networks have augmentations of their own. ``edn``: with probability 1/2 a crop of up to 7/224 of
    the side from each edge; a flip, which in its program turns images upside down; masks stay binary. ``icon``: flip,
    and crop of up to 1/8 of each side, in any position. ``ebmgsod``: as ``code``, then brightness, contrast, colour
    and sharpness, and salt-and-pepper noise on 0.15 % of the mask's pixels.

    Args:
        images: (B, 3, H, W) floats in [0, 1].
        masks: Foreground masks (B, 1, H, W) float, or labels (B, H, W) long.
        index: Sample ids, shape (B,); on the CPU also for images on a GPU, where so few numbers take longer to draw.
        epoch: Epoch, from 0.
        seed: Seed of the run.
        kind: ``none``, ``paper``, ``code``, ``edn``, ``icon`` or ``ebmgsod``.
        ignore_index: The label of pixels beyond the edge of label masks.

    Returns:
        Images and masks of the same shapes and types.
    """
    if kind == "none":
        return images, masks
    geometry = {"paper": _paper, "code": _code, "edn": _edn, "icon": _icon, "ebmgsod": _code}.get(kind)
    if geometry is None:
        raise ValueError(f"augmentation: found {kind!r}; expected none, paper, code, edn, icon or ebmgsod")
    draws = uniform(seed, epoch, index, stream=Stream.AUGMENT, count=6)
    matrix, shift = geometry(draws)
    sign = torch.where(draws[:, :1] < 0.5, -1.0, 1.0)  # the flip comes first, so in the inverse map it comes last
    unchanged = torch.ones_like(sign)
    mirror = torch.cat((unchanged, sign) if kind == "edn" else (sign, unchanged), dim=1)
    matrix, shift = (
        part.to(images.device, non_blocking=True) for part in (mirror[:, :, None] * matrix, mirror * shift)
    )
    padding: Padding = "zeros" if geometry is _code else "reflection"
    images, masks = warp(images, masks, matrix, shift, padding, ignore_index, _mode(kind))
    if kind == "ebmgsod":
        index = index.to(images.device, non_blocking=True)
        images = enhance(images, uniform(seed, epoch, index, Stream.COLOUR, 4))
        if masks.is_floating_point():
            masks = salt_and_pepper(masks, uniform(seed, epoch, index, Stream.MASK_NOISE, masks[0].numel()))
    return images, masks


def at_random_size(
    images: Tensor, masks: Tensor, sizes: Sequence[int], step: int, epoch: int, seed: int, kind: Kind = "none"
) -> tuple[Tensor, Tensor]:
    """Resize a batch to a side that depends only on (seed, epoch, step), so that all processes use the same side.

    Args:
        images: (B, 3, H, W) floats, resized bilinearly.
        masks: (B, 1, H, W) float, resized bilinearly (``edn``: nearest); or (B, H, W) long, nearest.
        sizes: The sides to draw from.
        step: Number of the step in the epoch.
        epoch: Epoch, from 0.
        seed: Seed of the run.
        kind: The augmentation that this is part of.
    """
    draw = float(uniform(seed, epoch, torch.tensor([step]), Stream.SIZE))
    side = sizes[int(draw * len(sizes))]
    if images.shape[-2:] == (side, side):
        return images, masks
    images = interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    if masks.is_floating_point() and _mode(kind) == "bilinear":
        return images, interpolate(masks, size=(side, side), mode="bilinear", align_corners=False)
    if masks.is_floating_point():
        return images, interpolate(masks, size=(side, side), mode="nearest-exact")
    return images, interpolate(masks[:, None].float(), size=(side, side), mode="nearest-exact")[:, 0].to(masks.dtype)


def _mode(kind: Kind) -> str:
    """Return the interpolation of foreground masks."""
    return "nearest" if kind == "edn" else "bilinear"


def _paper(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Scale by the crop; shift by the position of the crop and the translation, in units where the side is 2."""
    scale = 1.0 - (1.0 - _SMALLEST_CROP) * draws[:, 1]
    position = (1.0 - scale)[:, None] * (2.0 * draws[:, 2:4] - 1.0)
    translation = 2.0 * _TRANSLATION * (2.0 * draws[:, 4:6] - 1.0)
    return scale[:, None, None] * torch.eye(2, device=draws.device), position + translation


def _code(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate, then scale by the two sides of the crop, both about the centre."""
    removed = torch.floor(draws[:, 1:3] * _CODE_BORDER) + 1.0
    scale = 1.0 - removed / _CODE_SIDE
    low, high = _CODE_ROTATIONS
    degrees = torch.floor(draws[:, 3] * (high - low)) + low
    degrees = torch.where(draws[:, 4] < _CODE_ROTATION_PROBABILITY, degrees, torch.zeros_like(degrees))
    sine, cosine = torch.sin(degrees * math.pi / 180.0), torch.cos(degrees * math.pi / 180.0)
    rotation = torch.stack((cosine, -sine, sine, cosine), dim=1).view(-1, 2, 2)
    return scale[:, :, None] * rotation, torch.zeros_like(scale)


def _edn(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Crop from all four edges, or not at all."""
    edges = _EDN_EDGE * draws[:, 2:6] * (draws[:, 1:2] < 0.5)
    return _window(edges[:, :2], edges[:, 2:])


def _icon(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Crop a share of each side, and divide it between the two edges."""
    removed = _ICON_CROP * draws[:, 1:3]
    before = removed * draws[:, 3:5]
    return _window(before, removed - before)


def _window(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Return the map to a window, given the shares (B, 2) of both sides that are cut off before and after it."""
    return torch.diag_embed(1.0 - before - after), before - after


def warp(
    images: Tensor,
    masks: Tensor,
    matrix: Tensor,
    shift: Tensor,
    padding: Padding,
    ignore_index: int = 255,
    mode: str = "bilinear",
) -> tuple[Tensor, Tensor]:
    """Sample every output pixel at ``matrix @ (its offset from the centre)``, moved by ``shift``.

    Args:
        images: (B, 3, H, W) floats, interpolated bilinearly.
        masks: (B, 1, H, W) float; or (B, H, W) long, interpolated by nearest.
        matrix: (B, 2, 2), acting on (x, y) in pixels.
        shift: (B, 2), in half widths and half heights.
        padding: What lies beyond the edge of images and foreground masks.
        ignore_index: What lies beyond the edge of label masks.
        mode: Interpolation of foreground masks, ``bilinear`` or ``nearest``.

    Returns:
        Images and masks; a sample with the identity map comes back unchanged to the last bit.
    """
    height, width = images.shape[-2:]
    matrix, shift = matrix.float(), shift.float()
    # Not a matrix product, which may run in bfloat16 (autocast) or TF32 and miss by a pixel.
    x = _centres(width, images.device)[None, None, :]
    y = _centres(height, images.device)[None, :, None]
    a, b, c, d = (matrix[:, i, j, None, None] for i in (0, 1) for j in (0, 1))
    u = a * x + (b * (height / width)) * y + shift[:, 0, None, None]
    v = (c * (width / height)) * x + d * y + shift[:, 1, None, None]
    grid = torch.stack((u, v), dim=-1)
    moved_images = _sample(images.float(), grid, "bilinear", padding).to(images.dtype)
    if masks.is_floating_point():
        moved_masks = _sample(masks.float(), grid, mode, padding).to(masks.dtype)
    else:
        labels = masks[:, None].float() - ignore_index  # so that the zeros beyond the edge mean void
        moved = _sample(labels, grid, "nearest", "zeros")[:, 0] + ignore_index
        moved_masks = moved.to(masks.dtype)
    # Sampling in float32 misses pixel centres by 1e-5 pixels, but the identity map must change nothing.
    still = (matrix == torch.eye(2, device=matrix.device)).flatten(1).all(1) & (shift == 0).all(1)
    return (
        torch.where(still[:, None, None, None], images, moved_images),
        torch.where(still.view(-1, *[1] * (masks.ndim - 1)), masks, moved_masks),
    )


def _centres(count: int, device: torch.device) -> Tensor:
    return (2.0 * torch.arange(count, device=device, dtype=torch.float32) + 1.0) / count - 1.0


def _sample(data: Tensor, grid: Tensor, mode: str, padding: str) -> Tensor:
    return grid_sample(data, grid, mode=mode, padding_mode=padding, align_corners=False)
