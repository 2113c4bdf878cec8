"""How far PyTorch's exporter is, which says nothing itself: told by the operations that it has run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from densecal.runtime.progress import Progress

PASSES = ((13, 38), (47, 58), (58, 77), (77, 88))
"""The exporter runs all operations of a network four times: to capture the graph, twice to decompose it, and to find
its types. These are the per cent of its time at which each pass begins and ends: medians of nine networks with
PyTorch 2.15. Before the first two passes it prepares the weights, and after the last it writes and simplifies the ONNX
graph, which takes from 7 % for small networks to a quarter for EBMGSOD."""
_OPERATOR = type(torch.ops.aten.add.Tensor)
_OF_A_WEIGHT = torch.ops.aten.detach.default
"""The operator that the exporter runs for every weight, too."""


@contextmanager
def report_steps(module: nn.Module, example: Tensor, title: str, progress: Progress) -> Iterator[None]:
    """Report how far the exporter is that exports a module within the context.

    Args:
        module: The module.
        example: The batch that it is exported with.
        title: What is being done.
        progress: Called whenever a per cent of the exporter's time is over. It goes back if the exporter captures the
            graph again, which it does for a network that does not take every image size.
    """
    progress(title, 0, 100)
    steps = _Steps(title, progress)
    hooks = (module.register_forward_pre_hook(steps.begin), module.register_forward_hook(steps.end))
    try:
        with suppress(Exception), torch.no_grad(), steps:  # the exporter will say what is wrong with the network
            module(example[:1])
            steps.total, steps.count = steps.count, 0
        with steps:
            yield
    finally:
        for hook in hooks:
            hook.remove()
    progress(title, 100, 100)


class _Steps(TorchFunctionMode):
    """Counts the operations that PyTorch runs.

    If the exporter cannot capture the graph, it tries Dynamo, which would make these methods a part of the graph, or
    fail. So they do nothing for Dynamo.
    """

    def __init__(self, title: str, progress: Progress) -> None:
        super().__init__()
        self.title, self.progress = title, progress
        self.total = math.inf  # operations of the network, once known
        self.count, self.reported = 0.0, 0
        self.is_capturing = False

    def begin(self, *_: Any) -> None:
        """Note that the network begins to run."""
        if not torch.compiler.is_dynamo_compiling():
            self.is_capturing, self.count, self.reported = True, 0, 0
            self.report()

    def end(self, *_: Any) -> None:
        """Note that the network has run."""
        if not torch.compiler.is_dynamo_compiling():
            self.is_capturing = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, and count it if it is an operation of the network."""
        result = function(*args, **(kwargs or {}))
        if not torch.compiler.is_dynamo_compiling() and isinstance(result, Tensor):
            if self.is_capturing:
                self.count = min(self.count + 1, self.total)
                self.report()
            elif self.count and isinstance(function, _OPERATOR) and function is not _OF_A_WEIGHT:
                self.count = min(max(self.count, self.total) + 1, len(PASSES) * self.total)
                self.report()
        return result

    def report(self) -> None:
        """Report the per cent that are done, if they are more than before."""
        if not 0 < self.total < math.inf:
            return
        passes = max(math.ceil(self.count / self.total) - 1, 0)
        begin, end = PASSES[passes]
        done = int(begin + (end - begin) * (self.count / self.total - passes))
        if done > self.reported:
            self.reported = done
            self.progress(self.title, done, 100)
