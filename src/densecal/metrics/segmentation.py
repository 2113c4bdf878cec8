"""Segmentation scores of foreground maps: F, E, S, weighted F and MAE by PySODMetrics' conventions, IoU and Dice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densecal.io.row_chunks import row_chunks
from densecal.metrics import compiled
from densecal.metrics.exact import ExactSums
from densecal.metrics.locking import locked
from densecal.metrics.min_max import LEVELS, stretch_map
from densecal.metrics.structure import EPS, extent_of, s_measure, s_measure_of, weighted_f, weighted_f_of_levels
from densecal.metrics.sum_meter import SumMeter

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

THRESHOLDS = 256
WAYS = 4
PENDING_MAPS = 32
BETA_SQUARED = 0.3
BYTE_VALUES = np.arange(256) / 255
CURVES = ("precision", "recall", "f_curve", "e_curve")


def count_levels(
    prediction: NDArray[np.unsignedinteger[Any]],
    mask: Mask,
    zones: NDArray[np.integer[Any]] | None = None,
    zone_count: int = 1,
) -> Ints:
    """Return the joint histogram of an integer map and its mask, from which F, E, MAE, IoU and calibration follow.

    Args:
        prediction: Map of L = 256 (uint8) or 65536 (uint16) levels.
        mask: Boolean, of the same shape.
        zones: Zone of each pixel, 0 to ``zone_count - 1``; None puts all pixels into zone 0.
        zone_count: Number of zones.

    Returns:
        int64 (zone_count, 2, L); ``[z, 1, v]`` counts the foreground pixels of level v in zone z.
    """
    if prediction.dtype not in LEVELS:
        raise TypeError(f"prediction: found {prediction.dtype}; expected uint8 or uint16")
    _check_pair(prediction, mask)
    if zones is None and zone_count == 1 and compiled.takes(prediction, mask):
        counts: Ints = np.zeros((1, 2, 256), np.int64)
        compiled.native.count_levels(prediction, mask, counts, prediction.size)
        return counts
    if zones is not None and zone_count <= 4 and compiled.takes(prediction, mask, zones):
        _check_zones(zones, mask, zone_count)
        counts = np.zeros((4, 2, 256), np.int64)
        compiled.native.count_zones(prediction, mask, zones, counts, prediction.size)
        return counts[:zone_count]
    chunks = list(row_chunks(mask.shape))
    if len(chunks) == 1:
        return _count_chunk(prediction, mask, zones, zone_count)
    counts = np.zeros((zone_count, 2, LEVELS[prediction.dtype]), np.int64)
    for rows in chunks:
        counts += _count_chunk(prediction[rows], mask[rows], None if zones is None else zones[rows], zone_count)
    return counts


def count_quadrants(prediction: NDArray[np.uint8], mask: Mask) -> Ints:
    """Apply ``count_levels`` to the four quadrants around the object's centroid.

    Args:
        prediction: (H, W) map of 256 levels.
        mask: Boolean, of the same shape.

    Returns:
        int64 (4, 2, 256).
    """
    y, x = extent_of(mask).cut
    if compiled.takes_pictures(prediction, mask):
        counts: Ints = np.zeros((4, 2, 256), np.int64)
        compiled.native.count_quadrants(prediction, mask, None, counts, None, *mask.shape, y, x)
        return counts
    return count_levels(prediction, mask, _quadrants(mask.shape, y, x), 4)


def count_both_ways(
    prediction: NDArray[np.uint8], mask: Mask, zones: NDArray[np.uint8], zone_count: int
) -> tuple[Ints, Ints]:
    """Return ``count_quadrants``, (4, 2, 256), and ``count_levels`` by zone, (zone_count, 2, 256), of a map (H, W)."""
    y, x = extent_of(mask).cut
    if compiled.takes_pictures(prediction, mask, zones) and zone_count <= 4:
        _check_zones(zones, mask, zone_count)
        counts: Ints = np.zeros((2, 4, 2, 256), np.int64)
        compiled.native.count_quadrants(prediction, mask, zones, counts[0], counts[1], *mask.shape, y, x)
        return counts[0], counts[1, :zone_count]
    quadrants = _quadrants(mask.shape, y, x)
    return count_levels(prediction, mask, quadrants, 4), count_levels(prediction, mask, zones, zone_count)


def _quadrants(shape: tuple[int, ...], y: int, x: int) -> NDArray[np.uint8]:
    """Return the quadrant of every pixel: 0 and 1 above a row and left and right of a column, 2 and 3 below."""
    below, right = np.arange(shape[0]) >= y, np.arange(shape[1]) >= x
    return np.asarray(np.add.outer(2 * below.view(np.uint8), right))


class _Summary(NamedTuple):
    """What counts of levels say at once."""

    low: int
    """The lowest level."""
    high: int
    """The highest."""
    pixels: int
    """Their number."""
    total: int
    """The sum of their levels."""
    empty: int
    """How many rows of counts have none."""


def _summarize(counts: Ints) -> _Summary:
    """Return the summary of the counts (..., 256) of a map of at least one pixel."""
    if compiled.native is not None and counts.flags.c_contiguous:
        return _Summary(*compiled.native.summarize(counts, counts.size // 256))
    rows = counts.reshape(-1, 256)
    pixels = rows.sum(axis=0)
    present, empty = np.flatnonzero(pixels), int((~rows.any(axis=1)).sum())
    return _Summary(int(present[0]), int(present[-1]), int(pixels.sum()), int(pixels @ np.arange(256)), empty)


def _count_chunk(prediction: NDArray[Any], mask: NDArray[Any], zones: NDArray[Any] | None, zone_count: int) -> Ints:
    levels = LEVELS[prediction.dtype]
    bins = zone_count * 2 * levels
    # Most pixels share one bin, where each increment waits for the one before. So neighbours have separate counters.
    ways = WAYS if bins * WAYS <= 65536 else 1
    # Narrow keys: building them is bound by memory bandwidth, and bincount widens them only once.
    dtype = np.dtype(np.uint16 if bins <= 65536 else np.int64)
    key = np.multiply(mask, dtype.type(levels), dtype=dtype)
    key += prediction
    key += (np.arange(mask.shape[-1] if mask.ndim else 1) % ways * bins).astype(dtype)
    if zones is not None:
        _check_zones(zones, mask, zone_count)
        key += np.multiply(zones, dtype.type(2 * levels), dtype=dtype, casting="unsafe")
    return np.asarray(np.bincount(key.ravel(), minlength=ways * bins).reshape(ways, zone_count, 2, levels).sum(axis=0))


def _check_zones(zones: NDArray[Any], mask: Mask, zone_count: int) -> None:
    inside = not zones.size or (zones.max() < zone_count and (zones.dtype.kind == "u" or zones.min() >= 0))
    if zones.shape != mask.shape or not inside:
        raise ValueError(f"zones: found shape {zones.shape}; expected {mask.shape}, 0 to {zone_count - 1}")


@dataclass(frozen=True)
class SegmentationResult:
    """Scores of a set of maps; curves are means over images at the thresholds t = 0..255, rising."""

    f_max: float
    f_mean: float
    f_adaptive: float
    e_max: float
    e_mean: float
    e_adaptive: float
    s_measure: float
    f_weighted: float
    mae: float
    iou: float
    dice: float
    precision: Floats
    recall: Floats
    f_curve: Floats
    e_curve: Floats

    def as_dict(self) -> dict[str, float]:
        """Return the scalars by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in CURVES}


