"""The work of an evaluation's worker process: read a few pairs of map and mask, score them, return sums."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.evaluation.findings import Findings
from densecal.evaluation.folds import ClassCounter, FoldSums
from densecal.evaluation.large import score_classes, score_foreground
from densecal.evaluation.level_maps import LevelMaps
from densecal.evaluation.measures import errors_at
from densecal.evaluation.per_image import PerImage
from densecal.io import MAX_PIXELS, MAX_SLAB_PIXELS
from densecal.io.map_options import AS_STORED, MapOptions
from densecal.io.masks import VOID
from densecal.io.pairs import ForegroundPair, Pair, pair_files, read_class_pair, read_foreground_pair
from densecal.io.row_chunks import row_chunks
from densecal.io.slabs import LargePair, open_large
from densecal.io.urls import fetch_ahead
from densecal.metrics.cases import case_confidences, class_row, confusion_rows, sum_classes, sum_where
from densecal.metrics.confusion import ConfusionMeter, winners
from densecal.metrics.cost import Prices
from densecal.metrics.entropy import EntropySums
from densecal.metrics.exact import ExactSums
from densecal.metrics.levels import boundary_zones, level_rows
from densecal.metrics.overlap import class_overlap, foreground_overlap, overlap_of
from densecal.metrics.regions import boundary_rows, fill_interior, object_size
from densecal.metrics.segmentation import SegmentationMeter, count_levels

if TYPE_CHECKING:
    from densecal.metrics.calibration import CalibrationMeter

Array = NDArray[Any]


@dataclass(frozen=True)
class Settings:
    """How to score pairs."""

    bins: int = 10
    full: bool = True
    classes: int | None = None
    ignore_index: int | None = None
    max_pixels: int = MAX_PIXELS
    entropy: bool = False
    """Also measure the entropy of foreground maps."""
    class_names: tuple[str, ...] = ()
    maps: MapOptions = AS_STORED
    """How the maps are stored."""
    tolerance: float = 1.0
    """Distance in mm up to which surfaces of volumes count as equal."""
    prices: Prices | None = None
    """Prices of a miss and of a false alarm."""

    max_slab_pixels: int = MAX_SLAB_PIXELS
    """Largest number of pixels in files that are read slab by slab, without full metrics."""

    def open_large(self, pair: Pair, classes: int | None) -> AbstractContextManager[LargePair | None]:
        """Open a pair to be read slab by slab. It has no full metrics, entropy or costs."""
        if self.full or self.entropy or self.prices is not None:
            return nullcontext()
        return open_large(pair, classes, self.max_slab_pixels, self.maps)

    @property
    def binary(self) -> bool:
        """Whether maps hold one foreground probability per pixel."""
        return self.classes in (None, 1)

    def calibration_meter(self) -> CalibrationMeter:
        """Return an empty meter with these settings."""
        from densecal.metrics.calibration import CalibrationMeter

        void = self.ignore_index
        if self.binary and void is not None:
            void = VOID  # the label of void given to the meter, whatever its value in the masks
        return CalibrationMeter(bins=self.bins, num_classes=self.classes or 1, ignore_index=void, boundary=self.full)

    def fold_sums(self) -> FoldSums:
        """Return empty sums of folds, for the foreground, or for every class and the winning class."""
        return FoldSums(1 if self.binary else (self.classes or 1) + 1)


@dataclass
class Part:
    """Sums over some pairs, small enough to send between processes."""

    stems: list[str] = field(default_factory=list)
    bad: list[InputError] = field(default_factory=list)
    """Why pairs could not be scored."""
    findings: Findings = field(default_factory=Findings)
    rows: list[Array] = field(default_factory=list)
    """Rows of the integer maps, one per image."""
    levels: dict[int, Array] = field(default_factory=dict)
    """Level counts (Z, 2, L) of the integer maps, by L."""
    floats: dict[str, Any] | None = None
    """State of the calibration meter of the float maps."""
    is_float: list[bool] = field(default_factory=list)
    segmentation: ExactSums = field(default_factory=ExactSums)
    per_image: PerImage = field(default_factory=PerImage)
    entropy: EntropySums = field(default_factory=EntropySums)
    folds: FoldSums = field(default_factory=FoldSums)
    seconds: float = 0.0
    """How long it took to read and score the pairs."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the rows as one array, which processes exchange faster than many."""
        return vars(self) | {"rows": np.array(self.rows)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, rows=list(state["rows"]))

    def add_case(self, rows: Array, confidences: Array, spacing: tuple[float, ...] | None) -> None:
        """Add the scores of a case, and the size of its voxels."""
        size = math.nan if spacing is None else math.prod(spacing)
        self.per_image.add(cases=rows, confidences=np.concatenate([[size], confidences]))


