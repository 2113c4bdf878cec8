"""Sets of classes per pixel that contain the true class (conformal prediction for K softmax classes).

A score s_k says how unlikely class k is at a pixel, and the set is {k: s_k <= tau}:

    thr     1 - p_k; the smallest sets on average (Sadinle 2019)
    aps     the probability of all classes that are likelier than k; sets adapt to the pixel and are never empty
            (Romano 2020)
    raps    that of aps + penalty * max(0, rank of k - free); fewer unlikely classes (Angelopoulos 2021)

Pixels of one image are not exchangeable with those of another, images are. So the unit is the image and its loss the
share of its pixels whose set lacks the true class. The loss falls as tau rises, and tau is the smallest with
(n R + 1) / (n + 1) <= alpha, R being the mean loss (conformal risk control, Angelopoulos 2022): of a new image, at
least a share 1 - alpha of the pixels is covered, on average over images. With delta, tau is the smallest above which
the p-value of Hoeffding and Bentkus is at most delta: the same then holds with probability 1 - delta over calibration
sets. Scores are rounded up to a grid, which changes the sets slightly and the guarantee not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.posthoc.high_probability import check_levels, hoeffding_bentkus, smallest_level
from densecal.posthoc.risk_control import round_up

SCORES = ("thr", "aps", "raps")
STEPS = 2000
PENALTY = 0.01
FREE = 2
"""Ranks without a penalty in raps."""
_ROUNDING = 1e-12
_TRIVIAL = 1e-9

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SetControl:
    """A threshold of scores and its cost on the calibration images.

    Attributes:
        score: One of ``SCORES``.
        threshold: The set of a pixel is the classes whose score is at most this.
        alpha: Upper bound of the expected share of a new image's pixels whose set lacks the true class.
        delta: Probability over calibration sets that the bound may not hold; None where it holds on average.
        coverage: Mean share of covered pixels on the calibration images.
        set_size: Mean number of classes per pixel.
        empty: Mean share of pixels whose set is empty.
        classes: K.
        images: Calibration images.
        groups: n, where images are grouped; else n is the number of images.
        penalty: What raps adds per rank.
        free: Ranks to which raps adds nothing.
        smallest_alpha: Smallest alpha below 1 for which some pixel has fewer than all classes; NaN where there is none.
    """

    score: str
    threshold: float
    alpha: float
    delta: float | None
    coverage: float
    set_size: float
    empty: float
    classes: int
    images: int
    groups: int | None = None
    penalty: float = PENALTY
    free: int = FREE
    smallest_alpha: float = math.nan

    @property
    def is_trivial(self) -> bool:
        """Whether the guarantee holds only with sets of all classes."""
        return self.set_size > self.classes - _TRIVIAL

    def sets(self, probabilities: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the sets (K, ...) of pixels with softmax probabilities (K, ...)."""
        flat = probabilities.reshape(len(probabilities), -1)
        scores = score_levels(flat, self.score, self.penalty, self.free)
        top = round(self.threshold / highest_score(self.score, self.classes, self.penalty, self.free) * STEPS)
        return np.asarray(scores <= top).reshape(probabilities.shape)


