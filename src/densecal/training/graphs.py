"""CUDA graphs: the network's forward and backward pass recorded once a shape of batch, and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]


def replay_training(network: nn.Module) -> None:
    """Let a network on a CUDA device replay its training steps.

    A small network spends most of a step waiting for Python to launch its kernels; a graph launches them all at once.
    Evaluation stays as it is. Gradients live in fixed memory that the next replay overwrites, so they must not be
    accumulated over several batches.
    """
    eager: Forward = network.forward
    recorded: dict[torch.Size, Forward] = {}

    def forward(images: Tensor) -> Tensor:
        if not (network.training and torch.is_grad_enabled()):
            return eager(images)
        if images.shape not in recorded:
            recorded[images.shape] = _recorded(network, eager, images)
            network.forward = forward
        return recorded[images.shape](images)

    network.forward = forward


def _recorded(network: nn.Module, eager: Forward, images: Tensor) -> Forward:
    """The network's forward pass on images of one shape as a graph that leaves no trace of its warm-up."""
    network.forward = eager
    precision = torch.get_autocast_dtype("cuda")
    with (
        undisturbed(network, images.device),
        # a graph may not read weights that were cast outside of it
        torch.autocast("cuda", precision, enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False),
    ):
        torch.cuda.make_graphed_callables(network, (images.detach().clone(),))
    graphed: Forward = network.forward
    return graphed


@contextlib.contextmanager
def undisturbed(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Let a network be tried, and leave its statistics and the random numbers to come as they were."""
    statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(statistics[name])