def score_pairs(pairs: list[Pair], settings: Settings, fold: bool) -> Part:
    """Read and score some pairs.

    Args:
        pairs: The pairs.
        settings: How to score them.
        fold: Summarise float maps in fine bins, because the data set exceeds the limit for exact figures.

    Returns:
        The sums. Pairs that could not be read are listed in ``bad``.
    """
    part, start = Part(), time.perf_counter()
    scorer = _BinaryScorer(settings, part) if settings.binary else _ClassScorer(settings, part)
    for pair in fetch_ahead(pairs, lambda pair: pair_files([pair])):
        try:
            scorer.score(pair)
        except InputError as error:
            part.bad.append(error)
        else:
            part.stems.append(pair.stem)
    scorer.finish(fold)
    part.seconds = time.perf_counter() - start
    return part


class _BinaryScorer:
    """Foreground maps: level counts for integers, the calibration meter for floats."""

    def __init__(self, settings: Settings, part: Part) -> None:
        self.settings, self.part = settings, part
        self.pictures = SegmentationMeter(full=settings.full and settings.ignore_index is None)
        self.pixels = SegmentationMeter(full=False)
        self.meter: CalibrationMeter | None = None
        self.levels = LevelMaps(settings, part)

    def score(self, pair: Pair) -> None:
        settings = self.settings
        with settings.open_large(pair, None) as large:
            if large is not None:
                self._score_large(pair, large)
                return
        read = read_foreground_pair(pair, settings.ignore_index, settings.max_pixels, settings.maps)
        prediction, mask, void, middle = read.prediction, read.mask.foreground, read.mask.void, read.mask.middle
        self.part.findings.resized += read.resized
        self.part.findings.grey_masks += read.mask.grey
        spacing = read.spacing
        # S-measure and weighted F need pictures without void pixels
        segmentation = self.pictures if mask.ndim == 2 and void is None else self.pixels
        self.part.findings.note_no_data(read.no_data)
        self.part.findings.note_space(mask.ndim, spacing)
        zones = boundary_zones(mask, None if void is None else ~void, spacing) if self.settings.full else None
        if zones is not None:
            self.part.per_image.add(sizes=object_size(mask, None if void is None else ~void))
        if settings.prices is not None:
            valid = np.ones(mask.shape, bool) if void is None else ~void
            self.part.per_image.add(errors=errors_at(prediction[valid], mask[valid], settings.prices.threshold)[None])
        # PySODMetrics cuts masks at > 128
        reference = mask if middle is None else mask & ~middle
        if np.issubdtype(prediction.dtype, np.floating):
            counts = self._score_floats(pair, read, zones, reference)
        else:
            counts = self.levels.add(pair.unit, prediction, mask, void, zones, middle, spacing)
            self.part.is_float.append(False)
        if void is not None:
            prediction, reference = prediction[~void], reference[~void]
        segmentation.update(prediction, reference, counts if middle is None and prediction.dtype == np.uint8 else None)
        if pair.mask is not None and prediction.size:
            self.part.findings.masks += 1
            self.part.findings.empty_masks += not counts[..., 1, :].any()
            self.part.findings.full_masks += not counts[..., 0, :].any()

    def _score_large(self, pair: Pair, large: LargePair) -> None:
        meter = self.settings.calibration_meter()
        result = score_foreground(large, meter, self.settings.ignore_index)
        findings, counts = self.part.findings, result.counts
        findings.note_space(len(large.shape), large.spacing)
        findings.note_no_data(large.no_data)
        findings.grey_masks += result.grey
        findings.masks += 1
        findings.empty_masks += not counts[1].any()
        findings.full_masks += not counts[0].any()
        level_findings = Findings()
        level_findings.inspect_levels(counts[None])
        if result.is_float:
            level_findings.stretched *= result.spans
            self.meter = self.meter or self.settings.calibration_meter()
            self.meter.merge(meter)
        else:
            old = self.part.levels.get(counts.shape[1])
            self.part.levels[counts.shape[1]] = counts[None] if old is None else old + counts
            self.part.rows.append(level_rows(counts[None], self.settings.bins)[0])
        findings.add(level_findings)
        self.pixels.merge(result.segmentation)
        self.part.folds.add_map(pair.unit, counts)
        self.part.is_float.append(result.is_float)
        self.part.per_image.add(overlaps=overlap_of(*result.overlap.tolist()))
        row = np.array([*result.row, math.nan, math.nan, result.expected])
        self.part.add_case(row[None], result.confidences, large.spacing)

    def _score_floats(self, pair: Pair, read: ForegroundPair, zones: Array | None, reference: Array) -> Array:
        """Return the counts (2, 65536) of the valid pixels, rounded to 16 bits."""
        prediction, mask, void, spacing = read.prediction, read.mask.foreground, read.mask.void, read.spacing
        settings, valid = self.settings, None if void is None else ~void
        if self.meter is None:
            self.meter = settings.calibration_meter()
        labels = mask.astype(np.uint8)
        if void is not None:
            labels[void] = VOID
        self.meter.ignore_index = None if void is None else VOID  # files may mark void pixels themselves
        self.meter.update(prediction[None, None], labels[None, None], spacing=spacing)
        self._score_case(prediction, mask, valid, spacing)
        if zones is not None:
            self.part.per_image.add(zones=boundary_rows(prediction[None], mask, valid, zones, settings.bins))
        if valid is not None:
            prediction, mask, reference = prediction[valid], mask[valid], reference[valid]
        self.part.findings.inspect_floats(prediction, mask)
        if settings.entropy:
            self.part.entropy.add_map(prediction)
        counts = _word_counts(prediction, mask)
        self.part.folds.add_map(pair.unit, counts)
        self.part.is_float.append(True)
        self.part.per_image.add(overlaps=foreground_overlap(prediction > 0.5, reference))
        return counts

    def _score_case(
        self, prediction: Array, mask: Array, valid: Array | None, spacing: tuple[float, ...] | None
    ) -> None:
        """Compare the foreground of a case with that of its mask."""
        settings = self.settings
        predicted = prediction > 0.5
        confidence = np.maximum(prediction, 1 - prediction)
        shown = predicted if valid is None else predicted & valid
        tolerance = settings.tolerance if settings.full and mask.ndim == 3 else None
        expected = float(prediction.sum(dtype=np.float64)) if valid is None else sum_where(prediction, valid)
        row = class_row(shown, mask, spacing, tolerance, expected)
        self.part.add_case(row[None], case_confidences(confidence, predicted, valid, settings.full), spacing)

    def finish(self, fold: bool) -> None:
        self.levels.score()
        self.part.floats = _meter_state(self.meter, fold)
        _fill_interiors(self.part)
        self.part.segmentation = self.pictures.exact_sums()
        self.part.segmentation.merge(self.pixels.exact_sums())


