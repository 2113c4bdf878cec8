"""Starting Triton's kernels."""

from __future__ import annotations

from typing import Any

import torch


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **how: Any) -> None:
    """Start a kernel on the device of the first tensor given; Triton takes the current one, whatever tensors say."""
    with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
        # Triton's default, of which it warns that it will change
        kernel[grid](*given, enable_fp_fusion=True, **how)
