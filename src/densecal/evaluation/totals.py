"""The sums of an evaluation, added up over pairs and processes, and the record made from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.evaluation.record import (
    Calibration,
    ClassCurve,
    ConfidenceHistogram,
    Curve,
    Entropy,
    Joint,
    Record,
    RecordSettings,
    Reliability,
    SegmentationCurves,
    SkippedFile,
    Thresholds,
)
from densecal.evaluation.worker import FEW_LEVELS, Findings, Part, Settings
from densecal.metrics.entropy import EntropySums
from densecal.metrics.exact import ExactSums
from densecal.metrics.segmentation import ConfusionMeter, SegmentationMeter

if TYPE_CHECKING:
    from densecal.metrics.calibration import CalibrationMeter, CalibrationResult
    from densecal.metrics.curves import ReliabilityCurve

JOINT_CELLS = 100
"""The joint density of confidence and accuracy is kept on a grid of this many cells per side."""
_COMMON = 0.9
"""Share of maps with the same fault from which on there is a warning."""


class Total:
    """The sum of the parts of an evaluation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter: CalibrationMeter = settings.calibration_meter()
        self.segmentation = ExactSums()
        """Sums of the states of a ``SegmentationMeter``, or of a ``ConfusionMeter`` for K classes."""
        self.findings = Findings()
        self.entropy = EntropySums()
        self.stems: list[str] = []

    @property
    def uses_fine_bins(self) -> bool:
        """Whether float maps are summarised in fine bins."""
        return self.meter.sketch.is_binned

    def add(self, part: Part) -> None:
        """Add the sums of some pairs."""
        self.stems += part.stems
        self.findings.add(part.findings)
        self.entropy.merge(part.entropy)
        sketch = self.meter.sketch
        before = len(sketch.rows)
        float_rows: Iterator[Any] = iter(())
        if part.floats is not None:
            meter = self.settings.calibration_meter()
            meter.load_state_dict(part.floats)
            float_rows = iter(meter.sketch.image_rows())
            sketch.merge(meter.sketch)
        for counts in part.levels.values():
            sketch.add_levels(counts)
        # rows in the order of the files, integer and float maps mixed
        integer_rows = iter(part.rows)
        ordered = [next(float_rows if is_float else integer_rows) for is_float in part.is_float]
        del sketch.rows[before:]
        if ordered:
            sketch.add_rows(np.stack(ordered))
        self.segmentation.add(part.segmentation)

    def merge(self, other: Total) -> None:
        """Add the sums of other pairs, which come after those here."""
        self.stems += other.stems
        self.findings.add(other.findings)
        self.entropy.merge(other.entropy)
        self.meter.merge(other.meter)
        self.segmentation.merge(other.segmentation)

    def record(self, name: str, dataset: str, skipped: Iterable[SkippedFile] = ()) -> Record:
        """Compute every figure."""
        result = self.meter.compute()
        scores, curves = self._segmentation()
        return Record(
            name=name,
            dataset=dataset,
            images=len(self.stems),
            pixels=result.pixels,
            skipped=tuple(skipped),
            warnings=tuple(warnings_of(self.findings, self.settings)),
            calibration=calibration_of(result),
            segmentation=scores,
            reliability=_reliability(result),
            joint=_joint(result),
            settings=RecordSettings(self.settings.bins, self.settings.classes, self.settings.ignore_index),
            thresholds=_thresholds(result) if self.settings.binary else None,
            curves=curves,
            entropy=self._entropy() if self.settings.entropy else None,
        )

    def _entropy(self) -> Entropy:
        return Entropy(_integers(self.entropy.histogram), tuple(self.entropy.images))

    def _segmentation(self) -> tuple[dict[str, float | tuple[float, ...]], SegmentationCurves | None]:
        """Return the scores, and for foreground maps their curves over thresholds."""
        if not self.settings.binary:
            confusion = ConfusionMeter(self.settings.classes or 1)
            confusion.load_state_dict(self.segmentation.values())
            listed = confusion.compute().as_dict()
            return {key: tuple(v) if isinstance(v, list) else v for key, v in listed.items()}, None
        meter = SegmentationMeter(full=self.settings.full and self.settings.ignore_index is None)
        meter.load_state_dict(self.segmentation.values())
        scores = meter.compute()
        curves = (getattr(scores, name).tolist() for name in ("precision", "recall", "f_curve", "e_curve"))
        return {**scores.as_dict()}, SegmentationCurves(*map(tuple, curves))


