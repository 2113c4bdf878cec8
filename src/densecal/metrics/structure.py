"""S-measure and weighted F, by PySODMetrics' conventions: the two scores that depend on where pixels lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks
from densecal.metrics import compiled
from densecal.metrics.geometry import distance_squared, nearest_sources
from densecal.metrics.min_max import stretch_map, stretched_levels

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

EPS = float(np.spacing(1.0))

# Weighted F blurs errors with a Gaussian of this half width, sigma 5.
GAUSSIAN_REACH = 3
GAUSSIAN = np.exp(-(np.arange(-GAUSSIAN_REACH, GAUSSIAN_REACH + 1.0) ** 2) / 50)
GAUSSIAN /= GAUSSIAN.sum()
HALF_GAUSSIAN = np.ascontiguousarray(GAUSSIAN[GAUSSIAN_REACH:])
# Rows that a row depends on: those under the blur, and from there those of the nearest pixel of the object, which
# may lie in a corner of its window or just outside it.
CHUNK_MARGIN = GAUSSIAN_REACH + math.isqrt(2 * GAUSSIAN_REACH * GAUSSIAN_REACH)
# Weighted F gives a background pixel at distance d the weight 2 - 2**(-d / 5), and 0 to the object; the table is
# indexed by d**2. Distances are exact up to the reach; beyond it no weight is off by more than a relative 5e-7.
WEIGHT_REACH = 100
BACKGROUND_WEIGHT = 2 - 0.5 ** (np.sqrt(np.arange(65536)) / 5)
BACKGROUND_WEIGHT[0] = 0
# Errors on the object are summed as whole multiples of 2**-42, so that the sum does not depend on their order.
ERROR_BITS, LOW_BITS = 42, 21


class Extent(NamedTuple):
    """Where the True pixels of a mask are."""

    pixels: int
    """Their number."""
    rows: int
    """The sum of their rows."""
    columns: int
    """The sum of their columns."""
    top: int
    """The first row."""
    bottom: int
    """The row behind the last."""
    left: int
    """The first column."""
    right: int
    """The column behind the last."""

    @property
    def cut(self) -> tuple[int, int]:
        """The row and column after the centroid, whose coordinates are rounded half to even."""
        return round(self.rows / max(self.pixels, 1)) + 1, round(self.columns / max(self.pixels, 1)) + 1

    def window(self, margin: int) -> tuple[slice, slice]:
        """The bounding box, of at least one pixel, widened by ``margin``."""
        rows = slice(max(self.top - margin, 0), self.bottom + margin)
        return rows, slice(max(self.left - margin, 0), self.right + margin)


def extent_of(mask: Mask) -> Extent:
    """Return where the True pixels of a mask (H, W) are."""
    if compiled.takes_pictures(mask):
        return Extent(*compiled.native.extent(mask, *mask.shape))
    # The narrower the type, the faster the sum.
    dtype = np.uint16 if max(mask.shape) < 65536 else np.int64
    counts = [mask.view(np.uint8).sum(axis=1 - axis, dtype=dtype) for axis in (0, 1)]
    rows, columns = (int(lines @ np.arange(len(lines))) for lines in counts)
    ends = []
    for lines in counts:
        occupied = np.flatnonzero(lines)
        ends += [int(occupied[0]), int(occupied[-1]) + 1] if len(occupied) else [len(lines), 0]
    return Extent(int(counts[0].sum()), rows, columns, *ends)


def s_measure(prediction: NDArray[Any], mask: Mask, moments: Floats | None = None) -> float:
    """Return the S-measure, alpha = 0.5 (Fan et al., Structure-measure, ICCV 2017).

    PySODMetrics returns nan where the object's centroid leaves quadrants without pixels; here they have weight 0.

    Args:
        prediction: (H, W) map in [0, 1], or 8-bit levels, whose moments must be given.
        mask: (H, W) boolean.
        moments: (4, 2, 3) number, mean and sum of squared deviations of the background and the foreground pixels in
            each quadrant around ``Extent.cut`` (top left, top right, bottom left, bottom right), if known already.
    """
    positives = int(np.count_nonzero(mask))
    if positives == 0:
        return float(1 - _stretched(prediction).mean())
    if positives == mask.size:
        return float(_stretched(prediction).mean())
    windows = _quadrants(mask)
    if moments is None:
        moments = np.array([[_moments(prediction[w][mask[w] == c]) for c in (False, True)] for w in windows])
    flat = [0.0] * len(windows)
    for i, (background, foreground) in enumerate(moments[:, :, 0].tolist()):
        if (background > 0) != (foreground > 0):
            flat[i] = _flat_similarity(_stretched(prediction)[windows[i]], float(foreground > 0))
    return s_measure_of(moments, flat)


def s_measure_of(moments: Floats, flat: Sequence[float] = (0.0,) * 4) -> float:
    """Return the S-measure of a map with foreground and background, given its moments.

    Args:
        moments: As for ``s_measure``.
        flat: The similarity of the quadrants of one class.
    """
    quadrants = [[Moments(*numbers) for numbers in quadrant] for quadrant in moments.tolist()]
    on_background, on_object = (_pool([quadrant[c] for quadrant in quadrants]) for c in (0, 1))
    size = on_background.n + on_object.n
    region = 0.0
    for (background, foreground), alike in zip(quadrants, flat, strict=True):
        n = background.n + foreground.n
        if background.n and foreground.n:
            region += n / size * _region_similarity(background, foreground)
        elif n:
            region += n / size * alike
    mu = on_object.n / size
    on_background = on_background._replace(mean=1 - on_background.mean)
    similarity = mu * _object_similarity(on_object) + (1 - mu) * _object_similarity(on_background)
    return max(0.0, 0.5 * similarity + 0.5 * region)


def _stretched(prediction: NDArray[Any]) -> Floats:
    return stretch_map(prediction) if prediction.dtype == np.uint8 else prediction


def _quadrants(mask: Mask) -> list[tuple[slice, slice]]:
    y, x = extent_of(mask).cut
    return [(rows, columns) for rows in (slice(y), slice(y, None)) for columns in (slice(x), slice(x, None))]


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations of some pixels."""

    n: float
    mean: float
    squares: float


