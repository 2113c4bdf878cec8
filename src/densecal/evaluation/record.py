"""The record: every figure of one method on one data set, written to JSON and read back.

Reports, benchmarks and comparisons take records and nothing else. A record is never changed; `dataclasses.replace`
makes a new one. Figures are fractions. Values that could not be computed are NaN in a record and null in a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.evaluation.case_figures import Cases
from densecal.evaluation.codec import decode, encode
from densecal.evaluation.measures import Consistency, Interval, Region, SmoothDiagram
from densecal.metrics.class_tables import ClassFigures
from densecal.metrics.cost import ExpectedCost

SCHEMA = 2
"""Version of the layout of the JSON. densecal 0.1 wrote the same layout without it."""

VALIDATION = "validation"
"""Name of the data set of a run's own validation images."""


@dataclass(frozen=True)
class Calibration(Mapping[str, float]):
    """Calibration figures by name.

    Attributes:
        figures: The figures.
        ci: 95 % intervals of some of them.
    """

    figures: Mapping[str, float] = dataclasses.field(metadata={"flat": True})
    ci: Mapping[str, Interval]

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)


def known_interval(ci: Mapping[str, Interval], name: str) -> Interval | None:
    """Return the interval of a figure, or None if there is none or, with a single image, it is NaN."""
    low, high = ci.get(name, (math.nan, math.nan))
    return None if math.isnan(low) or math.isnan(high) else (low, high)


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Curve:
    """Bins of a reliability diagram: pixels, mean confidence and accuracy of each."""

    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class ClassCurve(Curve):
    """The curve of one class: its probability, how often it is correct, and its figures."""

    ece: float = math.nan
    figures: ClassFigures | None = None


@dataclass(frozen=True)
class TopKCurve(Curve):
    """The curve of the k most probable classes together.

    Attributes:
        k: Number of classes.
        hit_rate: Share of the pixels whose true class is among them.
        probability: Mean of their probability.
        ece: Calibration error.
        oe: Its over-confident part.
    """

    k: int = 0
    hit_rate: float = math.nan
    probability: float = math.nan
    ece: float = math.nan
    oe: float = math.nan


@dataclass(frozen=True)
class ConfidenceHistogram:
    """Pixels, and correct pixels, in a hundred bins of confidence."""

    count: tuple[int, ...]
    correct: tuple[int, ...]


@dataclass(frozen=True)
class Reliability:
    """The curves of the reliability diagrams. ``count``, ``confidence``, ``accuracy``: of the winning class."""

    bins: int
    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    histogram: ConfidenceHistogram
    classes: tuple[ClassCurve, ...]
    foreground: Curve | None = None
    smooth: SmoothDiagram | None = None
    smooth_foreground: SmoothDiagram | None = None
    consistency: Consistency | None = None
    top_k: tuple[TopKCurve, ...] = ()

    @property
    def curve(self) -> Curve:
        """The curve of the winning class."""
        return Curve(self.count, self.confidence, self.accuracy)


@dataclass(frozen=True)
class Joint:
    """Images in the plane of mean confidence and accuracy.

    Attributes:
        cells: Cells per side of a grid on [0, 1].
        counts: Occupied cells: confidence, accuracy, images.
        mean_confidence: Mean over images.
        mean_accuracy: Mean over images.
        spread: Root mean square distance of accuracy from confidence.
    """

    cells: int = dataclasses.field(metadata={"bounds": (0, 10_000)})
    counts: tuple[tuple[int, ...], ...]
    mean_confidence: float
    mean_accuracy: float
    spread: float


@dataclass(frozen=True)
class Thresholds:
    """Pixels called foreground, p > t, at t = 0, 0.01, ..., 1: raw maps, all images pooled."""

    true_positives: tuple[int, ...]
    false_positives: tuple[int, ...]
    positives: int
    negatives: int


@dataclass(frozen=True)
class SegmentationCurves:
    """Scores over 256 thresholds of min-maxed maps, by PySODMetrics' conventions."""

    precision: tuple[float, ...]
    recall: tuple[float, ...]
    f_curve: tuple[float, ...]
    e_curve: tuple[float, ...]


@dataclass(frozen=True)
class Entropy:
    """Entropy as a share of its maximum.

    Attributes:
        histogram: Pixels in a hundred bins.
        images: Mean per image, NaN for an image without valid pixels.
        mean: Mean over images.
    """

    histogram: tuple[int, ...]
    images: tuple[float, ...]
    mean: float | None = None


@dataclass(frozen=True)
class LogitCounts:
    """Pixels by label in equal bins of the logit of the foreground probability, from -limit to limit."""

    limit: float
    background: tuple[int, ...]
    foreground: tuple[int, ...]


@dataclass(frozen=True)
class Repair:
    """What a temperature does on images that it was not fitted on.

    Attributes:
        temperature: The temperature fitted on all images.
        images: Number of images.
        ece_before: Their ECE.
        ece_after: Their ECE when each half is repaired with the temperature fitted on the other half.
    """

    temperature: float
    images: int
    ece_before: float
    ece_after: float


@dataclass(frozen=True)
class TwoHistograms:
    """A quantity in and out of distribution, each in a hundred bins."""

    inside: tuple[int, ...] = dataclasses.field(metadata={"key": "in"})
    outside: tuple[int, ...] = dataclasses.field(metadata={"key": "out"})


