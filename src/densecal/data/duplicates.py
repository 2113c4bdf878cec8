"""Images that occur twice: pixel by pixel, or in another size, encoding or brightness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 32
"""Side of the grey thumbnails that are compared."""
WAVES = 8
"""Cosine waves along each side that the hash keeps."""
MAX_BITS = 10
"""Hash bits (of 63) in which copies may differ."""
MIN_CORRELATION = 0.9
"""Least correlation of the thumbnails of copies. Hashes alone confuse a few pairs of unlike images in 10,000."""

_ROWS = 1024


@dataclass(frozen=True)
class Look:
    """What is kept of an image to find its copies.

    Attributes:
        digest: Hash of the pixels.
        bits: Perceptual hash, bool (63,): which low-frequency cosine coefficients lie above their median.
        thumbnail: uint8 (32, 32), grey.
    """

    digest: bytes
    bits: NDArray[np.bool_]
    thumbnail: NDArray[np.uint8]


def look_at(image: NDArray[np.uint8]) -> Look:
    """Compute the look of an RGB image, uint8 (H, W, 3)."""
    grey = Image.fromarray(image).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    thumbnail = np.asarray(grey)
    coefficients = (_BASIS @ thumbnail.astype(np.float64) @ _BASIS.T).ravel()[1:]  # without the mean
    return Look(pixel_digest(image), coefficients > np.median(coefficients), thumbnail)


def pixel_digest(pixels: NDArray[np.uint8]) -> bytes:
    """Return a hash of an array's shape and content."""
    hasher = blake2b(repr(pixels.shape).encode(), digest_size=16)
    hasher.update(np.ascontiguousarray(pixels).data)
    return hasher.digest()


def same_pixels(looks: Sequence[Look]) -> list[list[int]]:
    """Return groups of two or more images with equal pixels."""
    groups: dict[bytes, list[int]] = {}
    for i, look in enumerate(looks):
        groups.setdefault(look.digest, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def near_copies(first: Sequence[Look], second: Sequence[Look] | None = None) -> Iterator[tuple[int, int, float]]:
    """Find pairs of images that look alike without having equal pixels.

    Args:
        first: Images.
        second: Images of another set; ``None`` compares the first with themselves.

    Yields:
        Index in the first set, index in the second, correlation of the thumbnails.
    """
    others = first if second is None else second
    if not first or not others:
        return
    # bits as signs: a product counts equal bits minus unequal ones, exactly, at the speed of a matrix product
    signs, other_signs = (_signs(looks) for looks in (first, others))
    bits = signs.shape[1]
    thumbnails, other_thumbnails = (_standardised(looks) for looks in (first, others))
    for start in range(0, len(first), _ROWS):
        distances = (bits - signs[start : start + _ROWS] @ other_signs.T) / 2
        for row, j in zip(*np.nonzero(distances <= MAX_BITS), strict=True):
            i = start + int(row)
            if (second is None and j <= i) or first[i].digest == others[j].digest:
                continue
            correlation = float(thumbnails[i] @ other_thumbnails[j])
            if correlation >= MIN_CORRELATION:
                yield i, int(j), correlation


def _cosine_basis() -> NDArray[np.float64]:
    """Return the first rows of the cosine transform (DCT-II), up to their scale."""
    wave, position = np.arange(WAVES)[:, None], np.arange(SIDE)[None, :]
    return np.cos(np.pi * wave * (2 * position + 1) / (2 * SIDE))


_BASIS = _cosine_basis()


def _signs(looks: Sequence[Look]) -> NDArray[np.float32]:
    return np.where(np.stack([look.bits for look in looks]), np.float32(1), np.float32(-1))


def _standardised(looks: Sequence[Look]) -> NDArray[np.float32]:
    """Return thumbnails of mean 0 and length 1; one of a single grey becomes 0 and correlates with none."""
    flat = np.stack([look.thumbnail.ravel() for look in looks]).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.divide(flat, length, out=np.zeros_like(flat), where=length > 0)
    return unit
