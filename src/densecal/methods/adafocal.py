"""AdaFocal: focal loss whose gamma follows the calibration error of the validation images, bin by bin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from densecal.methods.base import Method
from densecal.methods.focal import true_class_margin
from densecal.methods.losses import pixel_shares
from densecal.methods.penalties import check_bins, check_not_negative, without_void
from densecal.methods.registry import register
from densecal.metrics.curves import Atoms

Floats = NDArray[np.float64]


def equal_mass_edges(atoms: Atoms, bins: int) -> Floats:
    """Return interp(linspace(0, n, bins + 1), 0..n-1, sorted values): the edges (bins + 1,) of equal-mass bins."""
    x = np.linspace(0, atoms.total, bins + 1)
    ends = np.cumsum(atoms.count)
    below = np.floor(x)

    def sorted_value(position: Floats) -> Floats:
        return np.asarray(atoms.value[np.searchsorted(ends, np.minimum(position, atoms.total - 1), side="right")])

    low, high = sorted_value(below), sorted_value(below + 1)
    return np.asarray(low + (x - below) * (high - low))


def bin_gaps(atoms: Atoms, edges: Floats) -> Floats:
    """Return E_b = mean value - mean outcome of the bins (lo, hi]; 0 in an empty bin.

    The smallest value lies in no bin, as in the public code.
    """
    b = np.searchsorted(edges, atoms.value, side="left")
    count, value, hits = (
        np.bincount(b, weights, len(edges))[1 : len(edges)]
        for weights in (atoms.count, atoms.value * atoms.count, atoms.hits)
    )
    return np.asarray((value - hits) / np.maximum(count, 1))


def update_gamma(gamma: Floats, E: Floats, lam: float, gamma_min: float, gamma_max: float, s_th: float) -> Floats:
    """Return the gammas after a validation that measured the gaps E.

    gamma becomes gamma exp(lam E), or gamma exp(-lam E) for the inverse focal loss of a negative gamma. Where its
    magnitude falls below s_th, it switches to the other branch. Finally it is clipped.
    """
    moved = gamma * np.exp(np.where(gamma > 0, lam * E, -lam * E))
    switched = np.where(moved > 0, -s_th, s_th)
    return np.asarray(np.clip(np.where(np.abs(moved) < s_th, switched, moved), gamma_min, gamma_max))


def adafocal_value(log_p: Tensor, log_q: Tensor, gamma: Tensor) -> Tensor:
    """Return -(1 - p_t)^gamma log p_t, or -(1 + p_t)^|gamma| log p_t where gamma < 0.

    Args:
        log_p: log p_t.
        log_q: log(1 - p_t).
        gamma: One for every pixel.
    """
    # The powers are computed in the log domain, as in the focal loss.
    base = torch.where(gamma > 0, log_q, log_p.exp().log1p())
    return -torch.exp(gamma.abs() * base) * log_p


@register("adafocal")
class AdaFocal(Method):
    """AdaFocal (Ghosh 2022, "AdaFocal: calibration-aware adaptive focal loss").

    Every bin of p_t, the probability of the true class, has its own gamma: focal loss where gamma > 0, inverse
    focal loss -(1 + p_t)^|gamma| log p_t where gamma < 0. After each epoch the validation's top-label confidences
    give new equal-mass bins, and every gamma moves by their calibration error, see `update_gamma`. Bins are
    looked up with a detached p_t; the first takes everything below it and the last everything above it. For one
    sigmoid logit confidences are at least 0.5, so every pixel with p_t < 0.5 is in the first bin.

    Deviations: it averages over pixels where the public code sums and clips the gradient's norm at 2; soft masks
    count as in `Focal` and are binarised at > 0.5 for the look-up. Above a million validation pixels the edges are
    those of the sketch's fine bins.

    Args:
        bins: B, equal-mass bins.
        lam: lambda, how fast gamma moves, at least 0.
        gamma_init: Initial gamma of every bin. The initial bins have equal width on [0, 1].
        gamma_max: Largest gamma, at least s_th.
        gamma_min: Smallest gamma, at most -s_th.
        s_th: Magnitude below which focal and inverse focal loss are switched, at least 0.
        **common: See `Method`.
    """

    gamma: Tensor
    edges: Tensor

    def __init__(
        self,
        *,
        bins: int = 15,
        lam: float = 1.0,
        gamma_init: float = 1.0,
        gamma_max: float = 20.0,
        gamma_min: float = -2.0,
        s_th: float = 0.2,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_bins("bins", bins)
        check_not_negative("lam", lam)
        check_not_negative("s_th", s_th)
        if not gamma_max >= s_th:
            raise ValueError(f"gamma_max: found {gamma_max}; expected a number of at least s_th = {s_th}")
        if not gamma_min <= -s_th:
            raise ValueError(f"gamma_min: found {gamma_min}; expected a number of at most -s_th = {-s_th}")
        if not gamma_min <= gamma_init <= gamma_max:
            raise ValueError(f"gamma_init: found {gamma_init}; expected a number from {gamma_min} to {gamma_max}")
        self.bins = bins
        self.lam = lam
        self.gamma_max = gamma_max
        self.gamma_min = gamma_min
        self.s_th = s_th
        # float64, so that a gamma of exactly s_th is not below it.
        self.register_buffer("gamma", torch.full((bins,), float(gamma_init), dtype=torch.float64))
        self.register_buffer("edges", torch.linspace(0, 1, bins + 1))

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss over the valid pixels of the batch, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            z, y = logits.float(), without_void(targets, self.ignore_index)
            if self.num_classes == 1:
                gamma = self.pixel_gamma(torch.where(y > 0.5, z, -z))
                log_p, log_q = logsigmoid(z), logsigmoid(-z)
                values = y * adafocal_value(log_p, log_q, gamma) + (1 - y) * adafocal_value(log_q, log_p, gamma)
            else:
                margin = true_class_margin(z, y)
                values = adafocal_value(logsigmoid(margin), logsigmoid(-margin), self.pixel_gamma(margin))
            return (values * pixel_shares(targets != self.ignore_index, weight)).mean()

    def pixel_gamma(self, margin: Tensor) -> Tensor:
        """Look up the gamma of every pixel by p_t = sigmoid(margin), without a gradient."""
        p_t = margin.detach().sigmoid()
        return self.gamma.float()[torch.bucketize(p_t, self.edges[1:-1], right=True)]

    def after_epoch(self, result: Any) -> None:
        """Move every gamma by the gap of its bin in `result.sketch`, and adopt these bins."""
        atoms = Atoms.from_counts(*result.sketch.top_atoms())
        edges = equal_mass_edges(atoms, self.bins)
        E = bin_gaps(atoms, edges)
        moved = update_gamma(self.gamma.cpu().numpy(), E, self.lam, self.gamma_min, self.gamma_max, self.s_th)
        self.gamma.copy_(torch.from_numpy(moved))
        self.edges.copy_(torch.from_numpy(edges))
        super().after_epoch(result)

    def statistics(self) -> dict[str, float]:
        """Summarise the gammas."""
        return {
            "gamma_min": self.gamma.min().item(),
            "gamma_mean": self.gamma.mean().item(),
            "gamma_max": self.gamma.max().item(),
        }
