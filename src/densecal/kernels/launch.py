"""Launching Triton kernels."""

from __future__ import annotations

from typing import Any

import torch


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a kernel on the device of its first tensor. Triton itself would use the current device."""
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        # Triton warns that this default will change
        kernel[grid](*arguments, enable_fp_fusion=True, **options)
