"""Losses and gaps that ignore void pixels, shared by all methods; none of them makes the host wait for a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from densecal.labels import half_scale


class SmoothedLabels(NamedTuple):
    """K-class targets (1 - strength) * one-hot + strength / K, kept as class indices instead of K planes.

    Attributes:
        labels: Class indices (B, H, W), int64, void pixels included.
        strength: Full-scale beta of each image, (B,), or of each pixel, (B, H, W).
    """

    labels: Tensor
    strength: Tensor


class SoftTargets(NamedTuple):
    """K-class targets with probabilities of their own at every pixel.

    Attributes:
        labels: Clean class indices (B, H, W), void pixels included.
        planes: Probabilities of the classes (B, K, H, W), float32.
    """

    labels: Tensor
    planes: Tensor


def class_planes(labels: Tensor, num_classes: int, ignore_index: int = 255) -> Tensor:
    """Return class indices (B, H, W) as planes of zeros and ones (B, K, H, W), float32; void pixels are 0 in all."""
    classes = torch.arange(num_classes, device=labels.device).view(-1, 1, 1)
    planes = labels.unsqueeze(1) == classes
    if ignore_index < num_classes:
        planes = planes & (labels != ignore_index).unsqueeze(1)
    return planes.float()


def pixel_shares(valid: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the weight of every pixel relative to the average: `(values * shares).mean()` is a weighted mean.

    Args:
        valid: Booleans (B, ...); False leaves a pixel out.
        weight: Weight of each sample (B,); 0 leaves a padding sample out. Or weight of each pixel (B, 1, H, W),
            which is summed over the sample if `valid` has one boolean per sample.

    Returns:
        float32 of the shape of `valid`: exactly 1 if nothing is left out, 0 if everything is.
    """
    if weight is not None and weight.ndim != valid.ndim:
        weight = weight.view(-1, *[1] * (valid.ndim - 1)) if weight.ndim == 1 else weight.flatten(1).sum(dim=1)
    shares = valid if weight is None else valid * weight
    total = shares.sum()
    return shares * (valid.numel() / torch.where(total > 0, total, 1))


def bce_with_void(logits: Tensor, targets: Tensor, ignore_index: int = 255, weight: Tensor | None = None) -> Tensor:
    """Binary cross entropy with hard or soft targets, averaged over valid pixels in float32.

    Args:
        logits: (B, 1, H, W), any float type.
        targets: (B, 1, H, W) in [0, 1]; pixels equal to `ignore_index` are void.
        ignore_index: Value of void pixels.
        weight: Weight of each sample (B,).
    """
    with torch.autocast(logits.device.type, enabled=False):
        valid = targets != ignore_index
        soft = torch.where(valid, targets, 0).float()
        return binary_cross_entropy_with_logits(logits.float(), soft, pixel_shares(valid, weight))


def cross_entropy_with_void(
    logits: Tensor,
    targets: Tensor | SmoothedLabels | SoftTargets,
    ignore_index: int = 255,
    weight: Tensor | None = None,
) -> Tensor:
    """Cross entropy of K classes with hard or soft labels, averaged over valid pixels in float32.

    Args:
        logits: (B, K, H, W), any float type.
        targets: Class indices (B, H, W), the same with a strength per image or pixel, or with probabilities.
        ignore_index: Class index of void pixels.
        weight: Weight of each sample (B,).
    """
    labels = targets if isinstance(targets, Tensor) else targets.labels
    with torch.autocast(logits.device.type, enabled=False):
        logits = logits.float()
        if isinstance(targets, SoftTargets):
            values = cross_entropy(logits, targets.planes, reduction="none")
            return (values * pixel_shares(labels != ignore_index, weight)).mean()
        values = cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")
        if isinstance(targets, SmoothedLabels):
            # L(t) = L(y) + b * gap: smoothing needs neither one-hot targets nor a second softmax.
            b = half_scale(targets.strength, logits.shape[1])
            if b.ndim == 1:
                b = b.view(-1, *[1] * (labels.ndim - 1))
            values = values + b * class_margin(logits, labels, ignore_index)
        return (values * pixel_shares(labels != ignore_index, weight)).mean()


def class_margin(logits: Tensor, labels: Tensor, ignore_index: int = 255) -> Tensor:
    """Return every pixel's label logit minus the mean of its other K - 1 logits, float32 (void: label 0)."""
    K = logits.shape[1]
    safe = torch.where(labels == ignore_index, 0, labels)
    own = logits.gather(1, safe.unsqueeze(1)).squeeze(1).float()
    return (K * own - logits.sum(dim=1, dtype=torch.float32)) / (K - 1)


def image_gap(logits: Tensor, masks: Tensor, ignore_index: int = 255) -> Tensor:
    """Return g = L(1 - y) - L(y) of each image for one sigmoid logit: the mean of (2y - 1) * z.

    Args:
        logits: (B, 1, H, W), any float type.
        masks: (B, 1, H, W) in [0, 1], hard or soft; pixels equal to `ignore_index` are void.
        ignore_index: Value of void pixels.

    Returns:
        (B,) float32, over valid pixels; 0 for an image without any.
    """
    return _image_mean((2 * masks.float() - 1) * logits.float(), masks != ignore_index)


def class_gap(logits: Tensor, labels: Tensor, ignore_index: int = 255) -> Tensor:
    """Return g = L(hard-inverted y) - L(y) of each image for K classes: the mean of `class_margin`.

    Args:
        logits: (B, K, H, W), any float type.
        labels: Class indices (B, H, W).
        ignore_index: Class index of void pixels.

    Returns:
        (B,) float32, over valid pixels; 0 for an image without any.
    """
    return _image_mean(class_margin(logits, labels, ignore_index), labels != ignore_index)


def _image_mean(values: Tensor, valid: Tensor) -> Tensor:
    values, valid = values.flatten(1), valid.flatten(1)
    return torch.where(valid, values, 0).sum(dim=1) / valid.sum(dim=1).clamp(min=1)
