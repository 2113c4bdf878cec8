"""Isotonic regression: the best rising map from probability to frequency, by pooling adjacent violators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats, merge_ties
from densecal.posthoc.registry import register


@register("isotonic")
class IsotonicRegression(Calibrator):
    """The non-decreasing function of p with the least squared error, linear between its fitted points.

    Ties in p are merged first; beyond the lowest and highest p the end values hold. Outputs can be exactly 0 and 1.
    The pixels above 0.5 may change.
    """

    tables = ("x", "y")
    x: Tensor
    y: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in self.tables:
            self.register_buffer(name, torch.tensor([0.0, 1.0], dtype=torch.float64))

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """The fitted function at p = sigmoid(z)."""
        p, x, y = z.sigmoid(), self.x.to(z.dtype), self.y.to(z.dtype)
        right = torch.bucketize(p, x).clamp(1, x.numel() - 1)
        x0, x1 = x[right - 1], x[right]
        share = ((p - x0) / (x1 - x0).clamp(min=torch.finfo(z.dtype).tiny)).clamp(0.0, 1.0)
        y0 = y[right - 1]
        return y0 + share * (y[right] - y0)

    def check(self) -> None:
        """Rising points inside the unit square."""
        if self.x.numel() != self.y.numel() or self.x.numel() < 2:
            raise ValueError(f"{self.x.numel()} x and {self.y.numel()} y; expected two or more points")
        for name in self.tables:
            values = self.get_buffer(name)
            if values.min() < 0 or values.max() > 1 or bool((values.diff() < 0).any()):
                raise ValueError(f"{name} that fall or leave [0, 1]; expected rising numbers in [0, 1]")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        z, n, k = data.by_logit()
        x, n, k = merge_ties(expit(z), n, k)
        value, first, last = pool_adjacent_violators(n, k)
        # a block is flat: its two ends say all, and one point where they are the same
        ends = np.stack([first, last], axis=1).ravel()
        kept = np.append(True, np.diff(ends) > 0) if len(x) > 1 else slice(None)
        self.set_table("x", x[ends][kept])
        self.set_table("y", np.repeat(value, 2)[kept])


def pool_adjacent_violators(n: Floats, k: Floats) -> tuple[Floats, Any, Any]:
    """The non-decreasing sequence of least squares.

    Args:
        n: Pixels of every point, by rising x.
        k: Foreground pixels of every point.

    Returns:
        Value, first point and last point of every block of equal value.
    """
    pixels: list[int] = []
    positives: list[int] = []
    first: list[int] = []
    for i, (n_i, k_i) in enumerate(zip(n.astype(np.int64).tolist(), k.astype(np.int64).tolist(), strict=True)):
        start = i
        # k_before / n_before >= k_i / n_i in whole numbers, which are exact
        while pixels and positives[-1] * n_i >= k_i * pixels[-1]:
            n_i += pixels.pop()
            k_i += positives.pop()
            start = first.pop()
        pixels.append(n_i)
        positives.append(k_i)
        first.append(start)
    last = np.append(np.asarray(first[1:], dtype=np.int64) - 1, len(n) - 1)
    return np.asarray(positives) / np.asarray(pixels), np.asarray(first), last
