"""Images that occur twice: identical, near-identical (another size, encoding, brightness, crop), or merely similar.

A constant border (the black frame of an endoscope, letterbox bars) carries no information about the image, so it is
cut off, and what remains of it in the corners is masked. What remains becomes a thumbnail without its slow changes of
brightness, which unrelated images of one kind have in common. Pairs whose coarse thumbnails correlate are aligned by
scale and shift, so that a crop lies on its original, and then compared in finer detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

SIDE = 64
"""Side of the grey thumbnails that are compared."""
BORDER_RANGE = 6
"""Grey values by which the pixels of a constant border may differ from its corner."""
MIN_CANDIDATE = 0.5
"""Least correlation of the coarse thumbnails of a pair that is aligned and compared."""
MIN_SIMILAR = 0.75
"""Least correlation of the aligned detail of similar images."""
MIN_NEAR = 0.92
"""Least correlation of the aligned detail of near-identical images."""
MAX_OUTSIDE = 0.015
"""Share of a side by which a near-identical image may extend beyond the image it was cut from."""
MIN_OVERLAP = 0.4
"""Least share of each image's content that both must show."""
MIN_ISLAND = 0.05
"""Least share of the image that a piece of its content covers; smaller ones are captions in a border."""
MIN_DETAIL = 0.5
"""Standard deviation, in grey values, below which an image has no detail to compare."""

_BORDER_SIDE = 256
_ROWS = 1024
_COARSE, _FINE = (2.0, 8.0), (1.0, 5.0)
"""Widths of the Gaussian filters between which coarse and fine detail lies, in pixels of the thumbnail."""
_STEPS = 6


@dataclass(frozen=True, eq=False)
class View:
    """A thumbnail of an image, or of the part inside its constant border.

    Attributes:
        thumbnail: float16 (64, 64): grey values.
        content: bool (64, 64): pixels that do not belong to a constant border.
    """

    thumbnail: NDArray[np.float16]
    content: NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """The data of an image that serve to find its copies.

    Attributes:
        digest: Hash of the pixels.
        whole: The whole image.
        inner: The rectangle around its content; the same object as ``whole`` if there is no border to cut off.
    """

    digest: bytes
    whole: View
    inner: View


@dataclass(frozen=True)
class Pair:
    """Two images that look alike.

    Attributes:
        first: Index in the first set.
        second: Index in the second set.
        correlation: Correlation of their detail, once aligned.
        near: Whether they are near-identical, that is, one was made from the other; otherwise they are similar.
    """

    first: int
    second: int
    correlation: float
    near: bool


def look_at(image: NDArray[np.uint8]) -> Look:
    """Compute the look of an RGB image, uint8 (H, W, 3)."""
    grey = Image.fromarray(image).convert("L")
    content = _content(grey)
    rows, columns = (np.flatnonzero(content.any(axis=axis)) for axis in (1, 0))
    whole_box = (0, 0, *content.shape[::-1])
    whole = _view(grey, content, whole_box)
    box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) if rows.size else whole_box
    return Look(pixel_digest(image), whole, whole if box == whole_box else _view(grey, content, box))


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


def near_copies(first: Sequence[Look], second: Sequence[Look] | None = None) -> list[Pair]:
    """Find pairs of images that look alike without having equal pixels.

    Args:
        first: Images.
        second: Images of another set; ``None`` compares the first with themselves.

    Returns:
        Pairs that are near-identical or similar, in the order of their indices.
    """
    others = first if second is None else second
    pairs = []
    for i, j in _candidates(first, others):
        a, b = first[i], others[j]
        if (second is None and j <= i) or a.digest == b.digest:
            continue
        results = [_compare(a.whole, b.whole)]
        if not (a.inner is a.whole and b.inner is b.whole):
            results.append(_compare(a.inner, b.inner))
        near, correlation = max(
            (contained and correlation >= MIN_NEAR, correlation) for correlation, contained in results
        )
        if correlation >= MIN_SIMILAR:
            pairs.append(Pair(i, j, correlation, near))
    return pairs


def _candidates(first: Sequence[Look], second: Sequence[Look]) -> list[tuple[int, int]]:
    """Return the pairs whose coarse thumbnails correlate, those of whole images or those inside their borders."""
    if not first or not second:
        return []
    candidates: set[tuple[int, int]] = set()
    for kind in ("whole", "inner"):
        vectors, others = (np.stack([_signature(getattr(look, kind)) for look in looks]) for looks in (first, second))
        for start in range(0, len(first), _ROWS):
            rows, columns = np.nonzero(vectors[start : start + _ROWS] @ others.T >= MIN_CANDIDATE)
            candidates.update(zip((rows + start).tolist(), columns.tolist(), strict=True))
    return sorted(candidates)


