"""Testing our kernels, once per process and device, before they are used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Operation = Callable[..., Tensor]
"""Maps one or more tensors to one."""


def agree(
    name: str,
    ours: Operation,
    theirs: Operation,
    inputs: Sequence[Tensor],
    gradient: Tensor | None,
    device: torch.device,
) -> bool:
    """Compare the output and gradients of kernels on a device with those of PyTorch on the CPU.

    Args:
        name: Name of the kernels in a warning.
        ours: Calls the kernels, on the device.
        theirs: The same operation in PyTorch, computed in float64 on the CPU.
        inputs: Small tensors on the CPU, in the precision to test.
        gradient: Gradient of the output. Without one, only outputs are compared.
        device: Where the kernels run.

    Returns:
        Whether they agree. If they differ or cannot be compiled, a warning says so.
    """
    dtype = inputs[0].dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2

    def results(operation: Operation, where: torch.device, dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(where, dtype).requires_grad_(gradient is not None) for tensor in inputs]
        y = operation(*leaves)
        return [y] if gradient is None else [y, *torch.autograd.grad(y, leaves, gradient.to(where, dtype))]

    try:
        # the first use may be a prediction, in which autograd is off
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            pairs = zip(
                results(ours, device, dtype),
                results(theirs, torch.device("cpu"), torch.float64),
                strict=True,
            )
            good = all(torch.allclose(a.double().cpu(), b, rtol=tolerance, atol=tolerance) for a, b in pairs)
        problem = "disagree with PyTorch"
    except Exception as error:  # Triton lacks a feature or a compiler; PyTorch still works
        good, problem = False, f"fail ({error})"
    if not good:
        warnings.warn(f"{name} kernels {problem} on {device}: PyTorch's are used", stacklevel=4)
    return good
