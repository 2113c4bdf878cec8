"""Images without any object, made from real ones, so that a network learns to be unsure without information."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from densecal.rng import Stream, uniform

_PATCHES = 8  # per side
_CROPS = 32  # tried per image
_CROP_SIDES = (0.15, 0.6)  # of the side


def choose_samples(ids: Tensor, epoch: int, seed: int, share: float) -> Tensor:
    """Choose, by (seed, epoch, index), the samples of a batch that lose their information this epoch: bool (B,)."""
    return (uniform(seed, epoch, ids, Stream.INFORMATIONLESS_KIND, 2)[:, 0] < share) & (ids >= 0)


def without_information(images: Tensor, masks: Tensor, index: Tensor, epoch: int, seed: int) -> Tensor:
    """Remove the objects from images.

    This happens in one of three ways, each with probability 1/3. The phases of the frequencies are randomised, which
    keeps the spectrum but no shape. Or 8 x 8 patches are shuffled, which keeps textures but no object. Or a part
    without any foreground is enlarged to the whole image, which keeps a real surface; if there is no such part,
    patches are shuffled.

    Args:
        images: (B, 3, H, W) floats in [0, 1].
        masks: Foreground masks (B, 1, H, W).
        index: Sample ids (B,); on the CPU also for images on a GPU, where so few numbers take longer to draw.
        epoch: Epoch, from 0.
        seed: Seed of the run.

    Returns:
        Images of the same shape; the mask of each is empty.
    """

    def draw(stream: int, count: int) -> Tensor:
        return uniform(seed, epoch, index, stream, count).to(images.device, non_blocking=True)

    kind = draw(Stream.INFORMATIONLESS_KIND, 2)[:, 1].view(-1, 1, 1, 1)
    shuffled = shuffle_patches(images, draw(Stream.INFORMATIONLESS_PATCH, _PATCHES**2))
    background = background_crop(images, masks, draw(Stream.INFORMATIONLESS_CROP, 3 * _CROPS), shuffled)
    device_index = index.to(images.device, non_blocking=True)
    noise = uniform(seed, epoch, device_index, Stream.INFORMATIONLESS_PHASE, images.shape[2] * images.shape[3])
    scrambled = scramble_phases(images, noise)
    return torch.where(kind < 1 / 3, scrambled, torch.where(kind < 2 / 3, shuffled, background))


def scramble_phases(images: Tensor, noise: Tensor) -> Tensor:
    """Add the phases of white noise (B, H * W) to those of all channels, and clip to [0, 1]."""
    height, width = images.shape[2:]
    phase = torch.fft.rfft2(noise.view(-1, 1, height, width)).angle()
    spectrum = torch.fft.rfft2(images) * torch.polar(torch.ones_like(phase), phase)
    scrambled: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return scrambled.clamp(0.0, 1.0)


def shuffle_patches(images: Tensor, draws: Tensor) -> Tensor:
    """Shuffle square patches, in an order given by draws (B, 64)."""
    batch, channels, height, width = images.shape
    order = draws.argsort(dim=1)
    high, wide = -(-height // _PATCHES), -(-width // _PATCHES)
    y = torch.arange(height, device=images.device).view(1, -1, 1)
    x = torch.arange(width, device=images.device).view(1, 1, -1)
    patch = order.gather(1, (y // high * _PATCHES + x // wide).flatten().expand(batch, -1)).view(batch, height, width)
    # sides that are not multiples of 8 leave smaller patches at the edge
    from_y = (patch // _PATCHES * high + y % high).clamp(max=height - 1)
    from_x = (patch % _PATCHES * wide + x % wide).clamp(max=width - 1)
    origin = (from_y * width + from_x).view(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, origin).view_as(images)


def background_crop(images: Tensor, masks: Tensor, draws: Tensor, otherwise: Tensor) -> Tensor:
    """Enlarge the largest of some random squares without foreground to the whole image.

    Args:
        images: (B, 3, H, W).
        masks: (B, 1, H, W).
        draws: Uniforms (B, 3 * squares): side, x and y of each.
        otherwise: Images to use where all squares contain foreground.
    """
    batch, _, height, width = images.shape
    size, x, y = draws.view(batch, 3, -1).unbind(dim=1)
    low, high = _CROP_SIDES
    side = low + (high - low) * size
    left, top = x * (1 - side), y * (1 - side)
    # a summed-area table with a border of zeros
    table = torch.nn.functional.pad((masks[:, 0] > 0).float().cumsum(1).cumsum(2), (1, 0, 1, 0)).flatten(1)

    def corner(row: Tensor, column: Tensor) -> Tensor:
        return table.gather(1, row * (width + 1) + column)

    # half a pixel more on each side for interpolation
    top_, left_ = (top * height - 0.5).clamp(min=0).long(), (left * width - 0.5).clamp(min=0).long()
    bottom = ((top + side) * height + 0.5).ceil().long().clamp(max=height)
    right = ((left + side) * width + 0.5).ceil().long().clamp(max=width)
    inside = corner(bottom, right) - corner(top_, right) - corner(bottom, left_) + corner(top_, left_)
    best = torch.where(inside == 0, side, torch.zeros_like(side)).max(dim=1)
    pick = best.indices[:, None]
    scale = side.gather(1, pick)
    centre = torch.cat([left.gather(1, pick), top.gather(1, pick)], dim=1) * 2 + scale - 1
    theta = torch.cat([scale[:, :, None] * torch.eye(2, device=images.device), centre[:, :, None]], dim=2)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    crop = grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return torch.where(best.values.view(-1, 1, 1, 1) > 0, crop, otherwise)