def _signature(view: View) -> NDArray[np.float32]:
    """Return coarse detail of mean 0 and length 1, (32 * 32,); 0 for an image without detail."""
    detail = _detail(view, *_COARSE).reshape(SIDE // 2, 2, SIDE // 2, 2).mean(axis=(1, 3)).ravel()
    detail -= detail.mean()
    length = np.linalg.norm(detail)
    return np.zeros_like(detail) if length < MIN_DETAIL * SIDE / 2 else detail / length


def _detail(view: View, narrow: float, wide: float) -> NDArray[np.float32]:
    """Return the detail between two scales of the content, 0 where there is no content.

    Args:
        view: The view.
        narrow: Width of the Gaussian filter that removes finer detail, in pixels of the thumbnail.
        wide: Width of the filter that leaves only slow changes, which are subtracted.
    """
    values, weights = view.thumbnail.astype(np.float32), view.content.astype(np.float32)
    smooth, slow = (
        ndimage.gaussian_filter(values * weights, width) / np.maximum(ndimage.gaussian_filter(weights, width), 1e-6)
        for width in (narrow, wide)
    )
    detail: NDArray[np.float32] = (smooth - slow) * weights
    return detail


@lru_cache(maxsize=1024)
def _details(view: View) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return coarse and fine detail, cached because an image takes part in many comparisons."""
    return _detail(view, *_COARSE), _detail(view, *_FINE)


def _content(grey: Image.Image) -> NDArray[np.bool_]:
    """Return which pixels are outside a constant border, with the image scaled to 256 pixels along its longer side."""
    scale = min(1.0, _BORDER_SIDE / max(grey.size))
    small = grey.resize((max(1, round(grey.width * scale)), max(1, round(grey.height * scale))), Image.Resampling.BOX)
    values = np.asarray(small).astype(np.int16)
    border = np.zeros(values.shape, bool)
    for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        regions, _ = ndimage.label(abs(values - values[corner]) <= BORDER_RANGE)
        border |= regions == regions[corner]
    regions, _ = ndimage.label(~border)
    large = np.bincount(regions.ravel()) >= MIN_ISLAND * regions.size  # smaller ones are captions in the border
    large[0] = False
    content: NDArray[np.bool_] = large[regions]
    return content


def _view(grey: Image.Image, content: NDArray[np.bool_], box: tuple[int, int, int, int]) -> View:
    """Return a view of a box, given in pixels of ``content``."""
    x, y = grey.width / content.shape[1], grey.height / content.shape[0]
    pixels = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
    thumbnail = grey.convert("F").resize((SIDE, SIDE), Image.Resampling.BOX, pixels)
    mask = Image.fromarray(content.astype(np.uint8) * 255).resize((SIDE, SIDE), Image.Resampling.BOX, box)
    return View(np.asarray(thumbnail).astype(np.float16), np.asarray(mask) > 254)


def _compare(first: View, second: View) -> tuple[float, bool]:
    """Align two images.

    Returns:
        The correlation of their detail where both show content, and whether one shows nothing that the other does not.
    """
    (coarse, fine), (other_coarse, other_fine) = _details(first), _details(second)
    if min(detail.std() for detail in (coarse, fine, other_coarse, other_fine)) < MIN_DETAIL:
        return 0.0, False
    transform = np.array([[1.0, 0.0], [1.0, 0.0]])
    transform = _align(coarse, other_coarse, transform)
    transform = _align(fine, other_fine, transform)
    rows, columns = _sampling(transform)
    shown = (rows @ second.content @ columns.T > 0.99) & first.content
    contents = first.content.sum(), second.content.sum() / abs(transform[:, 0].prod())
    if shown.sum() < max(MIN_OVERLAP * min(contents), MIN_ISLAND * shown.size):
        return 0.0, False
    starts = transform[:, 1] / SIDE
    ends = starts + transform[:, 0]
    inside = bool((starts >= -MAX_OUTSIDE).all() and (ends <= 1 + MAX_OUTSIDE).all())
    around = bool((starts <= MAX_OUTSIDE).all() and (ends >= 1 - MAX_OUTSIDE).all())
    moved = rows @ other_fine @ columns.T
    return float(np.corrcoef(fine[shown], moved[shown])[0, 1]), inside or around


def _align(a: NDArray[np.float32], b: NDArray[np.float32], transform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Improve the transform that lays one image on another, by Gauss-Newton steps on their squared difference.

    Args:
        a: The image that stays.
        b: The image that moves.
        transform: Scale and offset along each side, from the grid of ``a`` to that of ``b``, (2, 2).
    """
    a, b = a / a.std(), b / b.std()
    slope_down, slope_right = np.gradient(b)
    grid = np.arange(SIDE, dtype=np.float32)
    for _ in range(_STEPS):
        rows, columns = _sampling(transform)
        inside = np.outer(rows.sum(axis=1) > 0.99, columns.sum(axis=1) > 0.99)
        down, right = (np.where(inside, rows @ slope @ columns.T, 0) for slope in (slope_down, slope_right))
        jacobian = np.stack([down * grid[:, None], down, right * grid, right]).reshape(4, -1)
        residual = rows @ b @ columns.T - a
        normal = jacobian @ jacobian.T + 1e-3 * np.eye(4)
        transform = transform - np.linalg.solve(normal, jacobian @ residual.ravel()).reshape(2, 2)
    return transform


def _sampling(transform: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the matrices that sample the rows and columns of an image linearly, with 0 outside."""
    grid = np.arange(SIDE)
    rows, columns = (
        np.maximum(0, 1 - abs((scale * grid + offset)[:, None] - grid)).astype(np.float32)
        for scale, offset in transform
    )
    return rows, columns