def _moments(values: Floats) -> Moments:
    """Return the moments of pixels; overwrite the pixels."""
    mean = float(values.mean()) if values.size else 0.0
    values -= mean
    return Moments(values.size, mean, float(values @ values))


def _pool(parts: list[Moments]) -> Moments:
    """Return the moments of the union of disjoint sets of pixels."""
    n = sum(part.n for part in parts)
    mean = sum(part.n * part.mean for part in parts) / n
    return Moments(n, mean, sum(part.squares + part.n * (part.mean - mean) ** 2 for part in parts))


def _object_similarity(pixels: Moments) -> float:
    """Return 2m / (m**2 + 1 + std)."""
    m, std = pixels.mean, math.sqrt(pixels.squares / max(pixels.n - 1, 1))
    return 2 * m / (m * m + 1 + std + EPS)


def _region_similarity(background: Moments, foreground: Moments) -> float:
    """Return 4 x y s_xy / ((x**2 + y**2)(s_x + s_y)) of a quadrant with both classes."""
    n, x, squares = _pool([background, foreground])
    y = foreground.n / n
    s_x, s_y = squares / (n - 1), n * y * (1 - y) / (n - 1)
    s_xy = foreground.n * (foreground.mean - x) / (n - 1)
    return 4 * x * y * s_xy / ((x * x + y * y) * (s_x + s_y) + EPS)


def _flat_similarity(pixels: Floats, y: float) -> float:
    """Return the similarity of a quadrant of one class, y = 0 or 1: 1 if the map is constant there too, else 0.

    Whether the mean of equal numbers equals them depends on rounding, so this follows PySODMetrics step by step.
    """
    x = pixels.mean()
    deviation = pixels - x
    deviation *= deviation
    return float((x**2 + y**2) * (deviation.sum() / (pixels.size - 1 + EPS)) == 0)


def weighted_f(prediction: Floats, mask: Mask) -> float:
    """Return the weighted F, beta = 1 (Margolin et al., How to evaluate foreground maps?, CVPR 2014).

    Args:
        prediction: (H, W) map in [0, 1].
        mask: (H, W) boolean.
    """
    extent = extent_of(mask)
    if extent.pixels == 0:
        return 0.0
    window = _object_window(extent)
    missed = _missed(1 - prediction[window], mask[window])
    distance = distance_squared(mask, WEIGHT_REACH)
    false_positives = 0.0
    for rows in row_chunks(mask.shape):
        weight = np.empty(distance[rows].shape)
        BACKGROUND_WEIGHT.take(distance[rows], out=weight, mode="clip")  # the default mode copies before and after
        false_positives += float(np.vdot(prediction[rows], weight))
    return _weighted_f(extent.pixels, missed, false_positives)


