"""CUDA graphs: the forward and backward pass of a network, recorded once per batch shape and replayed."""

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
"""Predictions before a shape is recorded. They choose and compile kernels, which cannot be done in a graph."""
MAX_RECORDINGS = 4
"""A data set needs two: one for full batches and one for the last. Tiles of small images would need dozens."""

_DEVICES = ("cuda",)
_ONE_AT_A_TIME = threading.Lock()
"""A process may record one graph at a time."""


def replay(network: nn.Module, training: bool) -> None:
    """Let a network on a CUDA device replay its passes.

    A small network spends most of a step waiting for Python to launch its kernels. A graph launches them all at once.
    Weights may change later, in place. Layers and hooks may not. The gradients of a replayed step live in fixed memory
    that the next replay overwrites: they must not be accumulated over several batches, and ``zero_grad`` must set them
    to None, as it does by default.

    A recording keeps the memory of a pass. Only a few predictions are recorded, and none when less than half of the
    device's memory is free, not counting what PyTorch holds in reserve.

    Args:
        network: Maps images to logits.
        training: Replay training steps too, not only predictions.
    """
    network.forward = _ReplayedForward(network, training)


class _ReplayedForward:
    """The forward pass of a network, with its recordings. A copy of the network makes its own."""

    def __init__(self, network: nn.Module, training: bool) -> None:
        self.eager: Forward = network.forward
        self._network, self._training = network, training
        self._clear()

    def _clear(self) -> None:
        self._uses: Counter[Any] = Counter()
        self._predictions: dict[Any, Forward] = {}
        self._steps: dict[torch.Size, Forward] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"eager": self.eager, "_network": self._network, "_training": self._training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()

    def __call__(self, images: Tensor) -> Tensor:
        if images.device.type not in _DEVICES:
            return self.eager(images)
        if not torch.is_grad_enabled():
            return self._predict(images)
        return self._step(images) if self._training and self._network.training else self.eager(images)

    def _step(self, images: Tensor) -> Tensor:
        if images.shape not in self._steps:
            self._steps[images.shape] = _record_step(self._network, images)
        return self._steps[images.shape](images)

    def _predict(self, images: Tensor) -> Tensor:
        # MC dropout sets some layers to training mode and draws again for every batch
        if any(module.training for module in self._network.modules()):
            return self.eager(images)
        precision = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        stream = torch.cuda.current_stream(images.device)  # one graph cannot run on two streams at once
        key = images.shape, images.stride(), images.dtype, precision, stream
        with self._lock:
            if key not in self._predictions:
                self._uses[key] += 1
                if self._uses[key] <= EAGER_BATCHES or len(self._predictions) == MAX_RECORDINGS:
                    return self.eager(images)
                free, total = torch.cuda.mem_get_info(images.device)
                if free < total // 2:
                    return self.eager(images)
                self._predictions[key] = self._record(images)
            return self._predictions[key](images)

    def _record(self, images: Tensor) -> Forward:
        self._network.eval()  # makes layers of timm drop the products of weights they have cached
        try:
            with _ONE_AT_A_TIME:
                return _Recording(self.eager, images)
        except RuntimeError as error:  # out of memory, or a layer that asks the device for a number
            problem = " ".join(str(error).split())[:200]
            warnings.warn(f"predictions are not replayed by a CUDA graph: {problem}", stacklevel=6)
            return self.eager


class _Recording:
    """A forward pass on images of one shape as a graph that reads and writes fixed memory."""

    def __init__(self, eager: Forward, images: Tensor) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad(), _uncached_autocast(), torch.cuda.device(images.device):
            self._images = torch.empty_like(images)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # other threads may copy batches meanwhile
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._logits = eager(self._images)

    def __call__(self, images: Tensor) -> Tensor:
        self._images.copy_(images)
        self._graph.replay()
        return self._logits.clone()


def _record_step(network: nn.Module, images: Tensor) -> Forward:
    """Record the forward and backward pass of a network on images of one shape, and undo the effects of the warm-up."""
    with preserve_state(network, images.device), _uncached_autocast():
        torch.cuda.make_graphed_callables(network, (images.detach().clone(),))
        graphed: Forward = network.forward
    return graphed


def _uncached_autocast() -> torch.autocast:
    """Return the current autocast without its cache: a graph must not read weights that were cast outside of it."""
    precision, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    return torch.autocast("cuda", precision, enabled=enabled, cache_enabled=False)


@contextlib.contextmanager
def preserve_state(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute without replays. Afterwards restore the buffers of the network and the random number generators."""
    statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}
    forward = network.forward
    if isinstance(forward, _ReplayedForward):
        network.forward = forward.eager
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        if isinstance(forward, _ReplayedForward):
            network.forward = forward
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(statistics[name])
