"""Vector scaling: a weight and a bias for each of K classes (Guo 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from densecal.errors import InputError
from densecal.posthoc.base import Batches, Calibrator, pixel_chunks
from densecal.posthoc.newton import Floats, NoMinimumError, minimise
from densecal.posthoc.registry import register

MAX_PASSES = 40


@register("vector")
class VectorScaling(Calibrator):
    """p' = softmax(w * log p + b), w and b of K entries, by maximum likelihood; it may change the chosen class.

    It uses log p = log_softmax(z) instead of z. Adding a constant to all logits of a pixel must not change the result,
    and a folder of probability maps must give the same calibrator as the model that wrote them. The mean of b, which
    has no effect, stays 0. Newton's method takes one pass over the data per step (about eight).

    Args:
        num_classes: K.
    """

    binary = False
    multiclass = True
    tables = ("weight", "bias")
    weight: Tensor
    bias: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("weight", torch.ones(num_classes, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(num_classes, dtype=torch.float64))

    def probabilities(self, z: Tensor, images: Tensor | None) -> Tensor:
        """Return the softmax of w * log p + b."""
        w, b = (table.to(z.dtype).view(1, -1, 1, 1) for table in (self.weight, self.bias))
        return (w * z.log_softmax(dim=1) + b).softmax(dim=1)

    def check(self) -> None:
        """Raise ValueError unless there is one weight and one bias per class."""
        for name in self.tables:
            if self.get_buffer(name).numel() != self.num_classes:
                raise ValueError(f"{name} of {self.get_buffer(name).numel()} numbers; expected {self.num_classes}")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        K = self.num_classes
        _check_classes(data, K, ignore_index)
        try:
            x = minimise(
                lambda x: _nll(data, K, ignore_index, x), [1.0] * K + [0.0] * K, tolerance=1e-10, evaluations=MAX_PASSES
            )
        except NoMinimumError:
            raise InputError(
                "vector", f"no minimum in {MAX_PASSES} passes: a class may be told apart without one mistake",
                "data on which the model is sometimes wrong, or the calibrator temperature",
            ) from None  # fmt: skip
        self.set_table("weight", x[:K])
        self.set_table("bias", x[K:])


def _check_classes(batches: Batches, K: int, ignore_index: int | None) -> None:
    seen = torch.zeros(K, dtype=torch.int64)
    wrong = 0
    for z, y in pixel_chunks(batches, K, ignore_index):
        if not bool(z.isfinite().all()):
            raise InputError("vector", "NaN or infinite logits", "finite logits")
        seen += torch.bincount(y, minlength=K).cpu()
        wrong += int((z.gather(1, y[:, None])[:, 0] < z.amax(dim=1)).sum())
    missing = (seen == 0).nonzero().flatten().tolist()
    if missing:
        raise InputError(
            "vector", f"no pixel of class {', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}",
            "pixels of every class, or the calibrator temperature",
        )  # fmt: skip
    if not wrong:
        problem = "logits that choose the right class at every pixel, for which the best weights are infinite"
        raise InputError("vector", problem, "data on which the model is sometimes wrong")


def _nll(batches: Batches, K: int, ignore_index: int | None, x: Floats) -> tuple[float, Floats, Floats]:
    """Return the mean NLL at (w, b) with gradient and Hessian."""
    w, b = torch.from_numpy(x[:K]), torch.from_numpy(x[K:])
    pixels, value = 0, 0.0
    gradient = torch.zeros(2 * K, dtype=torch.float64)
    hessian = torch.zeros(2 * K, 2 * K, dtype=torch.float64)
    for z, y in pixel_chunks(batches, K, ignore_index):
        z = z.log_softmax(dim=1)
        log_p = (w.to(z.device) * z + b.to(z.device)).log_softmax(dim=1)
        p = log_p.exp()
        pixels += len(y)
        value -= float(log_p.gather(1, y[:, None]).sum())
        residual = p.clone()
        residual.scatter_add_(1, y[:, None], torch.full_like(log_p[:, :1], -1.0))
        gradient += torch.cat([(residual * z).sum(0), residual.sum(0)]).cpu()
        # The Hessian is p_k (1[k = l] - p_l) times the features (z, 1) of k and l.
        features = torch.cat([p * z, p], dim=1)
        own = torch.stack([(p * z * z).sum(0), (p * z).sum(0), p.sum(0)]).cpu()
        hessian -= (features.T @ features).cpu()
        hessian[:K, :K] += own[0].diag()
        hessian[:K, K:] += own[1].diag()
        hessian[K:, :K] += own[1].diag()
        hessian[K:, K:] += own[2].diag()
    return value / pixels, (gradient / pixels).numpy(), (hessian / pixels).numpy()
