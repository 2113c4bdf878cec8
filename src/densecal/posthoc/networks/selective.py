"""Selective scaling: a small network flags pixels that are probably wrong; only their logits shrink (Wang 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

from densecal.errors import InputError
from densecal.posthoc.base import Batch
from densecal.posthoc.networks.base import NetworkCalibrator
from densecal.posthoc.networks.gradient import train_copy
from densecal.posthoc.registry import register

_WINDOW = 5
"""Side in pixels of the window over which the mean and variance of the confidence are computed."""


@register("selective")
class SelectiveScaling(NetworkCalibrator):
    """z / T2 where a detector says "wrong", z elsewhere; the chosen class never changes.

    The detector is a network on single pixels, of widths n, 2n, n for n features, with batch normalisation. One logit
    says little, so its features are z, |z|, the mean and variance of p around the pixel, and the pixel's colour. For K
    logits they are log p, the mean and variance of the winning probability, and the colour. Wrong pixels are rare, so
    they weigh more in the loss: a pixel is flagged if its chance of being wrong is above 1 / (1 + weight).

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
        temperature: T2.
        weight: Weight of a wrong pixel (the paper repeats them 2, 3 or 5 times).
        epochs: Passes over the data (40 in the paper).
        lr: Learning rate of AdamW.
        seed: Seed of the initial weights.
    """

    tables = ("temperature",)
    temperature: Tensor

    def __init__(
        self,
        num_classes: int = 1,
        temperature: float = 2.0,
        weight: float = 2.0,
        epochs: int = 20,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes)
        if epochs < 1 or not min(lr, temperature, weight) > 0:
            values = f"{epochs}, {lr}, {temperature}, {weight}"
            raise InputError(
                "selective: epochs, lr, temperature, weight", values, "epochs at least 1, the others above 0"
            )
        self.weight, self.epochs, self.lr, self.seed = weight, epochs, lr, seed
        self.set_table("temperature", temperature)
        n = (2 if num_classes == 1 else num_classes) + 5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for width_in, width_out in ((n, n), (n, 2 * n), (2 * n, n)):
                layers += [nn.Conv2d(width_in, width_out, 1, bias=False), nn.BatchNorm2d(width_out), nn.ReLU()]
            self.detector = nn.Sequential(*layers, nn.Conv2d(n, 1, 1))
        self.requires_grad_(False).eval()

    def error_logits(self, z: Tensor, images: Tensor) -> Tensor:
        """Return the detector's logit for "wrong", (B, 1, H, W)."""
        if self.num_classes == 1:
            own, p = torch.cat([z, z.abs()], dim=1), z.sigmoid()
        else:
            own = z.log_softmax(dim=1)
            p = own.exp().amax(dim=1, keepdim=True)
        mean, square = (_window_mean(value) for value in (p, p * p))
        features = torch.cat([own, mean, (square - mean * mean).clamp(min=0.0), images.to(z.dtype)], dim=1)
        return self.detector(features.to(next(self.detector.parameters()).dtype))  # type: ignore[no-any-return]

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """Return the sigmoid or softmax of z, divided by T2 where it is flagged."""
        assert images is not None
        flagged = self.error_logits(z, images) > 0
        probabilities: Tensor = self.squash(torch.where(flagged, z / self.temperature.to(z.dtype), z))
        return probabilities

    def check(self) -> None:
        """Raise ValueError unless T2 is positive."""
        if not self.temperature > 0:
            raise ValueError(f"temperature {float(self.temperature)}; expected a number above 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        def loss(network: SelectiveScaling, batch: Batch) -> Tensor:
            assert batch.images is not None
            logits = network.error_logits(batch.logits, batch.images)
            wrong, valid = mistakes(batch, ignore_index)
            values = binary_cross_entropy_with_logits(logits, wrong.to(logits.dtype), reduction="none")
            weights = valid + (self.weight - 1.0) * wrong
            return (values * weights).sum() / weights.sum().clamp(min=1)

        def batches() -> Iterator[Batch]:
            # Batch normalisation needs more than one pixel.
            return (Batch(*batch) for batch in data() if math.prod(batch[0][:, 0].shape) > 1)

        initial = SelectiveScaling(self.num_classes, seed=self.seed).to(self.temperature.device)
        initial.set_table("temperature", self.temperature)
        fitted = train_copy(initial, batches, loss, torch.optim.AdamW, self.epochs, lr=self.lr, weight_decay=1e-6)
        self.load_state_dict(fitted.state_dict())


def mistakes(batch: Batch, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return where the chosen class is wrong and which pixels are valid, (B, 1, H, W) both."""
    masks = batch.masks if batch.masks.ndim == 4 else batch.masks[:, None]
    valid = torch.ones_like(masks, dtype=torch.bool) if ignore_index is None else masks != ignore_index
    if batch.logits.shape[1] == 1:
        return ((batch.logits > 0) != (masks > 0.5)) & valid, valid
    return (batch.logits.argmax(dim=1, keepdim=True) != masks) & valid, valid


def _window_mean(p: Tensor) -> Tensor:
    """Return the mean over the window of every pixel, cut off at the borders of the map."""
    return avg_pool2d(p, _WINDOW, stride=1, padding=_WINDOW // 2, count_include_pad=False)