def weighted_f_of_levels(levels: NDArray[np.uint8], mask: Mask, low: int, high: int) -> float:
    """Return the weighted F of an 8-bit map that is stretched to [0, 1].

    Args:
        levels: (H, W) map.
        mask: (H, W) boolean.
        low: Lowest level of the map.
        high: Highest level.
    """
    extent = extent_of(mask)
    if extent.pixels == 0:
        return 0.0
    window, errors = _object_window(extent), _level_errors(low, high)
    missed = _missed_of_levels(np.ascontiguousarray(levels[window]), np.ascontiguousarray(mask[window]), errors)
    if low == high:
        low, high = 0, 255
    sums = _sum_by_distance(levels, mask, low)
    return _weighted_f(extent.pixels, missed, float(sums @ BACKGROUND_WEIGHT[: len(sums)]) / (high - low))


@lru_cache
def _level_errors(low: int, high: int) -> Floats:
    """Return the errors of the levels on the object, of a map between a lowest and a highest one."""
    errors = 1 - stretched_levels(low, high)
    errors.flags.writeable = False
    return errors


def _object_window(extent: Extent) -> tuple[slice, slice]:
    # The blurred error matters on the object alone, so errors farther away than the blur reaches do not.
    return extent.window(GAUSSIAN_REACH)


def _weighted_f(positives: int, missed: float, false_positives: float) -> float:
    true_positives = positives - missed
    recall = 1 - missed / positives
    precision = true_positives / (true_positives + false_positives + EPS)
    return 2 * recall * precision / (recall + precision + EPS)


def _sum_by_distance(levels: NDArray[np.uint8], mask: Mask, low: int) -> Floats:
    """Return the sums of the levels above the lowest, by squared distance from the object, which are whole numbers."""
    size = WEIGHT_REACH * WEIGHT_REACH + 2
    if compiled.takes_pictures(levels, mask):
        sums = np.zeros(size, np.int64)
        compiled.native.sum_by_distance(levels, mask, sums, *levels.shape, WEIGHT_REACH, low)
        return sums.astype(np.float64)
    above = levels - np.uint8(low)
    distance = distance_squared(mask, WEIGHT_REACH)
    return np.asarray(np.bincount(distance.ravel(), (above * ~mask).ravel(), size), np.float64)


def _missed(error: Floats, mask: Mask) -> float:
    """Return the sum of the errors on the object, or of the blurred errors where these are smaller."""
    total = 0
    for rows in row_chunks(mask.shape):
        around = _around(rows)
        own = rows.start - around.start
        least = _least_error(error[around], mask[around])[own : own + rows.stop - rows.start]
        units = (least * 2.0**ERROR_BITS + 0.5).astype(np.int64)
        # in two parts, whose sums do not overflow
        total += (int((units >> LOW_BITS).sum()) << LOW_BITS) + int((units & ((1 << LOW_BITS) - 1)).sum())
    return total / 2.0**ERROR_BITS


def _missed_of_levels(levels: NDArray[np.uint8], mask: Mask, errors: Floats) -> float:
    """Do the same for levels, whose errors are given."""
    if not compiled.takes_pictures(levels, mask):
        return _missed(errors[levels], mask)
    total = 0
    for rows in row_chunks(mask.shape):
        around = _around(rows)
        part, own = mask[around], rows.start - around.start
        arrays = levels[around], part, errors, HALF_GAUSSIAN, *part.shape, own, own + rows.stop - rows.start
        high, low = compiled.native.missed(*arrays)
        total += (high << LOW_BITS) + low
    return total / 2.0**ERROR_BITS


def _around(rows: slice) -> slice:
    return slice(max(rows.start - CHUNK_MARGIN, 0), rows.stop + CHUNK_MARGIN)


def _least_error(errors: Floats, mask: Mask) -> Floats:
    """Return the error on the object, or the blurred error where it is smaller."""
    truth = np.ascontiguousarray(mask)
    error = np.ascontiguousarray(errors) * truth
    spread = error.copy()
    pixels, nearest = nearest_sources(truth, GAUSSIAN_REACH)
    spread.ravel()[pixels] = error.ravel()[nearest]
    return np.asarray(np.minimum(error, _blur(spread)))


def _blur(values: Floats) -> Floats:
    """Apply the Gaussian filter, with zeros around the map: along columns, then along rows.

    The order of operations is that of the compiled version.
    """
    padded = np.pad(values, GAUSSIAN_REACH)
    for axis in (0, 1):
        lines, count = np.moveaxis(padded, axis, 0), values.shape[axis]
        at = [lines[shift : shift + count] for shift in range(2 * GAUSSIAN_REACH + 1)]
        blurred = HALF_GAUSSIAN[0] * at[GAUSSIAN_REACH]
        for shift in range(1, GAUSSIAN_REACH + 1):
            pair = at[GAUSSIAN_REACH - shift] + at[GAUSSIAN_REACH + shift]
            pair *= HALF_GAUSSIAN[shift]
            blurred += pair
        padded = np.moveaxis(blurred, 0, axis)
    return padded
