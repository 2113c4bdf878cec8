"""Dropout of whole channels between encoder and decoder, the same for every architecture."""

from __future__ import annotations

from torch import Tensor, nn


def add_dropout(network: nn.Module, p: float) -> None:
    """Drop channels of every feature map that the encoder of a network returns.

    The names of parameters stay the same, so a network with dropout loads the weights of one without, and vice versa.

    Args:
        network: Has a module ``encoder`` that returns a list of feature maps.
        p: Probability that a channel is dropped.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"dropout is {p!r}; expected a number from 0 up to, not including, 1")
    if p:
        encoder = network.get_submodule("encoder")
        encoder.add_module("dropout", nn.Dropout2d(p))
        encoder.register_forward_hook(_drop)


def _drop(encoder: nn.Module, _: tuple[Tensor], features: list[Tensor]) -> list[Tensor]:
    # looked up each time, so that a copy of the network uses its own dropout
    dropout = encoder.get_submodule("dropout")
    return [dropout(feature) for feature in features]