class SetCurve:
    """Misses and set sizes at every threshold of a grid, summed over images; mergeable.

    Args:
        num_classes: K.
        score: One of ``SCORES``.
        penalty: What raps adds per rank.
        free: Ranks to which raps adds nothing.
    """

    def __init__(self, num_classes: int, score: str = "thr", penalty: float = PENALTY, free: int = FREE) -> None:
        if score not in SCORES:
            raise InputError("score", repr(score), f"one of {', '.join(SCORES)}")
        self.num_classes, self.score, self.penalty, self.free = num_classes, score, penalty, free
        self.images = 0
        self.units = 0
        # Entry t belongs to the threshold t / STEPS of the highest score.
        self._misses, self._sizes, self._empty = np.zeros((3, STEPS + 1))

    def update(self, probabilities: NDArray[Any], labels: NDArray[Any]) -> None:
        """Add an image.

        Args:
            probabilities: (K, N) softmax probabilities of its valid pixels.
            labels: (N,) class indices.
        """
        K = self.num_classes
        if probabilities.shape != (K, labels.size) or not labels.size:
            raise ValueError(
                f"probabilities {probabilities.shape} and labels {labels.shape}; expected ({K}, N) and (N,)"
            )
        levels = score_levels(probabilities, self.score, self.penalty, self.free)
        own = np.take_along_axis(levels, labels.astype(np.int64)[None], 0)[0]
        covered, sizes, filled = (_below(part) for part in (own, levels, levels.min(axis=0)))
        self.images += 1
        self.units += 1
        self._misses += 1.0 - covered / labels.size
        self._sizes += sizes / labels.size
        self._empty += 1.0 - filled / labels.size

    def merge(self, other: SetCurve) -> None:
        """Add the units of another curve of the same score."""
        self._check(other)
        self.images += other.images
        self.units += other.units
        self._misses += other._misses
        self._sizes += other._sizes
        self._empty += other._empty

    def add_group(self, group: SetCurve) -> None:
        """Add a group of images as one unit: the means over its images."""
        self._check(group)
        self.images += group.images
        self.units += 1
        self._misses += group._misses / group.images
        self._sizes += group._sizes / group.images
        self._empty += group._empty / group.images

    def _check(self, other: SetCurve) -> None:
        ours, others = ((c.num_classes, c.score, c.penalty, c.free) for c in (self, other))
        if ours != others:
            raise ValueError(f"cannot merge: {ours} here and {others} there")

    def control(self, alpha: float, delta: float | None = None, grouped: bool = False) -> SetControl:
        """Return the smallest threshold whose misses are controlled at alpha.

        Args:
            alpha: Share of a new image's pixels whose set may lack the true class.
            delta: Let this hold with probability 1 - delta over calibration sets, instead of on average.
            grouped: The units are groups of images.

        Raises:
            InputError: A level is not in (0, 1), or the units are too few.
        """
        n, units = self.units, "groups" if grouped else "images"
        if delta is None:
            if not 0.0 < alpha < 1.0:
                raise InputError("alpha", str(alpha), "a number between 0 and 1")
            if 1.0 / (n + 1) > alpha + _ROUNDING:
                needed = math.ceil(1.0 / alpha - 1.0 - _ROUNDING)
                raise InputError(
                    "risk control", f"{n} {units} for alpha {alpha:g}", f"at least {needed} (1/alpha - 1)"
                )  # fmt: skip
            passes = (self._misses + 1.0) / (n + 1) <= alpha + _ROUNDING
        else:
            check_levels(n, alpha, delta, units)
            passes = hoeffding_bentkus(self._misses / n, n, alpha) <= delta
        t = int(np.argmax(passes))  # at the highest score all classes are in the set, which always passes
        return SetControl(
            self.score, t / STEPS * highest_score(self.score, self.num_classes, self.penalty, self.free), alpha, delta,
            1.0 - float(self._misses[t]) / n, float(self._sizes[t]) / n, float(self._empty[t]) / n, self.num_classes,
            self.images, n if grouped else None, self.penalty, self.free, self._smallest_alpha(delta),
        )  # fmt: skip

    def _smallest_alpha(self, delta: float | None) -> float:
        """Return the smallest alpha kept by the highest threshold that leaves a class out of some set."""
        n = self.units
        smaller = np.flatnonzero(self._sizes / n <= self.num_classes - _TRIVIAL)
        if not smaller.size:
            return math.nan
        misses = float(self._misses[smaller[-1]])
        return round_up((misses + 1.0) / (n + 1)) if delta is None else smallest_level(misses / n, n, delta)


def score_levels(p: NDArray[Any], score: str, penalty: float = PENALTY, free: int = FREE) -> Ints:
    """Return the scores (K, N) of probabilities (K, N), in steps of the highest score, rounded up."""
    p = p.astype(np.float64)
    if score == "thr":
        scores = 1.0 - p
    else:
        order = np.argsort(-p, axis=0, kind="stable")
        ranked = np.take_along_axis(p, order, 0)
        before = np.cumsum(ranked, axis=0) - ranked
        if score == "raps":
            before = before + penalty * np.maximum(0, np.arange(1, len(p) + 1) - free)[:, None]
        scores = np.empty_like(p)
        np.put_along_axis(scores, order, before, 0)
    steps = STEPS / highest_score(score, len(p), penalty, free)
    return np.ceil(scores * steps - 1e-9).astype(np.int64).clip(0, STEPS)


def highest_score(score: str, classes: int, penalty: float = PENALTY, free: int = FREE) -> float:
    """Return the largest possible score."""
    return 1.0 + (penalty * max(0, classes - free) if score == "raps" else 0.0)


def _below(levels: Ints) -> Ints:
    """Return how many levels are at most 0, 1, ..., STEPS."""
    return np.cumsum(np.bincount(levels.ravel(), minlength=STEPS + 1))
