"""A uniform sample of pixels with K logits, in bounded memory: what calibrators of many parameters are fitted on.

Every pixel gets a key, a hash of its number in the data. The sample is the pixels with the smallest keys, so it depends
neither on batches nor on chunks, and a pass keeps no more than twice its size. Up to the limit it is all pixels. They
come in the order of their keys, so the first n of them are a uniform sample too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.metrics.arrays import Array, as_array, log_softmax, to_host
from densecal.posthoc.base import Batch, Batches

MAX_PIXELS = 1 << 20
MAX_NUMBERS = 1 << 26
"""Limits of the sample, in pixels and in numbers: 64 million numbers take 256 MB."""
LOG_FLOOR = -100.0
"""Log-probabilities below this count as this, because a weight of 0 times an infinite one would be NaN."""
_CHUNK = 1 << 18

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PixelSample:
    """Log-probabilities and labels of a sample of pixels; a call starts a pass over them, as `fit` expects.

    Args:
        num_classes: K.
        limit: Most pixels to keep; by default as many as the limits of this file allow.

    Attributes:
        class_counts: int64 (K,), all pixels by label, in the sample or not.

    Examples:
        >>> sample = PixelSample(2)
        >>> sample.update(np.zeros((1, 2, 2, 2)), np.array([[[0, 1], [255, 1]]]), ignore_index=255)
        >>> sample.log_p.shape, sample.class_counts.tolist()
        ((3, 2), [1, 2])
    """

    def __init__(self, num_classes: int, limit: int | None = None) -> None:
        self.num_classes = num_classes
        self.limit = min(MAX_PIXELS, MAX_NUMBERS // num_classes) if limit is None else limit
        self.class_counts: Ints = np.zeros(num_classes, np.int64)
        self._seen = 0
        self._below = np.uint64(0xFFFFFFFFFFFFFFFF)
        # keys, log-probabilities, labels and images of the pixels kept so far
        self._parts: list[tuple[NDArray[np.uint64], NDArray[np.float32], Ints, Ints]] = []
        self._kept = 0

    # ------------------------------------------------------------------ collecting

    def update(self, logits: Array, masks: Array, ignore_index: int | None = None, image: int = 0) -> None:
        """Add a batch.

        Args:
            logits: (B, K, H, W).
            masks: (B, H, W) class indices.
            ignore_index: Label of void pixels, which are not counted.
            image: Number of the image that the pixels belong to, for cross-validation.

        Raises:
            InputError: Labels outside the classes, or logits of the sample that are NaN or infinite.
        """
        logits, masks = to_host(as_array(logits)), to_host(as_array(masks))
        K = self.num_classes
        if logits.ndim != 4 or logits.shape[1] != K or masks.shape != logits[:, 0].shape:
            raise ValueError(
                f"logits {logits.shape} and masks {masks.shape}; expected shapes (B, {K}, H, W) and (B, H, W)"
            )
        for z, y in zip(logits.reshape(len(logits), K, -1), masks.reshape(len(masks), -1), strict=True):
            for first in range(0, y.size, _CHUNK):
                self._add(z[:, first : first + _CHUNK], y[first : first + _CHUNK].astype(np.int64), ignore_index, image)

    def _add(self, z: Array, y: Ints, ignore_index: int | None, image: int) -> None:
        valid = np.ones(y.shape, bool) if ignore_index is None else y != ignore_index
        labels = y[valid]
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            problem = f"labels from {labels.min()} to {labels.max()}"
            raise InputError("masks", problem, f"0 to {self.num_classes - 1}, or {ignore_index} for void")
        keys = pixel_keys(self._seen, y.size)
        index = np.flatnonzero(valid & (keys <= self._below))
        log_p = log_probabilities(z[:, index].T.astype(np.float64))
        if not np.isfinite(log_p).all():
            raise InputError("logits", "NaN or infinite numbers", "finite logits")
        self._seen += y.size
        self.class_counts += np.bincount(labels, minlength=self.num_classes)
        self._parts.append((keys[index], log_p.astype(np.float32), y[index], np.full(index.size, image)))
        self._kept += index.size
        if self._kept > 2 * self.limit:
            self._prune()

    def _prune(self) -> None:
        """Keep the pixels with the smallest keys, in the order of their keys."""
        keys, log_p, y, image = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        order = np.argsort(keys)[: self.limit]
        if keys.size > self.limit:
            self._below = keys[order[-1]]
        self._parts = [(keys[order], log_p[order], y[order], image[order])]
        self._kept = order.size

    # ------------------------------------------------------------------ reading

    @property
    def log_p(self) -> NDArray[np.float32]:
        """Log-probabilities (N, K), by rising key."""
        return self._read()[1]

    @property
    def labels(self) -> Ints:
        """Labels (N,)."""
        return self._read()[2]

    @property
    def images(self) -> Ints:
        """Numbers of the images (N,)."""
        return self._read()[3]

    def _read(self) -> tuple[NDArray[np.uint64], NDArray[np.float32], Ints, Ints]:
        if len(self._parts) != 1 or self._kept > self.limit:
            K, none = self.num_classes, np.zeros(0, np.int64)
            self._parts.append((none.astype(np.uint64), np.zeros((0, K), np.float32), none, none))
            self._prune()
        return self._parts[0]

    def select(self, chosen: NDArray[np.bool_]) -> PixelSample:
        """Return the pixels that a mask (N,) selects, as a sample of their own."""
        part = PixelSample(self.num_classes, self.limit)
        keys, log_p, y, image = self._read()
        part._parts = [(keys[chosen], log_p[chosen], y[chosen], image[chosen])]
        part._kept = int(chosen.sum())
        part.class_counts = np.bincount(y[chosen], minlength=self.num_classes)
        return part

    def __call__(self) -> Iterator[Batch]:
        """Yield its pixels as batches of one row each."""
        log_p, y = self.log_p, self.labels
        for first in range(0, len(y), _CHUNK):
            rows = slice(first, first + _CHUNK)
            yield Batch(log_p[rows].T[None, :, None], y[rows][None, None])


def draw_sample(batches: Batches, num_classes: int, ignore_index: int | None) -> PixelSample:
    """Return the sample of one pass over batches; a sample is returned unchanged."""
    if isinstance(batches, PixelSample):
        return batches
    sample = PixelSample(num_classes)
    for batch in batches():
        sample.update(batch[0], batch[1], ignore_index)
    return sample


def require_classes(sample: PixelSample, who: str, every: bool = False) -> None:
    """Raise InputError unless there are pixels, some of them wrong, and for `every` pixels of every class."""
    if not len(sample.labels):
        raise InputError(who, "no valid pixels", "pixels to fit on")
    missing = np.flatnonzero(sample.class_counts == 0).tolist() if every else []
    if missing:
        raise InputError(
            who, f"no pixel of class {', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}",
            "pixels of every class, or the calibrator temperature",
        )  # fmt: skip
    chosen = np.take_along_axis(sample.log_p, sample.labels[:, None], 1)[:, 0]
    if not bool((chosen < sample.log_p.max(axis=1)).any()):
        problem = "logits that choose the right class at every pixel, for which the best parameters are infinite"
        raise InputError(who, problem, "data on which the model is sometimes wrong")


def clipped_log_softmax(z: Array) -> Array:
    """Return the log-softmax of logits (B, K, ...), at least LOG_FLOOR."""
    return log_softmax(z).clip(min=LOG_FLOOR)


def pixel_keys(first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of pixels by their numbers: SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    x = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def log_probabilities(z: Floats) -> Floats:
    """Return the log-softmax of logits (N, K)."""
    with np.errstate(invalid="ignore"):
        z = z - z.max(axis=1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
