"""The record: every figure of one method on one data set, written to JSON and read back.

Reports, benchmarks and comparisons take records and nothing else. A record is never changed; `dataclasses.replace`
makes another. Figures are fractions. What could not be computed is NaN in a record and null in a file.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.evaluation.case_figures import Cases
from densecal.evaluation.measures import Consistency, ExpectedCost, Interval, Region, SmoothDiagram
from densecal.metrics.class_tables import ClassFigures

SCHEMA = 2
"""Number of the layout of the JSON. Version 0.1 wrote the same layout without a number."""

VALIDATION = "validation"
"""The name of a run's own validation images as a data set."""


@dataclass(frozen=True)
class Calibration(Mapping[str, float]):
    """Calibration figures by name.

    Attributes:
        figures: The figures.
        ci: 95 % intervals of some of them.
    """

    figures: Mapping[str, float]
    ci: Mapping[str, Interval]

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)


def known_interval(ci: Mapping[str, Interval], name: str) -> Interval | None:
    """Return the interval of a figure, or None where it has none or, with one image, it is NaN."""
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
    """The curve of one class: the probability given to it, how often it is right, and its figures."""

    ece: float = math.nan
    figures: ClassFigures | None = None


@dataclass(frozen=True)
class ConfidenceHistogram:
    """Pixels, and correct pixels, in a hundred bins of confidence."""

    count: tuple[int, ...]
    correct: tuple[int, ...]


@dataclass(frozen=True)
class Reliability:
    """The curves behind the reliability diagrams; ``count``, ``confidence``, ``accuracy`` are of the winning class."""

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
        images: How many.
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
    """What the figures depend on besides the data, and what the classes are called."""

    bins: int = dataclasses.field(metadata={"bounds": (1, 1_000_000)})
    classes: int | None = dataclasses.field(metadata={"bounds": (1, 255)})
    ignore_index: int | None = dataclasses.field(metadata={"bounds": (0, 255)})
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """Every figure of one method on one data set.

    Attributes:
        name: Method.
        dataset: Data set.
        images: Images scored.
        pixels: Valid pixels.
        skipped: Files that were left out.
        warnings: What looks wrong with the maps or masks.
        calibration: Calibration figures by name, and the intervals of some.
        segmentation: Scores by name; scores per class are tuples. Empty where no image has foreground.
        segmentation_ci: 95 % intervals of the mean scores per image.
        reliability: Curves of the reliability diagrams.
        joint: Images by mean confidence and accuracy.
        settings: Bins, classes and the value of void pixels.
        thresholds: Counts over thresholds of raw maps; foreground maps only.
        curves: Scores over thresholds of min-maxed maps; foreground maps only.
        entropy: Entropy of pixels and images, where it was asked for.
        ood: The same method on sets out of distribution.
        calibrator: In benchmarks: the calibrator behind the model, "none" for the model as it is.
        more_bins: In benchmarks: the calibration figures for other numbers of bins.
        groups: Number of groups of images (patients, videos), where intervals resample groups.
        logits: Pixels by label and logit; foreground maps only.
        repair: What a temperature does on images that it was not fitted on; foreground maps only.
        cases: Scores of cases, and whether confidence finds those that fail.
        regions: Figures near boundaries and far from them, and of images with small objects, or that are hard.
        costs: What acting on the foreground costs, or on each class, at given prices of errors.
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
        """Return a figure of ``calibration`` or ``segmentation``; NaN where the record does not have it."""
        value = getattr(self, section).get(key, math.nan)
        return value if isinstance(value, int | float) else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain dictionaries, lists and numbers."""
        content: dict[str, Any] = _encode(self)
        return {"schema": SCHEMA, **content}

    @classmethod
    def from_json(cls, content: Any, where: str | Path) -> Record:
        """Make a record of what was read from JSON, and check it.

        Args:
            content: What `to_json` returned, or an evaluation that version 0.1 wrote. Unknown keys are ignored.
            where: The file; errors name it and the key.

        Raises:
            InputError: A key is missing, or its value is not what it should be.
        """
        schema = content.get("schema", SCHEMA) if isinstance(content, dict) else SCHEMA
        if schema != SCHEMA:
            raise InputError(f"{where}: schema", repr(schema), f"{SCHEMA}, the layout that this densecal reads")
        record: Record = _decode(cls, content, str(where), ())
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
    """Return what an evaluation file holds: one record, or several and their differences."""
    if len(records) == 1:
        return records[0].to_json()
    return {"evaluations": [record.to_json() for record in records], "paired": [_encode(pair) for pair in paired]}


