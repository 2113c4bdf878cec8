"""Stochastic label perturbation with one fixed probability, and the sampling that adaptive methods share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from densecal.labels import check_alpha, check_noise_bound, moderation_noise, technique_strength
from densecal.methods.band import boundary_band, check_band
from densecal.methods.base import Method, on_device
from densecal.methods.losses import SmoothedLabels
from densecal.methods.registry import register
from densecal.rng import Stream

# The probabilities of the paper's static SLP.
PAPER_ALPHA = {"hi": 0.01, "si": 0.02, "m": 0.03, "dm": 0.03}


def sample_targets(
    method: Method,
    masks: Tensor,
    index: Tensor,
    alpha: Tensor | float,
    technique: str,
    noise_bound: float,
    band: int | None = None,
) -> Tensor | SmoothedLabels:
    """Return SC-BCE's targets: image i is perturbed with probability alpha_i, all its pixels (in the band) together.

    Padding samples, whose index is negative, keep their labels.
    """
    Z = (method.uniform(index, Stream.LABEL)[:, 0] < alpha) & (index >= 0)
    method.count_perturbed(Z)
    if band is not None:
        Z = Z.view(-1, *[1] * (masks.ndim - 1)) & boundary_band(masks, band, method.num_classes, method.ignore_index)
    noise = None
    if technique == "dm":
        draws = method.uniform(index, Stream.MODERATION_NOISE, masks[0].numel()).view(masks.shape)
        noise = (Z.view(-1, 1, 1, 1) if band is None else Z) * moderation_noise(draws, noise_bound)
    return method.perturb_labels(masks, technique_strength(technique, method.num_classes) * Z, noise)


def check_technique(technique: str, noise_bound: float, num_classes: int) -> None:
    """Raise ValueError for a technique that is unknown or undefined for this number of classes."""
    technique_strength(technique, num_classes)
    check_noise_bound(noise_bound)
    if technique == "dm" and num_classes > 1:
        raise ValueError(f"technique: found 'dm' with {num_classes} classes; expected 'm', which has its mean")


@register("slp")
class SLP(Method):
    """Static SLP: every image is perturbed with the same probability; `technique="m"` is DisturbLabel.

    Args:
        technique: `hi`, `si`, `m` or `dm` (one sigmoid logit only).
        alpha: Probability; by default the paper's 0.01, 0.02, 0.03, 0.03 for the four techniques.
        noise_bound: Bound of dynamic moderation's noise: 0.5 in the paper, 0.25 in its code.
        band: Perturb only pixels within this chessboard distance of a boundary of the mask; by default all pixels.
        **common: See `Method`.
    """

    def __init__(
        self,
        *,
        technique: str = "hi",
        alpha: float | None = None,
        noise_bound: float = 0.5,
        band: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_technique(technique, noise_bound, self.num_classes)
        check_band(band)
        self.technique = technique
        self.noise_bound = noise_bound
        self.band = band
        self.probability = PAPER_ALPHA[technique] if alpha is None else alpha
        check_alpha(self.probability, technique_strength(technique, self.num_classes))
        self.register_perturbed()

    def statistics(self) -> dict[str, float]:
        """Return how many images were perturbed so far."""
        return {"perturbed": self.perturbed.item()}

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Tensor | SmoothedLabels]:
        """Perturb the labels of a few random images."""
        super().prepare(images, masks, index)
        index = on_device(index, masks.device)
        return images, sample_targets(self, masks, index, self.probability, self.technique, self.noise_bound, self.band)