class _Pending(NamedTuple):
    """What is kept of an 8-bit map until it is added with others."""

    quadrants: Ints
    """Its counts by quadrant, (4, 2, 256), or all together, (1, 2, 256)."""
    threshold: float
    """Its adaptive threshold; NaN if the counts tell it."""
    f_weighted: float
    """Its weighted F; NaN if it is added elsewhere with the S-measure, or not measured."""


class SegmentationMeter(SumMeter):
    """Average the scores of any number of maps in constant memory; meters of parts merge into that of the whole.

    Scores follow PySODMetrics 1.6.2: every map is stretched to [0, 1] first (unless constant). IoU and Dice use
    the map as it is, with foreground above one half, over the pixels of all images. Maps without pixels do not count.

    Args:
        full: Also compute S and weighted F, which need the pixels and not only their histogram.
    """

    def __init__(self, full: bool = True) -> None:
        super().__init__()
        self.full = full
        self._sums = ExactSums({
            "images": np.zeros(2, dtype=np.int64),  # with F, E, MAE; with S and weighted F
            "curves": np.zeros((len(CURVES), THRESHOLDS)),
            "scores": np.zeros(3),  # adaptive F, adaptive E, MAE
            "structure": np.zeros(2),  # S, weighted F
            "pooled": np.zeros(3, dtype=np.int64),  # true positives, false positives, false negatives
        })  # fmt: skip
        # Adding 32 maps takes hardly longer than one.
        self._pending: list[_Pending] = []
        self._pending_structure: list[tuple[float, float]] = []

    @locked
    def update(self, prediction: NDArray[Any], mask: Mask, counts: Ints | None = None) -> None:
        """Add one map.

        Args:
            prediction: uint8, uint16, or floats in [0, 1]; (H, W) for a ``full`` meter, else of any shape.
            mask: Boolean, of the same shape.
            counts: Those of a uint8 map, if the caller has them already: (2, 256) from ``count_levels``, or (4, 2, 256)
                from ``count_quadrants``, which a ``full`` meter needs.
        """
        _check_pair(prediction, mask, rows=self.full)
        if mask.size == 0:
            return
        if prediction.dtype != np.uint8:
            self._add_pixels(prediction, mask)
            return
        quadrants = self._by_quadrant(prediction, mask, counts)
        summary = _summarize(quadrants)
        threshold, f_weighted = _tied_threshold(prediction, quadrants, summary), math.nan
        if self.full:
            f_weighted = weighted_f_of_levels(prediction, mask, summary.low, summary.high)
            if summary.empty:  # whether such a quadrant is flat, only its pixels show
                moments = _quadrant_moments(quadrants[None])[0]
                self._add_structure(s_measure(prediction, mask, moments), f_weighted)
                f_weighted = math.nan
        self._pending.append(_Pending(quadrants, threshold, f_weighted))
        if len(self._pending) == PENDING_MAPS:
            self._flush()

    def _by_quadrant(self, prediction: NDArray[np.uint8], mask: Mask, counts: Ints | None) -> Ints:
        """Return the counts of a map by quadrant, (4, 2, 256), or all together if the meter is not ``full``."""
        if self.full:
            return counts if counts is not None and counts.ndim == 3 else count_quadrants(prediction, mask)
        if counts is None:
            return count_levels(prediction, mask)
        return counts[None] if counts.ndim == 2 else counts.sum(axis=0, keepdims=True)

    @locked
    def update_levels(self, counts: Ints) -> None:
        """Add B 8-bit maps at once to a meter that is not ``full``.

        Where twice the mean of a map equals one of its levels, that level counts as above the adaptive threshold.
        ``update``, which sees the pixels, rounds as PySODMetrics does.

        Args:
            counts: (B, 2, 256): per map the one zone of ``count_levels``.
        """
        if counts.ndim != 3 or counts.shape[1:] != (2, 256):
            raise ValueError(f"counts: found shape {counts.shape}; expected (maps, 2, 256)")
        counts = counts[counts.any(axis=(1, 2))]
        self._add_levels(counts, np.full(len(counts), np.nan))

    def _flush(self) -> None:
        if self._pending:
            maps, self._pending = self._pending, []
            quadrants = np.stack([m.quadrants for m in maps])
            if self.full:
                for m, moments in zip(maps, _quadrant_moments(quadrants), strict=True):
                    if not math.isnan(m.f_weighted):
                        self._pending_structure.append((s_measure_of(moments), m.f_weighted))
            self._add_levels(quadrants.sum(axis=1), np.array([m.threshold for m in maps]))
        if self._pending_structure:
            scores, self._pending_structure = np.array(self._pending_structure), []
            self._sums.add({"structure": scores}, axis=0)
            self._sums.add({"images": np.array([0, len(scores)])})

    def _add_structure(self, s: float, f_weighted: float) -> None:
        self._pending_structure.append((s, f_weighted))
        if len(self._pending_structure) == PENDING_MAPS:
            self._flush()

    def _add_levels(self, counts: Ints, thresholds: Floats) -> None:
        """Add B 8-bit maps (B, 2, 256) and their adaptive thresholds (B,), nan where they are to be computed here."""
        maps = len(counts)
        values = _stretch_levels(counts.sum(axis=1))
        k = (values * 255).astype(np.intp) + THRESHOLDS * np.arange(2 * maps).reshape(2, maps, 1)
        pixels = counts.swapaxes(0, 1).astype(np.float64)
        size = pixels.sum(axis=(0, 2))
        # Slightly less than twice the mean, so that a level equal to it counts as above it, whatever the rounding.
        computed = np.minimum(2 * (pixels.sum(axis=0) * values).sum(axis=1) / size, 1) * (1 - 1e-12)
        threshold = np.where(np.isnan(thresholds), computed, thresholds)[:, None]
        bins = np.bincount(k.ravel(), pixels.ravel(), k.size).astype(np.float64, copy=False).reshape(k.shape)
        adaptive = (pixels * (values >= threshold)).sum(axis=2)
        absolute = (pixels[0] * values + pixels[1] * (1 - values)).sum(axis=1) / size
        fp, tp = pixels[:, :, 128:].sum(axis=(1, 2))
        self._add(bins, adaptive, absolute, int(tp), int(fp))

    @locked
    def update_slabs(self, slabs: Callable[[], Iterable[tuple[NDArray[Any], Mask]]]) -> None:
        """Add one map that comes in parts to a meter that is not ``full``.

        Args:
            slabs: Starts a pass over the parts of the map and of its mask, of which there are two.
        """
        low, high, total, size = math.inf, -math.inf, 0.0, 0
        for prediction, _ in slabs():
            scale = LEVELS.get(prediction.dtype, 2) - 1
            if prediction.size:
                low, high = min(low, float(prediction.min()) / scale), max(high, float(prediction.max()) / scale)
                total, size = total + float(prediction.sum(dtype=np.float64)) / scale, size + prediction.size
        if size == 0:
            return
        span = high - low or 1.0
        offset = low if high != low else 0.0
        threshold = min(2 * (total / size - offset) / span, 1.0)
        levels, above, pooled, absolute = np.zeros((2, 1, THRESHOLDS), np.int64), np.zeros(2), np.zeros(2), 0.0
        for prediction, truth in slabs():
            scale = LEVELS.get(prediction.dtype, 2) - 1
            values = ((prediction.astype(np.float64) / scale - offset) / span).clip(0.0, 1.0)
            levels += count_levels((values * 255).astype(np.uint8), truth).swapaxes(0, 1)
            for sums, chosen in ((above, values >= threshold), (pooled, prediction > scale / 2)):
                sums += np.count_nonzero(chosen & ~truth), np.count_nonzero(chosen & truth)
            absolute += float(np.abs(values - truth).sum())
        mae = np.array([absolute / size])
        self._add(levels.astype(np.float64), above[:, None], mae, int(pooled[1]), int(pooled[0]))

    def _add_pixels(self, prediction: NDArray[Any], mask: Mask) -> None:
        """Add one 16-bit or float map."""
        stretched = stretch_map(prediction)
        threshold, half = min(2 * stretched.mean(), 1.0), 32767 if prediction.dtype == np.uint16 else 0.5
        levels = np.zeros((2, 1, THRESHOLDS), np.int64)
        above, foreground = np.zeros((2, 2), np.int64)  # background and foreground pixels
        absolute = 0.0
        for rows in row_chunks(mask.shape):
            values, truth = stretched[rows], mask[rows]
            levels += count_levels((values * 255).astype(np.uint8), truth).swapaxes(0, 1)
            for total, selection in ((above, values >= threshold), (foreground, prediction[rows] > half)):
                total += np.count_nonzero(selection & ~truth), np.count_nonzero(selection & truth)
            absolute += float(np.abs(values - truth).sum())
        mae = np.array([absolute / mask.size])
        self._add(levels.astype(np.float64), above[:, None].astype(np.float64), mae, *map(int, foreground[::-1]))
        if self.full:
            self._add_structure(s_measure(stretched, mask), weighted_f(stretched, mask))

    def _add(self, bins: Floats, adaptive: Floats, absolute: Floats, tp: int, fp: int) -> None:
        """Add B maps, given their pixels at each threshold (2, B, 256) and above the adaptive threshold (2, B)."""
        above = np.concatenate([bins[..., ::-1].cumsum(axis=-1)[..., ::-1], adaptive[..., None]], axis=-1)
        precision, recall, f = f_measure(above)
        e = e_measure(above)
        curves, scores = np.stack([precision, recall, f, e])[..., :-1], np.stack([f[:, -1], e[:, -1], absolute])
        self._sums.add({"curves": curves, "scores": scores}, axis=1)
        pooled = np.array([tp, fp, int(above[1, :, 0].sum()) - tp])
        self._sums.add({"pooled": pooled, "images": np.array([bins.shape[1], 0])})

    @locked
    def compute(self) -> SegmentationResult:
        """Return the scores of all maps so far: S and weighted F are nan without ``full``, IoU without foreground."""
        self._flush()
        sums = self._sums.values()
        images, structure_images = (int(n) for n in sums["images"])
        if images == 0:
            raise ValueError("SegmentationMeter.compute: found no map; expected at least one")
        if self.full and structure_images != images:
            raise ValueError(
                f"SegmentationMeter.compute: found {structure_images} maps with S and weighted F; expected {images}. "
                "update_levels and states without them need SegmentationMeter(full=False)"
            )
        precision, recall, f, e = sums["curves"] / images
        f_adaptive, e_adaptive, mae = (float(score) for score in sums["scores"] / images)
        s, f_weighted = (float(score) if self.full else math.nan for score in sums["structure"] / images)
        tp, fp, fn = (int(n) for n in sums["pooled"])
        return SegmentationResult(
            f_max=float(f.max()),
            f_mean=float(f.mean()),
            f_adaptive=f_adaptive,
            e_max=float(e.max()),
            e_mean=float(e.mean()),
            e_adaptive=e_adaptive,
            s_measure=s,
            f_weighted=f_weighted,
            mae=mae,
            iou=tp / (tp + fp + fn) if tp + fp + fn else math.nan,
            dice=2 * tp / (2 * tp + fp + fn) if tp + fp + fn else math.nan,
            precision=precision,
            recall=recall,
            f_curve=f,
            e_curve=e,
        )


