"""Mixup: the network sees blends of two images and learns the same blend of their masks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from densecal.methods.base import Method, on_device
from densecal.methods.losses import class_planes, pixel_shares
from densecal.methods.penalties import check_positive
from densecal.methods.regions import SoftLabels, present_classes
from densecal.methods.registry import register
from densecal.rng import Stream


class MixedLabels(NamedTuple):
    """K-class targets lam * one-hot(labels) + (1 - lam) * one-hot(partners), kept as class indices.

    Attributes:
        labels: Class indices (B, H, W), void where either image is.
        partners: Class indices of the images mixed in, void at the same pixels.
        lam: Share of each image itself, (B,).
    """

    labels: Tensor
    partners: Tensor
    lam: Tensor


def symmetric_beta(uniforms: Tensor, alpha: float) -> Tensor:
    """Turn pairs of uniforms (B, 2) in [0, 1) into draws (B,) of Beta(alpha, alpha).

    T = sqrt(2 alpha (U^(-1/alpha) - 1)) cos(2 pi V) has Student's distribution with 2 alpha degrees of freedom
    (Bailey 1994), and (1 + T / sqrt(2 alpha + T^2)) / 2 is Beta(alpha, alpha): no draw is rejected.
    """
    U, V = uniforms.unbind(dim=1)
    cosine = (2 * math.pi * V).cos()
    # For U = 0 this gives the limit 0, and no intermediate value overflows.
    inverse = 1 / torch.expm1(-U.log() / alpha)
    return (1 + cosine / (inverse + cosine.square()).sqrt()) / 2


def next_image(index: Tensor) -> Tensor:
    """Return the position of the next sample that is not padding, cyclically; padding gets its own position."""
    real = index >= 0
    real_first = torch.argsort((~real).to(torch.uint8), stable=True)
    rank = real.cumsum(0) % real.sum().clamp(min=1)
    return torch.where(real, real_first[rank], torch.arange(len(index), device=index.device))


@register("mixup")
class Mixup(Method):
    """Mixup of whole images and masks (Zhang 2018; as a calibration method Thulasidasan 2019).

    x' = lam x_i + (1 - lam) x_j, y' likewise, L = CE(z(x'), y') = lam L(y_i) + (1 - lam) L(y_j) with
    lam ~ Beta(alpha, alpha) drawn for each image, a function of (seed, epoch, index). j is the next image of the
    batch, whose order the loop shuffles. Padding is never mixed in and stays as it is, and an image that is alone in
    its batch stays unmixed. Images may be mixed before the network normalises them, because normalisation is affine
    and the two shares add up to 1. Deviation: a pixel that is void in either image is void in the mix.

    Args:
        alpha: Parameter of the Beta distribution, positive; 0.1 to 0.4 in the calibration paper.
        **common: See `Method`.
    """

    def __init__(self, *, alpha: float = 0.2, **common: Any) -> None:
        super().__init__(**common)
        check_positive("alpha", alpha)
        # Not `alpha`: in an adaptive method that name holds one value per training image.
        self.concentration = alpha

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | MixedLabels]:
        """Blend every image and mask with the next of the batch."""
        super().prepare(images, masks, index)
        index = on_device(index, images.device)
        lam = symmetric_beta(self.uniform(index, Stream.MIXUP, 2), self.concentration)
        j = next_image(index)
        other = masks[j]
        void = (masks == self.ignore_index) | (other == self.ignore_index)
        mixed = blend(images, images[j], lam)
        if self.num_classes == 1:
            return mixed, torch.where(void, self.ignore_index, blend(masks.float(), other.float(), lam))
        labels, partners = (torch.where(void, self.ignore_index, m) for m in (masks, other))
        return mixed, MixedLabels(labels, partners, lam)

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross entropy with the blended labels, in float32."""
        if not isinstance(targets, MixedLabels):
            return super().pixel_loss(logits, targets, weight)
        with torch.autocast(logits.device.type, enabled=False):
            log_p = logits.float().log_softmax(dim=1)
            own, other = (
                nll_loss(log_p, labels, ignore_index=self.ignore_index, reduction="none")
                for labels in (targets.labels, targets.partners)
            )
            shares = pixel_shares(targets.labels != self.ignore_index, weight)
            return (blend(own, other, targets.lam) * shares).mean()

    def soft_labels(self, targets: Any) -> SoftLabels:
        """Return the blended labels as a plane per class; a class counts where its share reaches 1/2."""
        if not isinstance(targets, MixedLabels):
            return super().soft_labels(targets)
        own, other = (
            class_planes(labels, self.num_classes, self.ignore_index) for labels in (targets.labels, targets.partners)
        )
        planes = blend(own, other, targets.lam)
        return SoftLabels(planes, (targets.labels != self.ignore_index).unsqueeze(1), present_classes(planes))


def blend(own: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """Return lam * own + (1 - lam) * other, with one lam per sample; exactly own where the two agree."""
    return torch.lerp(other, own, lam.to(own.dtype).view(-1, *[1] * (own.ndim - 1)))
