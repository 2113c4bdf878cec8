"""Region losses to combine with the cross entropy: one value per image, void pixels ignored, soft labels allowed.

p are the probabilities of a class and t its labels, both in [0, 1]; sums run over the valid pixels of one image:

    TP = sum min(p, t)      FP = sum p - TP      FN = sum t - TP

    dice             1 - 2 TP / (2 TP + FP + FN)
    iou              1 - TP / (TP + FP + FN)
    tversky          1 - TP / (TP + false_positives * FP + false_negatives * FN)
    focal-tversky    the same to the power of gamma
    lovasz           the Lovasz extension of the Jaccard loss, of the errors relu(1 - z (2t - 1)) of one sigmoid logit,
                     or of |p - t| of K classes

For hard labels min(p, t) = p * t. For soft ones the loss is least at p = t with min, and at p = 0 or 1 with the product
(Wang 2023, "Dice semimetric losses", "Jaccard metric losses"). A class that an image does not show counts 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from densecal.runtime.registry import Registry

EPSILON = 1e-7
"""The smallest denominator, as in segmentation-models-pytorch."""


class SoftLabels(NamedTuple):
    """Labels of every class, for losses that look at whole regions.

    Attributes:
        planes: t, (B, K, H, W) float32; one plane for one sigmoid logit; 0 at void pixels.
        valid: Booleans (B, 1, H, W).
        present: Which classes an image shows, booleans (B, K).
    """

    planes: Tensor
    valid: Tensor
    present: Tensor

    def invert(self) -> SoftLabels:
        """Return the labels in which the true class has no share: 1 - t, or (1 - t) / (K - 1) for K classes."""
        K = self.planes.shape[1]
        planes = torch.where(self.valid, (1 - self.planes) / max(K - 1, 1), 0)
        # Foreground and background swap. With K classes, each present one keeps a share, so the same ones count.
        return SoftLabels(planes, self.valid, present_classes(planes) if K == 1 else self.present)


Region = Callable[[Tensor, SoftLabels, Tensor | None], Tensor]
"""Maps logits, labels and the weights of pixels (B, 1, H, W), or None, to a value per image (B,)."""

REGIONS: Registry[Callable[..., Region]] = Registry("loss")


def present_classes(planes: Tensor) -> Tensor:
    """Return which planes (B, K) have a label of at least 1/2."""
    return planes.flatten(2).amax(dim=2) >= 0.5


@REGIONS.register("dice")
def dice() -> Region:
    """Soft Dice loss."""
    return tversky(0.5, 0.5)


@REGIONS.register("iou")
def iou() -> Region:
    """Soft Jaccard loss."""
    return tversky(1.0, 1.0)


@REGIONS.register("tversky")
def tversky(false_positives: float = 0.3, false_negatives: float = 0.7) -> Region:
    """Tversky loss (Salehi 2017), whose defaults are the paper's best."""
    return focal_tversky(false_positives, false_negatives, gamma=1.0)


@REGIONS.register("focal-tversky")
def focal_tversky(false_positives: float = 0.3, false_negatives: float = 0.7, gamma: float = 0.75) -> Region:
    """Focal Tversky loss (Abraham 2019); gamma is the exponent itself, which the paper writes 1 / gamma."""

    def region(logits: Tensor, labels: SoftLabels, weight: Tensor | None) -> Tensor:
        p = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
        share = labels.valid if weight is None else labels.valid * weight
        t = labels.planes
        TP, P, T = ((values * share).flatten(2).sum(dim=2) for values in (torch.minimum(p, t), p, t))
        score = TP / (TP + false_positives * (P - TP) + false_negatives * (T - TP)).clamp(min=EPSILON)
        values = 1 - score
        if gamma != 1:
            values = values.clamp(min=EPSILON).pow(gamma)  # a root has no gradient at 0
        return torch.where(labels.present, values, 0).mean(dim=1)

    return region


@REGIONS.register("lovasz")
def lovasz() -> Region:
    """Lovasz hinge of one sigmoid logit, Lovasz-softmax of the classes that an image shows (Berman 2018)."""

    def region(logits: Tensor, labels: SoftLabels, weight: Tensor | None) -> Tensor:
        if weight is not None:
            raise ValueError("loss: found lovasz with a weight per pixel; expected a loss other than lovasz")
        t = labels.planes
        errors = 1 - logits * (2 * t - 1) if logits.shape[1] == 1 else (t - logits.softmax(dim=1)).abs()
        present = labels.present
        if logits.shape[1] == 1:
            present = torch.ones_like(present)  # the hinge of an image without foreground is its largest error
        values = lovasz_extension(errors.flatten(2), t.flatten(2), labels.valid.expand_as(t).flatten(2))
        return torch.where(present, values, 0).sum(dim=1) / present.sum(dim=1).clamp(min=1)

    return region


def lovasz_extension(errors: Tensor, t: Tensor, valid: Tensor) -> Tensor:
    """Return sum_i relu(error_(i)) * (J_i - J_(i-1)) over errors in falling order, J_i the Jaccard loss of the first i.

    Args:
        errors: (..., N).
        t: Labels of the same shape.
        valid: Booleans of the same shape; False leaves a pixel out.
    """
    # Void pixels come last, where relu makes them 0.
    ordered, order = errors.masked_fill(~valid, -torch.inf).sort(dim=-1, descending=True)
    kept = valid.gather(-1, order).to(errors.dtype)
    t = t.gather(-1, order) * kept
    total = t.sum(dim=-1, keepdim=True)
    intersection, union = total - t.cumsum(dim=-1), total + (kept - t).cumsum(dim=-1)
    J = 1 - intersection / union.clamp(min=EPSILON)
    steps = torch.diff(J, dim=-1, prepend=torch.zeros_like(J[..., :1]))
    return (ordered.relu() * steps).sum(dim=-1)
