"""CUDA graphs: the network's forward and backward pass recorded once a shape of batch, and replayed."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]

EAGER_BATCHES = 2
"""Predictions of a shape before it is recorded: they have its kernels chosen and translated, which no graph can."""
MAX_RECORDINGS = 4
"""A data set needs two, for its batches and for the last of them; tiles of small images would need dozens."""

_DEVICES = ("cuda",)
_ONE_AT_A_TIME = threading.Lock()
"""A process may record one graph at a time."""


def replay_training(network: nn.Module) -> None:
    """Let a network on a CUDA device replay its training steps.

    A small network spends most of a step waiting for Python to launch its kernels; a graph launches them all at once.
    Prediction stays as it is. Gradients live in fixed memory that the next replay overwrites, so they must not be
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


def replay_inference(network: nn.Module) -> None:
    """Let a network on a CUDA device replay its predictions, wherever no gradient is recorded.

    A network that also replays its training gets this first. Weights may change later, in place; layers and hooks may
    not. A recording keeps the memory of a forward pass, so there are a few of them at most, and none where less than
    half of the device's memory is free, not counting what PyTorch holds in reserve.
    """
    network.forward = _Replayed(network)


class _Replayed:
    """The forward pass of a network, with its recordings; a copy of the network makes its own."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._eager: Forward = network.forward
        self._forget()

    def _forget(self) -> None:
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, Forward] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_network": self._network, "_eager": self._eager}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __call__(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() or images.device.type not in _DEVICES:
            return self._eager(images)
        # MC dropout sets some of the layers to training, and draws anew for every batch
        if any(module.training for module in self._network.modules()):
            return self._eager(images)
        precision = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        stream = torch.cuda.current_stream(images.device)  # a graph that ran on two at once would meet itself
        key = images.shape, images.stride(), images.dtype, precision, stream
        with self._lock:
            if key not in self._recorded:
                self._seen[key] += 1
                if self._seen[key] <= EAGER_BATCHES or len(self._recorded) == MAX_RECORDINGS:
                    return self._eager(images)
                free, total = torch.cuda.mem_get_info(images.device)
                if free < total // 2:
                    return self._eager(images)
                self._recorded[key] = self._record(images)
            return self._recorded[key](images)

    def _record(self, images: Tensor) -> Forward:
        self._network.eval()  # layers that keep products of their weights, as some of timm's do, let go of them
        try:
            with _ONE_AT_A_TIME:
                return _Recording(self._eager, images)
        except RuntimeError as error:  # out of memory, or a layer that asks the device for a number
            problem = " ".join(str(error).split())[:200]
            warnings.warn(f"predictions are not replayed by a CUDA graph: {problem}", stacklevel=5)
            return self._eager


class _Recording:
    """A forward pass on images of one shape as a graph, which reads and writes fixed memory."""

    def __init__(self, eager: Forward, images: Tensor) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad(), _uncached_autocast(), torch.cuda.device(images.device):
            self._images = torch.empty_like(images)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # other threads may go on copying batches meanwhile
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._logits = eager(self._images)

    def __call__(self, images: Tensor) -> Tensor:
        self._images.copy_(images)
        self._graph.replay()
        return self._logits.clone()


def _recorded(network: nn.Module, eager: Forward, images: Tensor) -> Forward:
    """The network's forward pass on images of one shape as a graph that leaves no trace of its warm-up."""
    network.forward = eager
    with undisturbed(network, images.device), _uncached_autocast():
        torch.cuda.make_graphed_callables(network, (images.detach().clone(),))
    graphed: Forward = network.forward
    return graphed


def _uncached_autocast() -> torch.autocast:
    """Autocast as it is, but for its memory of weights: a graph may not read any that were cast outside of it."""
    precision, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    return torch.autocast("cuda", precision, enabled=enabled, cache_enabled=False)


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
