"""What one optimisation step does with a network, and the plain case of one head and the method's loss."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from densecal.methods import Method


class Criterion(Protocol):
    """The part of a step that depends on the network. A network with several heads or optimizers has its own."""

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

        The losses are added up for one backward pass, so each must depend on the parameters of its own optimizer only.

        Args:
            model: The network, wrapped so that processes synchronise their gradients.
            images: Images as the method prepared them.
            masks: The clean masks.
            targets: Targets that the method made from the masks, the same for all heads.
            method: Gives the loss, and the seed and epoch for random draws.
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
        """Return the method's loss and the logits."""
        logits = model(images)
        return {"main": method.loss(logits, targets, weight)}, logits


def criterion_of(network: nn.Module) -> Criterion:
    """Return the criterion of a network, or the plain one if it has none."""
    create = getattr(network, "criterion", None)
    criterion: Criterion = PlainCriterion() if create is None else create()
    return criterion


def is_plain(network: nn.Module) -> bool:
    """Return whether a network has the plain criterion, so that CUDA graphs can replay its steps."""
    return isinstance(criterion_of(network), PlainCriterion)