def _stretch_levels(pixels: Ints) -> Floats:
    """Return the values (B, 256) of the levels of 8-bit maps, stretched from the lowest to the highest level in use."""
    occurs = pixels > 0
    low = BYTE_VALUES[occurs.argmax(axis=1)][:, None]
    span = BYTE_VALUES[255 - occurs[:, ::-1].argmax(axis=1)][:, None] - low
    constant = span == 0
    stretched = (BYTE_VALUES - np.where(constant, 0, low)) / np.where(constant, 1, span)
    inside: Floats = np.minimum(np.maximum(stretched, 0), 1)
    return inside


def _tied_threshold(prediction: NDArray[np.uint8], counts: Ints, summary: _Summary) -> float:
    """Return the adaptive threshold as PySODMetrics rounds it if it is one of the map's levels, else nan.

    On which side of the threshold that level falls depends on the order of summation, which only the pixels show.
    """
    low, high, n = summary.low, summary.high, summary.pixels
    level, rest = divmod(2 * (summary.total - n * low), n)
    if rest or low + level >= high or not counts[..., low + level].any():
        return math.nan
    return min(2 * float(stretch_map(prediction).mean()), 1.0)


def f_measure(above: Floats) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and F (Achanta et al., Frequency-tuned salient region detection, CVPR 2009).

    Args:
        above: (2, B, T) background and foreground pixels at or above each threshold; all pixels at the first.
    """
    fp, tp = above
    precision = tp / np.maximum(tp + fp, 1)
    recall = tp / np.maximum(tp[:, :1], 1)
    weighted = BETA_SQUARED * precision + recall
    f = (1 + BETA_SQUARED) * precision * recall / np.where(weighted == 0, 1, weighted)
    return precision, recall, f


def e_measure(above: Floats) -> Floats:
    """Return the E-measure (Fan et al., Enhanced-alignment measure for binary foreground map evaluation, IJCAI 2018).

    Args:
        above: As for ``f_measure``.
    """
    size, positives = above[:, :, :1].sum(axis=0), above[1, :, :1]
    predicted = above.sum(axis=0)
    # First axis: predicted background, foreground; second: true background, foreground.
    pixels = np.stack([above[:, :, :1] - above, above])
    a = np.stack([-predicted / size, 1 - predicted / size])[:, None]
    b = np.stack([-positives / size, 1 - positives / size])[None]
    alignment = 2 * a * b / (a * a + b * b + EPS)
    total = (pixels * (alignment + 1) ** 2).sum(axis=(0, 1)) / 4
    total = np.where(positives == 0, size - predicted, np.where(positives == size, predicted, total))
    e: Floats = total / (size - 1 + EPS)
    return e


def _quadrant_moments(quadrants: Ints) -> Floats:
    """Return the moments (B, 4, 2, 3) of the stretched pixels of B maps, given their counts (B, 4, 2, 256).

    They are those of ``s_measure``, and the same to the last bit whatever maps are computed together.
    """
    values = _stretch_levels(quadrants.sum(axis=(1, 2)))[:, None, None]
    counts = quadrants.astype(np.float64)
    n = counts.sum(axis=3)
    mean = (counts @ values.swapaxes(2, 3))[..., 0] / np.maximum(n, 1)
    squares = (counts * (values - mean[..., None]) ** 2).sum(axis=3)
    return np.stack([n, mean, squares], axis=-1)


def _check_pair(prediction: NDArray[Any], mask: Mask, rows: bool = False) -> None:
    """Raise an error unless the arrays are a map and its mask; with ``rows``, both must be (H, W)."""
    if mask.dtype != bool:
        raise TypeError(f"mask: found {mask.dtype}; expected bool")
    if rows and mask.ndim != 2:
        raise ValueError(f"mask: found shape {mask.shape}; expected (height, width)")
    if prediction.shape != mask.shape:
        raise ValueError(f"prediction: found shape {prediction.shape}; expected {mask.shape}, as the mask")
    if prediction.dtype in LEVELS or mask.size == 0:
        return
    if not np.issubdtype(prediction.dtype, np.floating):
        raise TypeError(f"prediction: found {prediction.dtype}; expected uint8, uint16 or floats in [0, 1]")
    if not (prediction.min() >= 0 and prediction.max() <= 1):
        raise ValueError(f"prediction: found {prediction.min()} to {prediction.max()}; expected 0 to 1")
