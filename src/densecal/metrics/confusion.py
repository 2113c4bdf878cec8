"""Segmentation scores of K classes: mean IoU, Dice and accuracy from the confusion matrix of all pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks
from densecal.metrics import compiled
from densecal.metrics.compiled import MOST_CLASSES
from densecal.metrics.exact import ExactSums
from densecal.metrics.locking import locked
from densecal.metrics.sum_meter import SumMeter


@dataclass(frozen=True)
class ConfusionResult:
    """Scores of K-class label maps; means are over the classes that occur in truth or prediction."""

    miou: float
    iou: NDArray[np.float64]  # (K,), nan for a class that does not occur
    accuracy: float
    dice: float

    def as_dict(self) -> dict[str, float | list[float]]:
        """Return the scores by name, ``iou`` as a list over classes."""
        return {"miou": self.miou, "iou": self.iou.tolist(), "accuracy": self.accuracy, "dice": self.dice}


class ConfusionMeter(SumMeter):
    """Count the pixels of every (true class, predicted class) pair over all images.

    Args:
        num_classes: K.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self._sums = ExactSums({"matrix": np.zeros((num_classes, num_classes), dtype=np.int64)})

    @locked
    def update(
        self,
        predicted: NDArray[np.integer[Any]],
        labels: NDArray[np.integer[Any]],
        ignore_index: int | None = None,
    ) -> None:
        """Add label maps of any shape; pixels whose true label is ``ignore_index`` do not count."""
        if predicted.shape != labels.shape:
            raise ValueError(f"predicted: found shape {predicted.shape}; expected {labels.shape}, as the labels")
        K = self.num_classes
        matrix = np.zeros((K, K), np.int64)
        if predicted.dtype == labels.dtype == np.uint8 and compiled.takes(predicted, labels) and K <= MOST_CLASSES:
            void = -1 if ignore_index is None else ignore_index
            if compiled.native.count_pairs(predicted, labels, matrix, labels.size, K, void):
                self._sums.add({"matrix": matrix})
                return
        if ignore_index is not None:
            valid = labels != ignore_index
            predicted, labels = predicted[valid], labels[valid]
        for name, classes in (("predicted", predicted), ("labels", labels)):
            if classes.size and not (classes.min() >= 0 and classes.max() < K):
                raise ValueError(f"{name}: found {classes.min()} to {classes.max()}; expected 0 to {K - 1}")
        key = labels.astype(np.intp).ravel() * K + predicted.astype(np.intp).ravel()
        self._sums.add({"matrix": np.bincount(key, minlength=K * K).reshape(K, K)})

    @locked
    def compute(self) -> ConfusionResult:
        """Return the scores over all pixels so far; nan where there are no pixels to decide."""
        matrix = self._sums.values()["matrix"]
        hits = matrix.diagonal().astype(np.float64)
        either = matrix.sum(axis=0) + matrix.sum(axis=1)
        occurs = either > 0
        iou, dice = np.full((2, self.num_classes), np.nan)
        iou[occurs] = hits[occurs] / (either - hits)[occurs]
        dice[occurs] = 2 * hits[occurs] / either[occurs]
        if not occurs.any():
            return ConfusionResult(math.nan, iou, math.nan, math.nan)
        return ConfusionResult(
            miou=float(iou[occurs].mean()),
            iou=iou,
            accuracy=float(hits.sum() / matrix.sum()),
            dice=float(dice[occurs].mean()),
        )


def winners(probabilities: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the first of the most probable classes of every pixel, and its probability.

    Args:
        probabilities: (K, ...), floats of at most 256 classes.
    """
    K, *shape = probabilities.shape
    winner, largest = np.empty(shape, np.uint8), np.empty(shape, probabilities.dtype)
    if compiled.takes_floats(probabilities):
        compiled.native.winners(probabilities, winner, largest, K, winner.size, 0, winner.size)
    else:
        for rows in row_chunks(winner.shape):
            winner[rows] = probabilities[:, rows].argmax(axis=0)
            largest[rows] = probabilities[:, rows].max(axis=0)
    return winner, largest