@dataclass(frozen=True)
class OutOfDistribution:
    """The same method on images without any object.

    Attributes:
        dataset: Name of the set out of distribution.
        auroc: How well the mean entropy of an image separates the two sets.
        fpr95: False-positive rate at a true-positive rate of 95 %.
        entropy: Histograms of both sets.
        confidence: Histograms of both sets.
        record: The evaluation out of distribution.
    """

    dataset: str
    auroc: float
    fpr95: float
    entropy: TwoHistograms
    confidence: TwoHistograms
    record: Record


@dataclass(frozen=True)
class RecordSettings:
    """The settings on which the figures depend, and the names of the classes."""

    bins: int = dataclasses.field(metadata={"bounds": (1, 1_000_000)})
    classes: int | None = dataclasses.field(metadata={"bounds": (1, 255)})
    ignore_index: int | None = dataclasses.field(metadata={"bounds": (0, 255)})
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """Every figure of one method on one data set.

    Attributes:
        name: Name of the method.
        dataset: Name of the data set.
        images: Number of scored images.
        pixels: Number of valid pixels.
        skipped: Files that were left out.
        warnings: What looks wrong with the maps or masks.
        calibration: Calibration figures by name, and intervals of some of them.
        segmentation: Scores by name; scores per class are tuples. Empty if no image has foreground.
        segmentation_ci: 95 % intervals of the mean scores per image.
        reliability: Curves of the reliability diagrams.
        joint: Images by mean confidence and accuracy.
        settings: Bins, classes and the value of void pixels.
        thresholds: Counts over thresholds of raw maps; foreground maps only.
        curves: Scores over thresholds of min-maxed maps; foreground maps only.
        entropy: Entropy of pixels and images, if requested.
        ood: The same method on sets out of distribution.
        calibrator: In benchmarks: the calibrator behind the model, "none" for the uncalibrated model.
        more_bins: In benchmarks: the calibration figures for other numbers of bins.
        groups: Number of groups of images (patients, videos), where intervals resample groups.
        logits: Pixels by label and logit; foreground maps only.
        repair: What a temperature does on images that it was not fitted on; foreground maps only.
        cases: Scores of cases, and whether confidence finds those that fail.
        regions: Figures near boundaries and far from them, of images with small objects, and of hard images.
        costs: Costs of acting on the foreground, or on each class, at given prices of errors.
    """

    name: str
    dataset: str
    images: int
    pixels: int
    skipped: tuple[SkippedFile, ...]
    warnings: tuple[str, ...]
    calibration: Calibration
    segmentation: Mapping[str, float | tuple[float, ...]]
    reliability: Reliability
    joint: Joint
    settings: RecordSettings = RecordSettings(10, None, None)
    segmentation_ci: Mapping[str, Interval] | None = None
    thresholds: Thresholds | None = None
    curves: SegmentationCurves | None = None
    entropy: Entropy | None = None
    ood: tuple[OutOfDistribution, ...] = ()
    calibrator: str | None = None
    more_bins: Mapping[str, Calibration] | None = None
    groups: int | None = None
    logits: LogitCounts | None = None
    repair: Repair | None = None
    cases: Cases | None = None
    regions: tuple[Region, ...] = ()
    costs: tuple[ExpectedCost, ...] = ()

    def figure(self, section: str, key: str) -> float:
        """Return a figure of ``calibration`` or ``segmentation``; NaN if the record does not have it."""
        value = getattr(self, section).get(key, math.nan)
        return value if isinstance(value, int | float) else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain dictionaries, lists and numbers."""
        content: dict[str, Any] = encode(self)
        return {"schema": SCHEMA, **content}

    @classmethod
    def from_json(cls, content: Any, where: str | Path) -> Record:
        """Make a record from parsed JSON, and check it.

        Args:
            content: What `to_json` returned, or an evaluation that version 0.1 wrote. Unknown keys are ignored.
            where: The file; errors name it and the key.

        Raises:
            InputError: A key is missing or has an invalid value.
        """
        schema = content.get("schema", SCHEMA) if isinstance(content, dict) else SCHEMA
        if schema != SCHEMA:
            raise InputError(f"{where}: schema", repr(schema), f"{SCHEMA}, the layout that this densecal reads")
        record: Record = decode(cls, content, where)
        return record


@dataclass(frozen=True)
class PairedDifference:
    """Figures of method ``a`` minus those of ``b`` on the same images, with 95 % intervals."""

    dataset: str
    a: str
    b: str
    difference: Mapping[str, float]
    ci: Mapping[str, Interval]


def to_file(records: Sequence[Record], paired: Sequence[PairedDifference] = ()) -> dict[str, Any]:
    """Return the content of an evaluation file: one record, or several and their differences."""
    if len(records) == 1:
        return records[0].to_json()
    return {"evaluations": [record.to_json() for record in records], "paired": [encode(pair) for pair in paired]}


def from_file(content: Any, where: str | Path) -> tuple[list[Record], list[PairedDifference]]:
    """Read the content of an evaluation file, as `to_file` returns it.

    Raises:
        InputError: A key is missing or has an invalid value.
    """
    if not isinstance(content, dict) or "evaluations" not in content:
        return [Record.from_json(content, where)], []
    records = decode(tuple[dict[str, Any], ...], content["evaluations"], where, "evaluations")
    paired = content.get("paired", [])
    return (
        [Record.from_json(record, f"{where}: evaluations.{i}") for i, record in enumerate(records)],
        list(decode(tuple[PairedDifference, ...], paired, where, "paired")),
    )
