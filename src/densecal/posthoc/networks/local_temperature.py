"""Local temperature scaling: a small network gives every pixel a temperature of its own (Ding 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from densecal.errors import InputError
from densecal.posthoc.base import Batch
from densecal.posthoc.networks.base import NetworkCalibrator
from densecal.posthoc.networks.gradient import pixel_nll, train_copy
from densecal.posthoc.registry import register
from densecal.posthoc.temperature import Temperature

_FLOOR = 1e-6
_REACH = 4
"""Half width of the windows, in pixels."""


def _window(channels: int, outputs: int) -> nn.Conv2d:
    """Return a convolution with 5 x 5 taps on every second pixel, for maps extended by `_mirror_pad`."""
    return nn.Conv2d(channels, outputs, 5, dilation=2)


def _mirror_pad(maps: Tensor) -> Tensor:
    """Return maps surrounded by their mirror image."""
    rows, columns = (_mirror_index(side, maps.device) for side in maps.shape[2:])
    return maps[:, :, rows][:, :, :, columns]


def _mirror_index(side: int, device: torch.device) -> Tensor:
    """Return the pixels of a side and of its mirror images; if it is too short for them, its first pixel repeats.

    `nn.functional.pad` refuses short sides, and an exported graph, which takes any size, cannot check for them.
    """
    inside = torch.arange(-_REACH, side + _REACH, device=device).abs()
    return (side - 1 - (side - 1 - inside).abs()).clamp(min=0)


@register("local-temperature")
class LocalTemperature(NetworkCalibrator):
    """p' = sigmoid(z / T(x)), or softmax, with a map T(x) > 0 from logits and image; the chosen class never changes.

    Gates mix four convolutions of the logits pair by pair, then the result with a convolution of the image. This m(x)
    moves the global temperature T: T(x) = softplus(m(x) + softplus^-1(T)). There are two deviations from the paper.
    Its relu(m + 1) starts at 2, this at T, so a fit starts where temperature scaling ends. Its gates start at 0, where
    branches that start equal stay equal for ever; here they start at small random weights. One logit enters as
    (z, |z|), K logits enter as log p.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
        epochs: Passes over the data (up to 200 in the paper).
        lr: Learning rate of Adam.
        seed: Seed of the gates' initial weights.
    """

    tables = ("start",)
    start: Tensor

    def __init__(self, num_classes: int = 1, epochs: int = 20, lr: float = 1e-4, seed: int = 0) -> None:
        super().__init__(num_classes)
        if epochs < 1 or not lr > 0:
            raise InputError("local-temperature: epochs, lr", f"{epochs}, {lr}", "epochs at least 1, lr above 0")
        self.epochs, self.lr, self.seed = epochs, lr, seed
        channels = 2 if num_classes == 1 else num_classes
        self.set_table("start", 1.0)
        self.branches, self.gates, self.picture = _window(channels, 4), _window(channels, 4), _window(3, 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        draw = torch.randn(self.gates.weight.shape, generator=torch.Generator().manual_seed(seed))
        self.gates.weight.data.copy_(0.01 * draw)
        self.requires_grad_(False)

    def temperatures(self, z: Tensor, images: Tensor) -> Tensor:
        """Return T(x), (B, 1, H, W)."""
        features = torch.cat([z, z.abs()], dim=1) if self.num_classes == 1 else z.log_softmax(dim=1)
        features, images = (_mirror_pad(maps.to(self.gates.weight.dtype)) for maps in (features, images))
        t1, t2, t3, t4 = self.branches(features).split(1, dim=1)
        g1, g2, g3, g4 = self.gates(features).sigmoid().split(1, dim=1)
        m1, m2 = g1 * t1 + (1 - g1) * t2, g2 * t3 + (1 - g2) * t4
        m = g3 * m1 + (1 - g3) * m2
        m = g4 * m + (1 - g4) * self.picture(images)
        offset = self.start + torch.log(-torch.expm1(-self.start))
        return softplus(m.to(z.dtype) + offset.to(z.dtype)) + _FLOOR

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """Return the sigmoid or softmax of z / T(x)."""
        assert images is not None
        probabilities: Tensor = self.squash(z / self.temperatures(z, images))
        return probabilities

    def check(self) -> None:
        """Raise ValueError unless the global temperature is positive."""
        if not self.start > 0:
            raise ValueError(f"start {float(self.start)}; expected a number above 0")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        def loss(network: LocalTemperature, batch: Batch) -> Tensor:
            assert batch.images is not None
            z = batch.logits / network.temperatures(batch.logits, batch.images)
            return pixel_nll(z, batch.masks, ignore_index)

        initial = LocalTemperature(self.num_classes, seed=self.seed).to(self.start.device)
        initial.set_table("start", Temperature(self.num_classes).fit(data, ignore_index).temperature)
        fitted = train_copy(initial, data, loss, torch.optim.Adam, self.epochs, lr=self.lr)
        self.load_state_dict(fitted.state_dict())
