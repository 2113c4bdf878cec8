"""What one optimisation step does with a network: the plain case, one head and the method's loss."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from densecal.methods import Method


class Criterion(Protocol):
    """The part of a step that depends on the network; one with several heads or optimizers brings its own."""

    def step(
        self, model: nn.Module, images: Tensor, masks: Tensor, targets: Any, method: Method, weight: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Losses by the name of their optimizer, and the logits of the test head."""
        ...


class PlainCriterion:
    """One head, one loss, one optimizer called ``main``."""

    def step(
        self, model: nn.Module, images: Tensor, masks: Tensor, targets: Any, method: Method, weight: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Forward pass and the method's loss."""
        logits = model(images)
        return {"main": method.loss(logits, targets, weight)}, logits
