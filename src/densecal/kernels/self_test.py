"""Trying out kernels of our own, once a process and device, before anything relies on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Operation = Callable[..., Tensor]
"""From some tensors to one."""


def agree(
    what: str,
    ours: Operation,
    theirs: Operation,
    given: Sequence[Tensor],
    gradient: Tensor | None,
    device: torch.device,
) -> bool:
    """Whether a device's compiler translates kernels rightly: output and gradients against PyTorch on the CPU.

    Args:
        what: What a warning calls the kernels.
        ours: The kernels, on the device.
        theirs: The same of PyTorch, which gets float64 on the CPU.
        given: Small tensors on the CPU, in the precision to try.
        gradient: Of the output; without one only the output is compared.
        device: Where the kernels are to run.

    Returns:
        False, after a warning, if they differ or cannot be translated at all.
    """
    dtype = given[0].dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2

    def results(operation: Operation, where: torch.device, dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.to(where, dtype).requires_grad_(gradient is not None) for tensor in given]
        y = operation(*inputs)
        return [y] if gradient is None else [y, *torch.autograd.grad(y, inputs, gradient.to(where, dtype))]

    try:
        # the first use may be a prediction, which records nothing
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            pairs = zip(
                results(ours, device, dtype),
                results(theirs, torch.device("cpu"), torch.float64),
                strict=True,
            )
            good = all(torch.allclose(a.double().cpu(), b, rtol=tolerance, atol=tolerance) for a, b in pairs)
        problem = "disagree with PyTorch"
    except Exception as error:  # of a Triton without what they need, or without a compiler: PyTorch's still work
        good, problem = False, f"fail ({error})"
    if not good:
        warnings.warn(f"{what} kernels {problem} on {device}: PyTorch's are used", stacklevel=4)
    return good