def warnings_of(findings: Findings, settings: Settings) -> list[str]:
    """Return warnings about maps and masks that look wrong."""
    maps, warnings = findings.maps, []
    if settings.binary and settings.ignore_index is not None and not findings.foreground:
        warnings.append(
            f"no mask holds foreground: is {settings.ignore_index}, given as void, the value of the foreground?"
        )
    if maps >= 2 and findings.stretched >= _COMMON * maps:
        warnings.append(
            f"{findings.stretched} of {maps} maps span exactly 0 to 1 with few pixels at the top: they look min-max "
            "normalised image by image, which destroys their confidence; evaluate the raw probabilities"
        )
    if findings.both_classes and findings.inverted > 2 / 3 * findings.both_classes:
        warnings.append(
            f"{findings.inverted} of {findings.both_classes} maps are darker on the foreground than on the "
            "background: they look inverted; expected the probability of foreground"
        )
    if maps and findings.few_levels > 0.5 * maps:
        warnings.append(
            f"{findings.few_levels} of {maps} maps hold fewer than {FEW_LEVELS} grey levels: they look thresholded or "
            "quantised; their confidences are not those of the model"
        )
    if findings.grey_masks:
        warnings.append(
            f"{findings.grey_masks} masks hold values other than 0 and 255: they were cut at > 127, for segmentation "
            "scores at > 128"
        )
    if findings.resized:
        warnings.append(
            f"{findings.resized} maps differ in size from their mask: they were resized to the mask bilinearly"
        )
    return warnings


def calibration_of(result: CalibrationResult) -> Calibration:
    """Return the figures of a meter as a record has them."""
    figures = result.as_dict()
    ci = figures.pop("ci")
    return Calibration(figures, {name: (low, high) for name, (low, high) in ci.items()})


def _reliability(result: CalibrationResult) -> Reliability:
    """Return the curves of the reliability diagrams and the confidence histogram."""
    from densecal.metrics.curves import Atoms

    top = Atoms.from_counts(*result.sketch.top_atoms())
    cell = _cells(top.value)
    pixels, correct = (np.bincount(cell, amount, JOINT_CELLS) for amount in (top.count, top.hits))
    foreground = result.reliability_foreground
    return Reliability(
        result.sketch.bins,
        *_curve(result.reliability),
        ConfidenceHistogram(_integers(pixels), _integers(correct)),
        tuple(ClassCurve(*_curve(curve), curve.ece) for curve in result.classwise),
        None if foreground is None else Curve(*_curve(foreground)),
    )


def _curve(curve: ReliabilityCurve) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    return _integers(curve.count), tuple(curve.confidence.tolist()), tuple(curve.accuracy.tolist())


def _integers(counts: NDArray[Any]) -> tuple[int, ...]:
    return tuple(counts.astype(int).tolist())


def _thresholds(result: CalibrationResult) -> Thresholds:
    """Count pixels called foreground, p > t, at t = 0, 0.01, ..., 1, in raw maps with all images pooled."""
    from densecal.metrics.curves import Atoms

    p = Atoms.from_counts(*result.sketch.class_atoms(0))
    up_to = np.searchsorted(p.value, np.arange(JOINT_CELLS + 1) / JOINT_CELLS, side="right")
    pixels, positives = (np.concatenate([[0], np.cumsum(amount)]) for amount in (p.count, p.hits))
    tp = positives[-1] - positives[up_to]
    fp = pixels[-1] - pixels[up_to] - tp
    return Thresholds(tuple(tp.tolist()), tuple(fp.tolist()), int(positives[-1]), int(pixels[-1] - positives[-1]))


def _joint(result: CalibrationResult) -> Joint:
    """Count images by mean confidence and accuracy."""
    confidence, accuracy = result.image_points()
    cells, counts = np.unique(np.stack([_cells(confidence), _cells(accuracy)], axis=1), axis=0, return_counts=True)
    return Joint(
        JOINT_CELLS,
        tuple((int(x), int(y), int(n)) for (x, y), n in zip(cells, counts, strict=True)),
        float(confidence.mean()),
        float(accuracy.mean()),
        math.sqrt(float(np.mean((confidence - accuracy) ** 2))),
    )


def _cells(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which of the equal cells of [0, 1] holds each value; 1.0 is in the last."""
    return np.asarray(np.minimum((values * JOINT_CELLS).astype(np.int64), JOINT_CELLS - 1))