def from_file(content: Any, where: str | Path) -> tuple[list[Record], list[PairedDifference]]:
    """Read what `to_file` returned.

    Raises:
        InputError: A key is missing, or its value is not what it should be.
    """
    if not isinstance(content, dict) or "evaluations" not in content:
        return [Record.from_json(content, where)], []
    records = _expect(list, content["evaluations"], str(where), ("evaluations",))
    paired = _expect(list, content.get("paired", []), str(where), ("paired",))
    return (
        [Record.from_json(record, f"{where}: evaluations.{i}") for i, record in enumerate(records)],
        [_decode(PairedDifference, pair, str(where), ("paired", str(i))) for i, pair in enumerate(paired)],
    )


def _encode(value: Any) -> Any:
    if isinstance(value, Calibration):
        return {**_encode(value.figures), "ci": _encode(value.ci)}
    if dataclasses.is_dataclass(value):
        items = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            _key(field): _encode(item)
            for field, item in items
            if item not in (None, (), {}) or field.default not in (None, ())
        }
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value] if isinstance(value, tuple | list) else value


def _decode(kind: Any, value: Any, where: str, path: tuple[str, ...]) -> Any:
    """Turn JSON into a value of a type of this module, or raise an error that names the key."""
    if kind is Calibration:
        given = _expect(dict, value, where, path)
        figures = {key: item for key, item in given.items() if key != "ci"}
        hints = _hints(Calibration)
        return Calibration(
            _decode(hints["figures"], figures, where, path),
            _decode(hints["ci"], given.get("ci", _MISSING), where, (*path, "ci")),
        )
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        given = _expect(dict, value, where, path)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        present = {name: field for name, field in fields.items() if _key(field) in given or _is_required(field)}
        hints = _hints(kind)
        decoded = {
            name: _decode(hints[name], given.get(_key(field), _MISSING), where, (*path, _key(field)))
            for name, field in present.items()
        }
        for name, field in present.items():
            _check_bounds(field, decoded[name], where, (*path, _key(field)))
        return kind(**decoded)
    if isinstance(kind, types.UnionType):
        return _decode_union(typing.get_args(kind), value, where, path)
    origin = typing.get_origin(kind)
    if origin is tuple:
        items = _expect(list, value, where, path)
        inner = typing.get_args(kind)
        if inner[-1] is not Ellipsis and len(items) != len(inner):
            raise _error(where, path, f"{len(items)} values", f"{len(inner)}")
        return tuple(_decode(inner[0], item, where, (*path, str(i))) for i, item in enumerate(items))
    if origin is Mapping:
        given = _expect(dict, value, where, path)
        return {key: _decode(typing.get_args(kind)[1], item, where, (*path, key)) for key, item in given.items()}
    if kind is float:
        if value is None:
            return math.nan
        number = _expect((int, float), value, where, path)
        if isinstance(number, int) and number.bit_length() > 1023:
            raise _error(where, path, f"an integer of {number.bit_length():,} bits", "a number")
        return number
    return _expect(kind, value, where, path)


def _check_bounds(field: dataclasses.Field[Any], value: int | None, where: str, path: tuple[str, ...]) -> None:
    """Refuse a number for which memory would be reserved without need."""
    low, high = field.metadata.get("bounds", (None, None))
    if low is not None and value is not None and not low <= value <= high:
        raise _error(where, path, str(value)[:60], f"{low} to {high:,}")


def _decode_union(kinds: tuple[Any, ...], value: Any, where: str, path: tuple[str, ...]) -> Any:
    """Decode a value that may be null, or a figure that may be a list over classes."""
    if value is None and types.NoneType in kinds:
        return None
    matching = [kind for kind in kinds if (typing.get_origin(kind) is tuple) == isinstance(value, list)]
    return _decode(matching[0] if matching else kinds[0], value, where, path)


_MISSING = object()
_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number", (int, float): "a number"}


def _expect(kind: Any, value: Any, where: str, path: tuple[str, ...]) -> Any:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    actual = "missing" if value is _MISSING else repr(value)[:60]
    raise _error(where, path, actual, _NAMES[kind])


def _error(where: str, path: tuple[str, ...], actual: str, expected: str) -> InputError:
    key = f"{where}: {'.'.join(path)}" if path else where
    return InputError(key, actual, f"{expected}, as densecal evaluate --json writes it")


def _key(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in JSON."""
    key: str = field.metadata.get("key", field.name)
    return key


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
