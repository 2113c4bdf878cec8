"""MMCE: cross entropy plus a kernel distance of confidence from correctness, over pixels drawn at each step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from densecal.methods.base import Method, on_device
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_not_negative, top_label, without_void
from densecal.methods.registry import register
from densecal.rng import Stream


class NumberedMasks(NamedTuple):
    """Masks with the sample indices their draws depend on.

    Attributes:
        labels: The masks, void pixels included.
        ids: Sample indices (B,).
    """

    labels: Tensor
    ids: Tensor


def kernel_form(c: Tensor, u: Tensor, width: float = 0.4) -> Tensor:
    """Return sum_ij u_i u_j exp(-|c_i - c_j| / width) for values c in [0, 1], summed in float64.

    In rising order of c the kernel is exp(-c_i / width) exp(c_j / width) for every j before i, so cumulative sums
    replace the n x n matrix.

    Args:
        c: Confidences (n,).
        u: Coefficients (n,).
        width: Width of the Laplacian kernel, at least 0.01.
    """
    x, order = (c.double() / width).sort()
    v = u.double().gather(0, order)
    grown = v * x.exp()
    before = grown.cumsum(0) - grown
    return (v.square().sum() + 2 * (v * (-x).exp() * before).sum()).to(c.dtype)


def weighted_mmce_squared(c: Tensor, a: Tensor, shares: Tensor, width: float = 0.4) -> Tensor:
    """Return MMCE_w^2, in which correct and wrong pixels have the same weight, whatever their numbers.

    It is sum_++ (1-c_i)(1-c_j) k / n+^2 + sum_-- c_i c_j k / n-^2 - 2 sum_+- (1-c_i) c_j k / (n+ n-), the kernel
    form of (a - c) / n+ or (a - c) / n-.

    Args:
        c: Confidences (n,).
        a: Whether a pixel is right, booleans (n,).
        shares: Weight of every pixel (n,); n+ and n- are sums of them.
        width: Width of the kernel.

    Returns:
        0 where no pixel is right or none is wrong.
    """
    right, wrong = (shares * a).sum(), (shares * ~a).sum()
    both = (right > 0) & (wrong > 0)
    size = torch.where(both, torch.where(a, right, wrong), 1)
    return both * kernel_form(c, (a.to(c.dtype) - c) * shares / size, width)


def safe_sqrt(x: Tensor) -> Tensor:
    """Return sqrt(max(x, 0) + 1e-10), whose gradient stays finite, and 0 for x = 0."""
    return torch.where(x == 0, 0, (x.clamp(min=0) + 1e-10).sqrt())


def draw_pixels(keys: Tensor, correct: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Draw `count` pixels of a batch without replacement, half of them correct and half wrong.

    Each stratum contributes the pixels with its largest keys, so shapes do not depend on its size.

    Args:
        keys: Random keys in [0, 1), any shape.
        correct: Booleans of the same shape.
        allowed: Booleans of the same shape; False keeps a pixel from being drawn.
        count: Pixels, both strata together.

    Returns:
        Positions in the flattened batch, and whether each is a pixel; False where a stratum ran out of pixels.
    """
    size = min(count // 2, keys.numel())
    strata = [
        torch.where(stratum & allowed, keys, -1).flatten().topk(size, sorted=False) for stratum in (correct, ~correct)
    ]
    return torch.cat([s.indices for s in strata]), torch.cat([s.values for s in strata]) >= 0


@register("mmce")
class Mmce(Method):
    """MMCE as an auxiliary loss (Kumar 2018, "Trainable calibration measures").

    L = CE + weight * MMCE_w, the weighted form over top-label confidences with a Laplacian kernel; the gradient
    flows through the confidences, not through the correctness. Deviations: MMCE_w is normalised once, where both
    public codes divide by the number of pairs a second time and so make the term negligible for dense outputs
    (hence a weight of 0.5 instead of their 2 to 10); it is computed from pixels drawn anew at each step, half of
    them correct and half wrong; soft masks are binarised at > 0.5 for the term.

    Which pixels of an image are drawn first is a function of (seed, epoch, index). Masks that did not go through
    `prepare` are numbered by their position in the batch.

    Args:
        width: Width of the kernel, at least 0.01; the paper's 0.4.
        weight: Weight of the term, at least 0.
        pixels: Pixels drawn from the batch at each step, at least 2.
        **common: See `Method`.
    """

    def __init__(self, *, width: float = 0.4, weight: float = 0.5, pixels: int = 2048, **common: Any) -> None:
        super().__init__(**common)
        if not 0.01 <= width < float("inf"):
            raise ValueError(f"width: found {width}; expected a number of at least 0.01")
        check_not_negative("weight", weight)
        if pixels < 2 or pixels != int(pixels):
            raise ValueError(f"pixels: found {pixels}; expected an integer of at least 2")
        self.width = width
        self.weight = weight
        self.pixels = pixels

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, NumberedMasks]:
        """Return the masks with their indices as targets."""
        super().prepare(images, masks, index)
        return images, NumberedMasks(masks, index)

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss plus the weighted MMCE of the drawn pixels, in float32."""
        if not isinstance(targets, NumberedMasks):
            targets = NumberedMasks(targets, torch.arange(len(targets)))
        labels, ids = targets
        with torch.autocast(logits.device.type, enabled=False):
            c, correct = top_label(logits.float(), without_void(labels, self.ignore_index))
            shares = pixel_shares(labels != self.ignore_index, weight)
            keys = self.uniform(on_device(ids, c.device), Stream.MMCE_PIXEL, c[0].numel()).view_as(c)
            drawn, is_pixel = draw_pixels(keys, correct, shares > 0, self.pixels)
            c, correct, shares = (values.flatten().gather(0, drawn) for values in (c, correct, shares))
            term = safe_sqrt(weighted_mmce_squared(c, correct, shares * is_pixel, self.width))
            return super().loss(logits, labels, weight) + self.weight * term
