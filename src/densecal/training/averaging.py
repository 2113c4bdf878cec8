"""A running average of the weights over the training steps, which is validated and saved instead of the last weights.

torch's `AveragedModel` collects and groups all tensors at every step, which takes eight times as long as averaging them
on a CPU, and cannot mix in the initial weights.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    """The running average of a network's weights and statistics.

    Args:
        network: The network in training. Its tensors must stay where they are.
        decay: Decay of the average per step.
        start_share: Share of the initial weights in the average.

    Attributes:
        network: A network with the averaged weights.
        start: The initial weights, if they have a share.
    """

    def __init__(self, network: nn.Module, decay: float, start_share: float) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.decay, self.start_share = decay, start_share
        # collecting them at every step would take longer than averaging them
        pairs = list(zip(self.network.state_dict().values(), network.state_dict().values(), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        counters = [pair for pair in pairs if not pair[0].is_floating_point()]
        self._averaged, self._trained = [kept for kept, _ in floats], [now for _, now in floats]
        self._copies, self._counters = [kept for kept, _ in counters], [now for _, now in counters]
        self.start: list[Tensor] = [kept.clone() for kept in self._averaged] if start_share else []

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move towards the weights after this many steps, mixed with the initial ones by their share; copy counters."""
        # covers the last third of the steps, until `decay` limits it to fewer
        rate = max(1 - self.decay, 3 / (2 + steps))
        toward = rate * (1 - self.start_share)
        if self.start:
            torch._foreach_lerp_(self._averaged, self.start, (rate - toward) / (1 - toward))
        torch._foreach_lerp_(self._averaged, self._trained, toward)
        if self._counters:
            torch._foreach_copy_(self._copies, self._counters)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin a new average: the averaged weights become both the weights in training and the initial weights."""
        torch._foreach_copy_(self._trained, self._averaged)
        self.load_start(self._averaged)

    @torch.no_grad()
    def load_start(self, weights: list[Tensor]) -> None:
        """Set the initial weights, if they have a share."""
        if self.start:
            torch._foreach_copy_(self.start, weights)
