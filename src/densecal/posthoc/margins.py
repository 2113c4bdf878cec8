"""Margins around predicted masks that cover the true object (Mossina and Friedrich 2025); only masks are needed.

Growing a predicted mask by m pixels covers more of the true mask. The score of an image is the smallest m at which a
share `coverage` of its foreground is covered: with d the distance of a true pixel to the predicted mask, the smallest m
with share(d <= m) >= coverage. It is infinite where nothing is predicted, and 0 where there is no foreground. The
margin is the ceil((n + 1)(1 - alpha))-th smallest of n scores, and

    P(the grown mask of a new image covers a share `coverage` of its foreground) >= 1 - alpha

if the image is exchangeable with the n (split conformal prediction). How a mask grows is the shape of the distance:
disc (Euclidean), square (the larger of rows and columns) or cross (their sum).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt, distance_transform_edt

from densecal.errors import InputError
from densecal.posthoc.risk_control import round_up

SHAPES = ("disc", "square", "cross")
_METRICS = {"square": "chessboard", "cross": "taxicab"}
_LARGEST = 1 << 14
"""Growth by more pixels than this is counted as this."""
_ROUNDING = 1e-12

Masks = NDArray[np.bool_]


@dataclass(frozen=True)
class Margin:
    """A margin and its costs on the calibration images.

    Attributes:
        pixels: By how much masks grow; infinite where no finite margin is enough.
        shape: One of ``SHAPES``.
        coverage: Share of an image's foreground that counts as covered.
        alpha: Share of new images, at most, whose grown mask covers less.
        covered: Share of the calibration images whose grown mask covers enough.
        covered_before: The same without a margin.
        set_size: Mean share of an image inside the grown masks.
        set_size_before: The same without a margin.
        images: Calibration images.
        groups: n, where images are grouped; else n is the number of images.
        smallest_alpha: Smallest alpha below 1 with a finite margin; NaN where there is none.
    """

    pixels: float
    shape: str
    coverage: float
    alpha: float
    covered: float
    covered_before: float
    set_size: float
    set_size_before: float
    images: int
    groups: int | None = None
    smallest_alpha: float = math.nan

    @property
    def is_trivial(self) -> bool:
        """Whether no finite margin gives the guarantee."""
        return math.isinf(self.pixels)

    def grow(self, mask: Masks) -> Masks:
        """Return a predicted mask grown by the margin."""
        return np.asarray(distance_to(mask, self.shape) <= self.pixels)


class MarginScores:
    """Scores of images, and the share of each image that would lie inside its grown mask.

    Args:
        coverage: Share of an image's foreground to cover.
        shape: One of ``SHAPES``.

    Examples:
        >>> scores = MarginScores(coverage=1.0, shape="square")
        >>> truth = np.zeros((8, 8), bool); truth[2:6, 2:6] = True
        >>> predicted = np.zeros((8, 8), bool); predicted[3:6, 4:6] = True
        >>> for _ in range(9):
        ...     scores.update(predicted, truth)
        >>> scores.control(alpha=0.1).pixels
        2.0
    """

    def __init__(self, coverage: float = 0.95, shape: str = "disc") -> None:
        if not 0.0 < coverage <= 1.0:
            raise InputError("coverage", str(coverage), "a share above 0, at most 1")
        if shape not in SHAPES:
            raise InputError("shape", repr(shape), f"one of {', '.join(SHAPES)}")
        self.coverage, self.shape = coverage, shape
        self.images = 0
        self.units: list[float] = []
        self._inside = np.zeros(_LARGEST + 2)  # summed shares of images within each distance; the last is infinite

    def update(self, prediction: Masks, truth: Masks, valid: Masks | None = None) -> None:
        """Add an image.

        Args:
            prediction: The predicted mask.
            truth: The true mask.
            valid: False on void pixels.
        """
        self.units.append(self._score(prediction, truth, valid))

    def add_group(self, images: list[tuple[Masks, Masks, Masks | None]]) -> None:
        """Add a group of images as one unit, which is covered if all of them are."""
        self.units.append(max(self._score(*image) for image in images))

    def merge(self, other: MarginScores) -> None:
        """Add the units of another one with the same settings."""
        if (self.coverage, self.shape) != (other.coverage, other.shape):
            raise ValueError(
                f"cannot merge: {self.coverage} {self.shape} here and {other.coverage} {other.shape} there"
            )
        self.images += other.images
        self.units += other.units
        self._inside += other._inside

    def _score(self, prediction: Masks, truth: Masks, valid: Masks | None) -> float:
        if prediction.shape != truth.shape or not truth.size:
            raise ValueError(f"masks of shapes {prediction.shape} and {truth.shape}; expected the same pixels")
        distance = np.ceil(distance_to(prediction, self.shape))
        inside = distance if valid is None else distance[valid]
        binned = np.minimum(inside, _LARGEST + 1).astype(np.int64)
        binned[np.isfinite(inside)] = np.minimum(binned[np.isfinite(inside)], _LARGEST)
        self._inside += np.bincount(binned.ravel(), minlength=_LARGEST + 2) / max(inside.size, 1)
        self.images += 1
        missing = np.sort(distance[truth if valid is None else truth & valid])
        if not missing.size:
            return 0.0
        return float(missing[math.ceil(self.coverage * missing.size - _ROUNDING * missing.size) - 1])

    def control(self, alpha: float, grouped: bool = False) -> Margin:
        """Return the margin that covers a new image with probability 1 - alpha.

        Raises:
            InputError: alpha is not in (0, 1), or there are fewer than 1/alpha - 1 units.
        """
        n = len(self.units)
        if not 0.0 < alpha < 1.0:
            raise InputError("alpha", str(alpha), "a number between 0 and 1")
        rank = math.ceil((n + 1) * (1.0 - alpha) - 1e-9)
        if rank > n:
            needed = math.ceil(1.0 / alpha - 1.0 - 1e-9)
            problem = f"{n} {'groups' if grouped else 'images'} for alpha {alpha:g}"
            raise InputError("risk control", problem, f"at least {needed} (1/alpha - 1)")
        scores = np.sort(self.units)
        margin = float(scores[rank - 1])
        inside = np.cumsum(self._inside) / self.images
        size = 1.0 if math.isinf(margin) else float(inside[min(int(margin), _LARGEST)])
        return Margin(
            margin, self.shape, self.coverage, alpha, float((scores <= margin).mean()), float((scores <= 0).mean()),
            size, float(inside[0]), self.images, n if grouped else None,
            round_up(1.0 - float(np.isfinite(scores).sum()) / (n + 1)),
        )  # fmt: skip


def distance_to(mask: Masks, shape: str) -> NDArray[np.float64]:
    """Return how far every pixel is from a mask, infinite where the mask is empty."""
    if not mask.any():
        return np.full(mask.shape, np.inf)
    distance = distance_transform_edt(~mask) if shape == "disc" else distance_transform_cdt(~mask, _METRICS[shape])
    return np.asarray(distance, dtype=np.float64)