class _ClassScorer:
    """Softmax maps of K classes."""

    def __init__(self, settings: Settings, part: Part) -> None:
        assert settings.classes is not None
        self.settings, self.part = settings, part
        self.void = VOID if settings.ignore_index is None else settings.ignore_index
        self.confusion = ConfusionMeter(settings.classes)
        self.part.folds = settings.fold_sums()
        self.meter = settings.calibration_meter()

    def score(self, pair: Pair) -> None:
        settings = self.settings
        assert settings.classes is not None
        with settings.open_large(pair, settings.classes) as large:
            if large is not None:
                self._score_large(pair, large)
                return
        read = read_class_pair(pair, settings.classes, self.void, settings.max_pixels, settings.maps)
        prediction, labels = read.prediction, read.labels
        self.part.findings.note_space(labels.ndim, read.spacing)
        self.part.findings.note_no_data(read.no_data)
        self.meter.update(prediction[None], labels[None], spacing=read.spacing)
        predicted, confidence = winners(prediction)
        image, expected = ConfusionMeter(settings.classes), np.zeros(settings.classes)
        counter = ClassCounter(settings.classes)
        for rows in row_chunks(labels.shape):
            image.update(predicted[rows], labels[rows], self.void)
            counter.add(prediction[:, rows], predicted[rows], labels[rows], self.void)
            expected += sum_classes(prediction[:, rows], labels[rows] != self.void)
        self.confusion.merge(image)
        self.part.folds.add_image(pair.unit, counter.counts)
        self._score_case(predicted, confidence, expected, labels, image, read.spacing)
        self.part.per_image.add(overlaps=class_overlap(image))
        if settings.prices is not None:
            valid, threshold = labels != self.void, settings.prices.threshold
            by_class = [errors_at(p[valid], labels[valid] == k, threshold) for k, p in enumerate(prediction)]
            self.part.per_image.add(errors=np.stack(by_class))
        if settings.full:
            valid = labels != self.void
            zones = boundary_zones(labels, valid, read.spacing)
            rows_by_zone = boundary_rows(prediction, labels, valid, zones, settings.bins)
            self.part.per_image.add(zones=rows_by_zone, sizes=object_size(labels, valid))
        self.part.is_float.append(True)
        self.part.findings.resized += read.resized
        self.part.findings.maps += 1

    def _score_large(self, pair: Pair, large: LargePair) -> None:
        assert self.settings.classes is not None
        meter, counter = self.settings.calibration_meter(), ClassCounter(self.settings.classes)
        image, confidences, expected = score_classes(large, meter, counter, self.void)
        self.meter.merge(meter)
        self.part.folds.add_image(pair.unit, counter.counts)
        self.confusion.merge(image)
        self.part.findings.note_space(len(large.shape), large.spacing)
        self.part.findings.note_no_data(large.no_data)
        self.part.findings.maps += 1
        self.part.per_image.add(overlaps=class_overlap(image))
        self.part.is_float.append(True)
        rows = confusion_rows(image.exact_sums().values()["matrix"], expected)
        self.part.add_case(rows, confidences, large.spacing)

    def _score_case(
        self,
        predicted: Array,
        confidence: Array,
        expected: Array,
        labels: Array,
        image: ConfusionMeter,
        spacing: tuple[float, ...] | None,
    ) -> None:
        """Compare the classes of a case with those of its mask; surfaces for volumes, without the background."""
        settings, valid = self.settings, labels != self.void
        assert settings.classes is not None
        rows = confusion_rows(image.exact_sums().values()["matrix"], expected)
        if settings.full and labels.ndim == 3:
            for label in range(1, settings.classes):
                if rows[label, :2].any():
                    masks = (predicted == label) & valid, labels == label
                    rows[label] = class_row(*masks, spacing, settings.tolerance, expected[label])
        self.part.add_case(rows, case_confidences(confidence, predicted, valid, settings.full), spacing)

    def finish(self, fold: bool) -> None:
        self.part.floats = _meter_state(self.meter, fold)
        _fill_interiors(self.part)
        self.part.segmentation = self.confusion.exact_sums()


def _word_counts(prediction: Array, mask: Array) -> Array:
    """Return the counts (2, 65536) of a float map rounded to 16 bits."""
    counts = np.zeros((2, 1 << 16), np.int64)
    for rows in row_chunks(mask.shape):
        words = np.rint(prediction[rows] * 65535.0).astype(np.uint16)
        counts += count_levels(words, mask[rows])[0]
    return counts


def _fill_interiors(part: Part) -> None:
    """Set the zones of float maps far from a boundary to the images minus the other zones."""
    if part.floats is None or "zones" not in part.per_image:
        return
    by_image = zip(part.per_image.entries("zones"), part.is_float, strict=True)
    floats = (zone_rows for zone_rows, is_float in by_image if is_float)
    for zone_rows, row in zip(floats, part.floats["rows"], strict=True):
        fill_interior(zone_rows, row)


def _meter_state(meter: CalibrationMeter | None, fold: bool) -> dict[str, Any] | None:
    if meter is None or not len(meter.sketch.rows):
        return None
    if fold:
        meter.sketch.bin_pixels()
    return meter.state_dict()
