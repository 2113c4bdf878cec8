"""Dropout of whole channels between encoder and decoder: one place that every architecture has."""

from __future__ import annotations

from torch import Tensor, nn


def add_dropout(network: nn.Module, p: float) -> None:
    """Drop channels of every feature map that the network's encoder hands on.

    The names of parameters stay as they are, so weights with and without dropout load into each other.

    Args:
        network: Holds at ``encoder`` a module whose output is a list of feature maps.
        p: Probability that a channel is dropped.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"dropout is {p!r}; expected a number from 0 up to, not including, 1")
    if p:
        encoder = network.get_submodule("encoder")
        encoder.add_module("dropout", nn.Dropout2d(p))
        encoder.register_forward_hook(_drop)


def _drop(encoder: nn.Module, _: tuple[Tensor], features: list[Tensor]) -> list[Tensor]:
    # the module at hand is asked, so that a copy of the network has a dropout of its own
    dropout = encoder.get_submodule("dropout")
    return [dropout(feature) for feature in features]
