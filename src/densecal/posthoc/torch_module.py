"""A calibrator as a module of PyTorch: part of a network that is moved, exported or traced."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from densecal.posthoc.base import Calibrator


class CalibratorModule(nn.Module):
    """The parameters of a calibrator as buffers, and its computation on tensors.

    Args:
        calibrator: A fitted calibrator, whose parameters are copied.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self._calibrator = copy.copy(calibrator)
        self.method, self.num_classes, self.needs_images = (
            calibrator.method, calibrator.num_classes, calibrator.needs_images,
        )  # fmt: skip
        for name in calibrator.tables:
            self.register_buffer(name, torch.tensor(getattr(calibrator, name), dtype=torch.float64))

    def forward(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        """Return what the calibrator returns."""
        calibrator = copy.copy(self._calibrator)
        for name in calibrator.tables:
            setattr(calibrator, name, getattr(self, name))
        probabilities: Tensor = calibrator(logits, images)
        return probabilities
