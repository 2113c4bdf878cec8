"""Vector scaling: a weight and a bias for each of K classes (Guo 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, bincount, cast_like, log_softmax, namespace, softmax, take, to_host
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
    weight: Floats
    bias: Floats

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.set_table("weight", np.ones(num_classes))
        self.set_table("bias", np.zeros(num_classes))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the softmax of w * log p + b."""
        w, b = (self.table(name, z)[:, None, None] for name in self.tables)
        return softmax(w * log_softmax(z) + b)

    def check(self) -> None:
        """Raise ValueError unless there is one weight and one bias per class."""
        for name in self.tables:
            size = getattr(self, name).size
            if size != self.num_classes:
                raise ValueError(f"{name} of {size} numbers; expected {self.num_classes}")

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
    seen = np.zeros(K, np.int64)
    wrong = 0
    for z, y in pixel_chunks(batches, K, ignore_index):
        xp = namespace(z)
        if not bool(xp.isfinite(z).all()):
            raise InputError("vector", "NaN or infinite logits", "finite logits")
        seen += to_host(bincount(y, None, K))
        wrong += int((take(z, y) < xp.amax(z, 1)).sum()) if len(y) else 0
    missing = np.flatnonzero(seen == 0).tolist()
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
    pixels, value = 0, 0.0
    gradient = np.zeros(2 * K)
    hessian = np.zeros((2 * K, 2 * K))
    diagonal = np.arange(K)
    for z, y in pixel_chunks(batches, K, ignore_index):
        xp = namespace(z)
        w, b = (cast_like(part, z) for part in (x[:K], x[K:]))
        z = log_softmax(z)
        log_p = log_softmax(w * z + b)
        p = xp.exp(log_p)
        pixels += len(y)
        value -= float(take(log_p, y).sum())
        right = y[:, None] == cast_like(diagonal, y)
        residual = p - cast_like(right, p)
        gradient += to_host(xp.concatenate([(residual * z).sum(0), residual.sum(0)]))
        # The Hessian is p_k (1[k = l] - p_l) times the features (z, 1) of k and l.
        features = xp.concatenate([p * z, p], 1)
        own = to_host(xp.stack([(p * z * z).sum(0), (p * z).sum(0), p.sum(0)]))
        hessian -= to_host(features.T @ features)
        for rows, columns, sums in ((0, 0, own[0]), (0, K, own[1]), (K, 0, own[1]), (K, K, own[2])):
            hessian[diagonal + rows, diagonal + columns] += sums
    return value / pixels, gradient / pixels, hessian / pixels
