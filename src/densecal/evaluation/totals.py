"""The sums of an evaluation, added up over pairs and processes, and the record made from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.evaluation.case_figures import Cases
from densecal.evaluation.cases import case_scores
from densecal.evaluation.findings import FEW_LEVELS, Findings
from densecal.evaluation.image_sums import FEW_GROUPS, JOINT_CELLS, MOST_KEPT, ImageSums, cells_of
from densecal.evaluation.measures import Consistency, Region, SmoothDiagram, expected_costs
from densecal.evaluation.per_image import PerImage
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
    TopKCurve,
)
from densecal.evaluation.worker import Part, Settings
from densecal.io.masks import one_sided
from densecal.metrics.bootstrap import intervals
from densecal.metrics.confusion import ConfusionMeter
from densecal.metrics.consistency import Consistency as ConsistencyBands
from densecal.metrics.consistency import consistency
from densecal.metrics.cost import ExpectedCost
from densecal.metrics.entropy import EntropySums
from densecal.metrics.exact import ExactSums
from densecal.metrics.overlap import overlap_intervals, overlap_means
from densecal.metrics.regions import regions
from densecal.metrics.segmentation import SegmentationMeter

if TYPE_CHECKING:
    from densecal.metrics.calibration import CalibrationMeter
    from densecal.metrics.calibration_result import CalibrationResult
    from densecal.metrics.curves import ReliabilityCurve

_COMMON = 0.9
"""Share of maps with the same fault at which a warning is given."""


class Total:
    """The sums of an evaluation.

    Args:
        settings: How the images are scored.
        grouped: Whether images are grouped, so that parts are added with their groups.
    """

    def __init__(self, settings: Settings, grouped: bool = False) -> None:
        self.settings = settings
        self.meter: CalibrationMeter = settings.calibration_meter()
        self.segmentation = ExactSums()
        """Sums of the states of a ``SegmentationMeter``, or of a ``ConfusionMeter`` for K classes."""
        self.findings = Findings()
        self.entropy = EntropySums()
        self.folds = settings.fold_sums()
        self.per_image = PerImage()
        self.stems: list[str] = []
        self.groups: list[str] | None = [] if grouped else None
        """The group of every image, if images are grouped."""
        self.sums: ImageSums | None = None
        """Sums over images, in place of ``stems``, ``groups``, ``per_image`` and the rows of ``meter``, if too many."""
        self.highest: dict[int, int] = {}
        """Highest level of the 8- and 16-bit maps, by the number of levels of their type."""

    @property
    def uses_fine_bins(self) -> bool:
        """Whether float maps are summarised in fine bins."""
        return self.meter.sketch.is_binned

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.stems) + (0 if self.sums is None else self.sums.images)

    def add(self, part: Part, groups: Sequence[str] = ()) -> None:
        """Add the sums of some pairs.

        Args:
            part: The sums.
            groups: The groups of its images, if images are grouped.
        """
        self.stems += part.stems
        if self.groups is not None:
            self.groups += groups
        self.findings.add(part.findings)
        self.entropy.merge(part.entropy)
        self.folds.merge(part.folds)
        self.per_image.extend(part.per_image)
        sketch = self.meter.sketch
        float_rows: Iterator[Any] = iter(())
        if part.floats is not None:
            rows = part.floats["rows"]
            float_rows = iter(rows)
            meter = self.settings.calibration_meter()
            meter.load_state_dict({**part.floats, "rows": rows[:0]})
            sketch.merge(meter.sketch)
        for levels, counts in part.levels.items():
            sketch.add_levels(counts)
            self._note_highest(levels, int(np.flatnonzero(counts.sum(axis=(0, 1))).max(initial=0)))
        # rows in the order of the files, integer and float maps mixed
        integer_rows = iter(part.rows)
        ordered = [next(float_rows if is_float else integer_rows) for is_float in part.is_float]
        if ordered:
            sketch.add_rows(np.stack(ordered))
        self.segmentation.merge(part.segmentation)
        self._sum_many()

    def merge(self, other: Total) -> None:
        """Append the sums of other pairs."""
        self.stems += other.stems
        if self.groups is not None:
            self.groups += other.groups or ()
        self.findings.add(other.findings)
        self.entropy.merge(other.entropy)
        self.folds.merge(other.folds)
        self.per_image.extend(other.per_image)
        self.meter.merge(other.meter)
        self.segmentation.merge(other.segmentation)
        for levels, highest in other.highest.items():
            self._note_highest(levels, highest)
        if other.sums is not None:
            self.sums = self.sums or ImageSums(self.settings.bins)
            self.sums.merge(other.sums)
        self._sum_many()

    def _sum_many(self) -> None:
        """Add up the images once there are too many to keep each, which only their total number decides."""
        if not self.stems or (self.sums is None and len(self.stems) <= MOST_KEPT):
            return
        rows = self.meter.sketch.rows
        self.sums = self.sums or ImageSums(self.settings.bins)
        self.sums.add(self.stems, rows.array(), self.per_image["overlaps"], self.groups)
        self.stems = []
        if self.groups is not None:
            self.groups = []
        self.per_image.clear()
        rows.clear()

    def _note_highest(self, levels: int, highest: int) -> None:
        self.highest[levels] = max(highest, self.highest.get(levels, 0))

    def sort(self) -> None:
        """Put the images in the order of their names."""
        if self.sums is not None:
            return
        order = sorted(range(len(self.stems)), key=self.stems.__getitem__)
        self.meter.sketch.rows.reorder(order)
        self.stems = [self.stems[i] for i in order]
        if self.groups is not None:
            self.groups = [self.groups[i] for i in order]
        self.per_image.select(order)
        if self.settings.entropy:
            self.entropy.images = [self.entropy.images[i] for i in order]

    def segmentation_meter(self) -> SegmentationMeter | ConfusionMeter:
        """Return an empty meter whose sums are those of ``segmentation``."""
        if not self.settings.binary:
            return ConfusionMeter(self.settings.classes or 1)
        return SegmentationMeter(full=self.has_structure)

    @property
    def has_structure(self) -> bool:
        """Whether S-measure and weighted F exist, which need pictures without void pixels."""
        whole = self.settings.ignore_index is None and not (self.findings.volumes or self.findings.voided)
        return self.settings.full and whole

    def record(self, name: str, dataset: str, skipped: Iterable[SkippedFile] = ()) -> Record:
        """Compute every figure.

        Args:
            name: Name of the method.
            dataset: Name of the data set.
            skipped: Files that were left out.
        """
        groups, sums = self.groups, self.sums
        result = self._result()
        scores, curves = self._segmentation()
        halves = self.folds.halves() if self.settings.binary else None
        if sums is None:
            names = self.stems if groups is None else groups
            units = len({name for name, pixels in zip(names, result.rows[:, 0], strict=True) if pixels > 0})
            ci = result.ci if groups is None else intervals(result.rows, groups)
            column = self.per_image["overlaps"]
            overlaps, overlaps_ci = overlap_means(column), overlap_intervals(column, groups)
            bands, joint = consistency(result.rows, result.reliability, groups), _joint(result)
        else:
            units = result.images if groups is None else len(sums.groups)
            ci, (overlaps, overlaps_ci) = sums.intervals(), sums.overlaps()
            bands, joint = sums.consistency(result.reliability), sums.joint()
        return Record(
            name=name,
            dataset=dataset,
            images=self.images,
            pixels=result.pixels,
            skipped=tuple(skipped),
            warnings=(
                *self._label_warnings(),
                *warnings_of(self.findings, self.settings),
                *_unit_warnings(units, groups is not None),
                *(_sum_warnings(units, groups is not None) if sums is not None else ()),
            ),
            calibration=Calibration(result.scalars(), {**ci, **self._fold_intervals(result)}),
            segmentation={**scores, **overlaps},
            segmentation_ci=overlaps_ci,
            reliability=_reliability(result, bands),
            joint=joint,
            settings=RecordSettings(
                self.settings.bins, self.settings.classes, self.settings.ignore_index, self.settings.class_names
            ),
            thresholds=_thresholds(result) if self.settings.binary else None,
            curves=curves,
            entropy=self._entropy() if self.settings.entropy else None,
            groups=None if groups is None else units,
            logits=None if halves is None else halves.logit_counts(),
            # images of one group may be in both halves
            repair=halves.repair(self.settings.bins) if halves is not None and groups is None else None,
            cases=self._cases() if sums is None else None,
            regions=self._regions(result.rows) if sums is None else (),
            costs=self._costs(result),
        )

    def _fold_intervals(self, result: CalibrationResult) -> dict[str, tuple[float, float]]:
        """Return the intervals of the figures that need folds, if the folds hold all pixels."""
        from densecal.metrics.fold_intervals import fold_intervals

        folds = self.folds.table()
        if folds[:, 0, :2].sum() != result.pixels:
            return {}
        return fold_intervals(folds, result.scalars(), self.settings.bins)

    def _result(self) -> CalibrationResult:
        """Return the calibration figures."""
        from densecal.metrics.calibration_result import CalibrationResult

        sketch = self.meter.sketch
        return self.meter.compute() if self.sums is None else CalibrationResult.from_sketch(sketch, self.sums.table)

    def _cases(self) -> Cases | None:
        """Return the scores of cases, if they were kept."""
        if "cases" not in self.per_image:
            return None
        volumes = self.findings.volumes > 0
        rows, confidences = self.per_image["cases"], self.per_image["confidences"]
        return case_scores(rows, confidences, self.stems, volumes, self.settings.tolerance, self.groups)

    def _regions(self, rows: NDArray[np.float64]) -> tuple[Region, ...]:
        """Return the figures of every region."""
        columns = self.per_image
        zone_rows, sizes = (columns["zones"], columns["sizes"]) if "sizes" in columns else (None, None)
        return tuple(map(Region.of, regions(rows, zone_rows, sizes, self.groups)))

    def _costs(self, result: CalibrationResult) -> tuple[ExpectedCost, ...]:
        """Return the costs of acting on the maps, if prices are given."""
        from densecal.metrics.binned import class_atoms

        if self.settings.prices is None or (self.sums is None and "errors" not in self.per_image):
            return ()
        errors = self.per_image["errors"] if self.sums is None else None
        classes = class_atoms(result.sketch)[1 if self.settings.binary else 0 :]
        return expected_costs(classes, errors, result.rows[:, 0], self.settings.prices, self.groups)

    def _label_warnings(self) -> list[str]:
        """Return a warning if all masks of K classes hold one class."""
        if self.settings.binary:
            return []
        classes = np.flatnonzero(self.segmentation.values()["matrix"].sum(axis=1))
        return [one_sided(int(classes[0]), int(classes[0]), len(self.stems), 2)] if len(classes) == 1 else []

    def _entropy(self) -> Entropy:
        images = self.entropy.images if self.sums is None else np.sort(self.entropy.images).tolist()
        return Entropy(_integers(self.entropy.histogram), tuple(images))

    def _segmentation(self) -> tuple[dict[str, float | tuple[float, ...]], SegmentationCurves | None]:
        """Return the scores, and for foreground maps their curves over thresholds."""
        meter = self.segmentation_meter()
        meter.load_state_dict(self.segmentation.values())
        if isinstance(meter, ConfusionMeter):
            scores_by_name = meter.compute().as_dict()
            return {key: tuple(v) if isinstance(v, list) else v for key, v in scores_by_name.items()}, None
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
    elif findings.masks and findings.masks in (findings.empty_masks, findings.full_masks):
        level = int(findings.full_masks == findings.masks)
        warnings.append(one_sided(level, level, findings.masks))
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
    if findings.unplaced:
        warnings.append(
            f"{findings.unplaced} of {findings.volumes} volumes do not specify the spacing of voxels: their distances "
            "are in voxels, not in mm"
        )
    if findings.voided:
        without = "; S-measure and weighted F need whole pictures" if settings.binary and settings.full else ""
        warnings.append(
            f"{findings.no_data:,} pixels of {findings.voided} images have no data, as their files say, and do not "
            f"count{without}"
        )
    if findings.resized:
        subject = "their logits were" if settings.maps.logits else "they were"
        order = ", before the sigmoid" if settings.binary else ", before the softmax"
        warnings.append(
            f"{findings.resized} maps differ in size from their mask: {subject} resized to the mask bilinearly"
            + (order if settings.maps.logits else "")
        )
    return warnings


def _unit_warnings(units: int, grouped: bool) -> list[str]:
    """Return why there are no intervals, if there is only one image or group."""
    unit = "group" if grouped else "image"
    return [f"only one {unit}: no intervals, because nothing shows how {unit}s differ"] if units == 1 else []


def _sum_warnings(units: int, grouped: bool) -> list[str]:
    """Return what the record lacks because there are too many images to keep each."""
    left_out = "no figures of cases and regions, no intervals of costs"
    warnings = [f"more than {MOST_KEPT:,} images, of which sums are kept: {left_out}"]
    if grouped and 1 < units < FEW_GROUPS:
        warnings.append(f"intervals from {units} groups of so many images are narrower than they should be")
    return warnings


def _reliability(result: CalibrationResult, bands: ConsistencyBands) -> Reliability:
    """Return the curves of the reliability diagrams, the bands of calibrated models, and the histogram."""
    from densecal.metrics.binned import class_atoms, foreground_atoms
    from densecal.metrics.class_tables import class_figures
    from densecal.metrics.curves import Atoms
    from densecal.metrics.smooth import smooth_curve

    classes = class_atoms(result.sketch)
    of_foreground = foreground_atoms(result.sketch, classes)
    top = Atoms.from_counts(*result.sketch.top_atoms())
    cell = cells_of(top.value)
    pixels, correct = np.zeros((2, JOINT_CELLS), np.int64)
    np.add.at(pixels, cell, top.count)
    np.add.at(correct, cell, top.hits)
    foreground = result.reliability_foreground
    return Reliability(
        result.sketch.bins,
        *_curve(result.reliability),
        ConfidenceHistogram(_integers(pixels), _integers(correct)),
        tuple(
            ClassCurve(*_curve(curve), curve.ece, class_figures(atoms, result.sketch.bins))
            for curve, atoms in zip(result.classwise, classes, strict=True)
        ),
        None if foreground is None else Curve(*_curve(foreground)),
        SmoothDiagram.of(smooth_curve(top)),
        None if of_foreground is None else SmoothDiagram.of(smooth_curve(of_foreground)),
        Consistency.of(bands),
        tuple(
            TopKCurve(*_curve(curve), k, curve.mean_accuracy, curve.mean_confidence, curve.ece, curve.oe)
            for k, curve in result.top_k.items()
        ),
    )


def _curve(curve: ReliabilityCurve) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    return _integers(curve.count), tuple(curve.confidence.tolist()), tuple(curve.accuracy.tolist())


def _integers(counts: NDArray[Any]) -> tuple[int, ...]:
    return tuple(counts.astype(int).tolist())


def _thresholds(result: CalibrationResult) -> Thresholds:
    """Count pixels predicted as foreground, p > t, at t = 0, 0.01, ..., 1, in raw maps with all images pooled."""
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
    cells, counts = np.unique(np.stack([cells_of(confidence), cells_of(accuracy)], axis=1), axis=0, return_counts=True)
    return Joint(
        JOINT_CELLS,
        tuple((int(x), int(y), int(n)) for (x, y), n in zip(cells, counts, strict=True)),
        float(confidence.mean()),
        float(accuracy.mean()),
        math.sqrt(float(np.mean((confidence - accuracy) ** 2))),
    )
