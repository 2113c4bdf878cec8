"""What one optimisation step does with a network: the plain case, one head and the method's loss."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from densecal.methods import Method


class Criterion(Protocol):
    """The part of a step that depends on the network; one with several heads or optimizers brings its own."""

    def step(
        self,
        model: nn.Module,
        images: Tensor,
        masks: Tensor,
        targets: Any,
        method: Method,
        weight: Tensor | None,
        index: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run the model and compute losses.

        The losses are added up for one backward pass, so each must reach its own optimizer's parameters only.

        Args:
            model: Calls of it are synchronised between processes.
            images: What the method made of the images.
            masks: The clean masks.
            targets: What the method made of them, once for all heads.
            method: Gives the loss, and seed and epoch to whatever is drawn.
            weight: Weight of each sample (B,), 0 for padding; or None.
            index: Sample ids (B,), negative for padding.

        Returns:
            Losses by the name of their optimizer, and the logits of the test head.
        """
        ...


class PlainCriterion:
    """One head, one loss, one optimizer called ``main``."""

    def step(
        self,
        model: nn.Module,
        images: Tensor,
        masks: Tensor,
        targets: Any,
        method: Method,
        weight: Tensor | None,
        index: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Forward pass and the method's loss."""
        logits = model(images)
        return {"main": method.loss(logits, targets, weight)}, logits


def criterion_of(network: nn.Module) -> Criterion:
    """The criterion that a network brings, or the plain one."""
    bring = getattr(network, "criterion", None)
    criterion: Criterion = PlainCriterion() if bring is None else bring()
    return criterion


def is_plain(network: nn.Module) -> bool:
    """Whether a network has one head and nothing of its own in a step, so that CUDA graphs can replay it."""
    return isinstance(criterion_of(network), PlainCriterion)
