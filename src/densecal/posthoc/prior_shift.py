"""Prior shift: probabilities for data in which classes are more or less frequent, without labels of that data.

Assumption (label shift): the classes have other frequencies, but each looks as it did. A camera that sees more of the
same road has shifted priors. Another camera, another season or another disease has not, and then this makes
probabilities worse. Nothing in unlabelled data can tell the two apart. The probabilities must be calibrated on the
source, so it is applied after another calibrator.

    p'_k ~ p_k pi_k / s_k        s: frequencies in the source, pi: those in the target

pi maximises the likelihood of the target's logits, mean of ln(sum of pi_k p_k / s_k), which is concave. Its maximum is
the fixed point of EM, pi_k <- mean of p'_k (Saerens 2002).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import expit

from densecal.errors import InputError
from densecal.metrics.arrays import Array, namespace, sigmoid, softmax
from densecal.posthoc.base import Calibrator
from densecal.posthoc.logit_histogram import Floats, LogitHistogram
from densecal.posthoc.mixture import mixture_weights
from densecal.posthoc.pixel_sample import PixelSample, clipped_log_softmax, draw_sample
from densecal.posthoc.registry import register

_TOLERANCE = 1e-6
_LEAST = 1e-12


@register("prior-shift")
class PriorShift(Calibrator):
    """p' ~ p pi / s; it assumes that only the frequencies of classes differ, and it may change the chosen class.

    `fit` counts the frequencies s of labelled data and changes nothing yet. `adapt` estimates pi on unlabelled data.
    K classes use a sample of at most a million pixels there.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
    """

    multiclass = True
    needs_target = True
    tables = ("source", "target")
    source: Floats
    target: Floats

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__(num_classes)
        size = max(num_classes, 2)
        for name in self.tables:
            self.set_table(name, np.full(size, 1.0 / size))

    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Return the shifted probabilities."""
        xp = namespace(z)
        # a class that the target lacks keeps a tiny share, so that no logit is infinite
        target, source = self.table("target", z).clip(min=_LEAST), self.table("source", z)
        shift = xp.log(target) - xp.log(source)
        if self.num_classes == 1:
            return sigmoid(z + (shift[1] - shift[0]))
        return softmax(clipped_log_softmax(z) + shift[:, None, None])

    def check(self) -> None:
        """Raise ValueError unless there are frequencies of every class."""
        size = max(self.num_classes, 2)
        for name, least in (("source", 1e-30), ("target", 0.0)):
            shares = getattr(self, name)
            if shares.size != size or shares.min() < least or abs(shares.sum() - 1.0) > _TOLERANCE:
                raise ValueError(f"{name} {shares.tolist()[:5]}; expected {size} shares that sum to 1")

    def _fit(self, data: Any, ignore_index: int | None) -> None:
        if self.num_classes > 1:
            counts = draw_sample(data, self.num_classes, ignore_index).class_counts.astype(np.float64)
        else:
            counts = np.array([data.pixels - data.foreground, data.foreground], np.float64)
        missing = np.flatnonzero(counts == 0).tolist()
        if missing:
            raise InputError(self.method, f"no pixel of class {missing[0]}", "pixels of every class in the source")
        self.set_table("source", counts / counts.sum())
        self.set_table("target", counts / counts.sum())

    def adapt(self, data: LogitHistogram | PixelSample) -> Self:
        """Estimate the frequencies of the target from its logits; labels, if there are any, do not matter.

        Args:
            data: The target's pixels: a histogram for one logit, a sample for K.

        Raises:
            InputError: There are no pixels.
        """
        n = None
        if isinstance(data, LogitHistogram):
            z, n, _ = data.by_logit()
            p = np.stack([expit(-z), expit(z)], axis=1)
        else:
            p = np.exp(data.log_p.astype(np.float64))
        if not len(p):
            raise InputError(self.method, "no pixels of the target", "maps to adapt to")
        self.set_table("target", mixture_weights(p / self.source, n))
        return self
