"""Selective scaling: a small network finds the pixels that are probably wrong; only those are cooled (Wang 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

from densecal.errors import InputError
from densecal.posthoc.base import Batch, Calibrator
from densecal.posthoc.gradient import trained
from densecal.posthoc.registry import register

_SURROUNDINGS = 5
"""Side in pixels of the window in which the mean and variance of the confidence are taken."""


@register("selective")
class SelectiveScaling(Calibrator):
    """z / T2 where a detector says "wrong", z elsewhere; the chosen class never changes.

    The detector is a network on single pixels, of width n, 2n, n for n features, with batch normalisation. One logit
    says little, so its features are z, |z|, the mean and variance of p around the pixel, and its colour; K logits give
    log p and those of the winning probability. Wrong pixels are rare, so they weigh more in its loss: a pixel is
    flagged where its chance to be wrong is above 1 / (1 + weight).

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
        temperature: T2.
        weight: Weight of a wrong pixel (the source repeats them: 2, 3 or 5).
        epochs: Passes over the data (the source: 40).
        lr: Learning rate of AdamW.
        seed: Of the first weights.
    """

    multiclass = True
    needs_images = True
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
            found = f"{epochs}, {lr}, {temperature}, {weight}"
            raise InputError("selective: epochs, lr, temperature, weight", found, "at least 1, the others above 0")
        self.weight, self.epochs, self.lr, self.seed = weight, epochs, lr, seed
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float64))
        n = (2 if num_classes == 1 else num_classes) + 5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for width_in, width_out in ((n, n), (n, 2 * n), (2 * n, n)):
                layers += [nn.Conv2d(width_in, width_out, 1, bias=False), nn.BatchNorm2d(width_out), nn.ReLU()]
            self.detector = nn.Sequential(*layers, nn.Conv2d(n, 1, 1))
        self.requires_grad_(False).eval()

    def suspicion(self, z: Tensor, images: Tensor) -> Tensor:
        """The detector's logit for "wrong", (B, 1, H, W)."""
        if self.num_classes == 1:
            own, p = torch.cat([z, z.abs()], dim=1), z.sigmoid()
        else:
            own = z.log_softmax(dim=1)
            p = own.exp().amax(dim=1, keepdim=True)
        mean, square = (_around(value) for value in (p, p * p))
        features = torch.cat([own, mean, (square - mean * mean).clamp(min=0.0), images.to(z.dtype)], dim=1)
        return self.detector(features.to(next(self.detector.parameters()).dtype))  # type: ignore[no-any-return]

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """Sigmoid or softmax of z, divided by T2 where it is flagged."""
        assert images is not None
        flagged = self.suspicion(z, images) > 0
        return self.squashed(torch.where(flagged, z / self.temperature.to(z.dtype), z))

    def check(self) -> None:
        """T2 must be positive."""
        if not self.temperature > 0:
            raise ValueError(f"temperature {float(self.temperature)}; expected a number above 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        def loss(network: SelectiveScaling, batch: Batch) -> Tensor:
            assert batch.images is not None
            suspicion = network.suspicion(batch.logits, batch.images)
            wrong, valid = mistakes(batch, ignore_index)
            values = binary_cross_entropy_with_logits(suspicion, wrong.to(suspicion.dtype), reduction="none")
            weights = valid + (self.weight - 1.0) * wrong
            return (values * weights).sum() / weights.sum().clamp(min=1)

        def batches() -> Iterator[Batch]:
            # batch normalisation learns nothing from one pixel
            return (Batch(*batch) for batch in data() if batch[0][:, 0].numel() > 1)

        begin = SelectiveScaling(self.num_classes, seed=self.seed).to(self.temperature.device)
        begin.set_table("temperature", self.temperature)
        found = trained(begin, batches, loss, torch.optim.AdamW, self.epochs, lr=self.lr, weight_decay=1e-6)
        self.load_state_dict(found.state_dict())


def mistakes(batch: Batch, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Where the chosen class is wrong and where pixels are valid, (B, 1, H, W) both."""
    masks = batch.masks if batch.masks.ndim == 4 else batch.masks[:, None]
    valid = torch.ones_like(masks, dtype=torch.bool) if ignore_index is None else masks != ignore_index
    if batch.logits.shape[1] == 1:
        return ((batch.logits > 0) != (masks > 0.5)) & valid, valid
    return (batch.logits.argmax(dim=1, keepdim=True) != masks) & valid, valid


def _around(p: Tensor) -> Tensor:
    """Mean over the window of every pixel, cut off at the borders of the map."""
    return avg_pool2d(p, _SURROUNDINGS, stride=1, padding=_SURROUNDINGS // 2, count_include_pad=False)
