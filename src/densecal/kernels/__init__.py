"""Faster layers and counting for CUDA, behind two doors: `accelerate` for networks, `counting_kernels` for meters."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def counting_kernels(device: torch.device, agree: Callable[[ModuleType, torch.device], bool]) -> ModuleType | None:
    """Load `counting.py` where it can be trusted.

    Args:
        device: Where pixels are counted.
        agree: Says whether the kernels count as PyTorch does.

    Returns:
        None on other devices than CUDA, without Triton and, after a warning, where the kernels fail or disagree.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    try:
        from densecal.kernels import counting

        problem = "" if agree(counting, device) else "disagree with PyTorch"
    except Exception as error:  # Triton lacks a feature or a compiler; PyTorch still works
        problem = f"fail ({error})"
    if problem:
        warnings.warn(f"counting kernels {problem} on {device}: PyTorch's are used", stacklevel=3)
        return None
    return counting
