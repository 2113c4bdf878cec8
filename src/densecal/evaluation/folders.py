"""Evaluating folders: prediction maps and masks in, one record with every figure out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from densecal.data.pairs import Plan, dataset_name, find_plan
from densecal.errors import InputError
from densecal.evaluation.partial import Partial, in_order
from densecal.evaluation.record import PairedDifference, Record, SkippedFile
from densecal.evaluation.totals import Total
from densecal.evaluation.worker import Part, Settings, score_pairs
from densecal.io.groups import Groups
from densecal.io.map_values import check_scale
from densecal.io.pairs import Pair
from densecal.metrics.bootstrap import paired_intervals
from densecal.runtime.engine import Engine, LocalEngine
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import ALONE, Processes

CHUNK = 32
"""Number of pairs per chunk."""
_CALL_SECONDS = 1.0
"""About how long a worker is busy with one call. Calls that are much shorter take longer to send than to answer."""
_MOST_CHUNKS = 16
"""Largest number of chunks per call."""


@dataclass(frozen=True)
class Evaluation:
    """A record, and the data needed to compare it with another.

    Attributes:
        record: Every figure.
        stems: Names of the scored images in the order of ``rows``; empty if there are too many to keep.
        rows: Sums per image, for paired intervals.
        groups: The group of every image, if images are grouped.
    """

    record: Record
    stems: list[str]
    rows: NDArray[np.float64]
    groups: list[str] | None = None


def evaluate(
    predictions: str | Path,
    masks: str | Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    groups: Groups | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Score a folder of prediction maps against a folder of masks.

    Args:
        predictions: Folder of maps: 8- or 16-bit PNG, TIFF, WebP, JPEG, or ``.npy``/``.npz``.
        masks: Folder of masks with the same stems.
        name: Name of the method; the folder's name unless given.
        dataset: Name of the data set; the mask folder's name unless given.
        settings: Bins, metrics and classes.
        workers: Number of processes.
        skip_bad: Leave out files that cannot be read, and list them, instead of stopping.
        groups: Groups of similar images (patient, video, scene), which intervals resample.
        progress: Called with the number of pairs scored.

    Returns:
        The evaluation.

    Raises:
        InputError: A file is missing, unreadable or invalid.
    """
    evaluation = evaluate_shared(
        Path(predictions), Path(masks), name=name, dataset=dataset, settings=settings, workers=workers,
        skip_bad=skip_bad, groups=groups, progress=progress,
    )  # fmt: skip
    assert evaluation is not None
    return evaluation


def evaluate_shared(
    predictions: Path,
    masks: Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    groups: Groups | None = None,
    progress: Progress = silent,
    processes: Processes = ALONE,
    engine: Engine | None = None,
) -> Evaluation | None:
    """Evaluate like `evaluate`, but in several processes, all of which make this call.

    Args:
        predictions: Folder of maps. Options that `evaluate` has, too, mean the same.
        masks: Folder of masks.
        name: Name of the method.
        dataset: Name of the data.
        settings: Bins, metrics and classes.
        workers: Worker processes of this process.
        skip_bad: Leave out files that cannot be read.
        groups: Groups of similar images.
        progress: Called with the number of pairs scored in this process's share.
        processes: The processes that share the work.
        engine: Engine that does the work, instead of worker processes.

    Returns:
        The evaluation on the first process, the same to the bit however many there are; ``None`` on the others.
    """
    part = score_folder(
        predictions, masks, name=name, dataset=dataset, settings=settings, workers=workers, skip_bad=skip_bad,
        groups=groups, progress=progress, processes=processes, engine=engine,
    )  # fmt: skip
    if part is None:
        return None
    evaluation = compute(part, predictions, masks)
    if part.total.findings.foreground:
        check_scale(part.total.highest, predictions, part.total.settings.maps)
    return evaluation


def score_folder(
    predictions: Path,
    masks: Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    groups: Groups | None = None,
    progress: Progress = silent,
    processes: Processes = ALONE,
    engine: Engine | None = None,
) -> Partial | None:
    """Return the sums of an evaluation. The options are those of `evaluate_shared`."""
    plan, settings = plan_of(predictions, masks, settings or Settings(), skip_bad)
    if plan.regions:
        names = ", ".join(region.name for region in plan.regions)
        expected = f"one of {names}, chosen by --region or MapOptions(region=...)"
        raise InputError(predictions, f"maps of {len(plan.regions)} regions", expected)
    pairs, unpaired = plan.pairs, plan.unpaired
    if groups is not None:
        groups.of([pair.stem for pair in pairs])
    total, unreadable = score_all(pairs, settings, workers, skip_bad, progress, processes, engine, groups)
    if not processes.first:
        return None
    skipped = in_order(map(skipped_file, [*unpaired, *unreadable]))
    return Partial(name or predictions.resolve().name, dataset or dataset_name(masks), total, skipped)


def plan_of(predictions: Path, masks: Path, settings: Settings, skip_bad: bool = False) -> tuple[Plan, Settings]:
    """Return the pairs of maps and masks, and the settings completed from the folders."""
    plan = find_plan(
        predictions, masks, settings.maps, settings.classes, settings.ignore_index, settings.class_names, skip_bad
    )  # fmt: skip
    settings = replace(
        settings, maps=plan.options, classes=plan.classes, ignore_index=plan.ignore_index, class_names=plan.class_names
    )
    return plan, settings


def compute(part: Partial, predictions: str | Path, masks: str | Path) -> Evaluation:
    """Return every figure of the sums of an evaluation.

    Args:
        part: The sums.
        predictions: Name of the maps in error messages.
        masks: Name of the masks in error messages.

    Raises:
        InputError: There is nothing to measure.
    """
    total = part.total
    if not total.images:
        raise InputError(predictions, "no map that could be scored", "at least one readable pair")
    rows = total.meter.sketch.image_rows()
    if not rows[:, 0].any() and (total.sums is None or not total.sums.table.images):
        raise InputError(masks, "nothing but void pixels", "at least one valid pixel")
    if 0 < total.findings.volumes < total.images:
        actual = f"{total.findings.volumes} volumes among {total.images} files"
        raise InputError(predictions, actual, "only volumes, or only pictures")
    return Evaluation(total.record(part.name, part.dataset, part.skipped), total.stems, rows, total.groups)


def score_all(
    pairs: list[Pair],
    settings: Settings,
    workers: int,
    skip_bad: bool,
    progress: Progress,
    processes: Processes = ALONE,
    engine: Engine | None = None,
    groups: Groups | None = None,
) -> tuple[Total, list[InputError]]:
    """Score the pairs and add everything up.

    Returns:
        The sums, and why pairs were skipped (empty unless ``skip_bad``). The first process returns those of all
        processes, each other one those of its own share.
    """
    chunks = processes.share(_chunks(_in_groups(pairs, groups)))
    engine = engine or LocalEngine(min(workers, len(chunks)), ["densecal.evaluation.worker"])
    try:
        outcome: tuple[Total, list[InputError]] | InputError = _score_share(
            chunks, settings, engine, skip_bad, progress, groups
        )
    except InputError as error:  # the other processes wait for the sums of this one
        outcome = error
    total = Total(settings, groups is not None)
    skipped: list[InputError] = []
    for part in processes.gather(outcome) or [outcome]:
        if isinstance(part, InputError):
            raise part
        total.merge(part[0])
        skipped += part[1]
    return total, skipped


def skipped_file(error: InputError) -> SkippedFile:
    """Return the entry of a record for a file that was left out."""
    return SkippedFile(error.where, f"{error.found}; expected {error.expected}")


def paired_differences(evaluations: Sequence[Evaluation]) -> list[PairedDifference]:
    """Compare every two methods that were evaluated on the same images: differences of figures, with intervals.

    There are no differences where there were too many images to keep a row for each.
    """
    differences = []
    for a, b in combinations(evaluations, 2):
        same = a.record.dataset == b.record.dataset and a.stems == b.stems and a.rows.shape == b.rows.shape
        if not same or not len(a.rows):
            continue
        ci = paired_intervals(a.rows, b.rows, a.groups)
        difference = {name: a.record.calibration[name] - b.record.calibration[name] for name in ci}
        differences.append(PairedDifference(a.record.dataset, a.record.name, b.record.name, difference, ci))
    return differences


def _in_groups(pairs: list[Pair], groups: Groups | None) -> list[Pair]:
    """Return pairs with their groups; an image without a group is an error."""
    if groups is None:
        return pairs
    names = groups.of([pair.stem for pair in pairs])
    return [replace(pair, group=group) for pair, group in zip(pairs, names, strict=True)]


def _chunks(pairs: list[Pair]) -> list[list[Pair]]:
    """Cut the pairs into chunks, which do not depend on the number of processes."""
    return [pairs[i : i + CHUNK] for i in range(0, len(pairs), CHUNK)]


class _Pace:
    """How many chunks make a call: about a second of work, but one chunk until the first part is back.

    Towards the end calls become smaller, so that all workers end at about the same time: none gets more of what is
    left than a share of one among the calls that are under way.
    """

    def __init__(self) -> None:
        self.chunks = 1
        self.calls = 0
        """Number of calls that are under way."""

    def join(self, chunks: Sequence[list[Pair]]) -> Iterator[list[Pair]]:
        """Yield the pairs of the next few chunks, again and again."""
        first = 0
        while first < len(chunks):
            share = (len(chunks) - first) // (self.calls + 1)
            last = first + max(1, min(self.chunks, share))
            self.calls += 1
            yield [pair for chunk in chunks[first:last] for pair in chunk]
            first = last

    def note(self, part: Part) -> None:
        """Take the time of a part as that of the next ones."""
        self.calls -= 1
        seconds = part.seconds * CHUNK / (len(part.stems) + len(part.bad))
        self.chunks = max(1, min(_MOST_CHUNKS, int(_CALL_SECONDS / max(seconds, 1e-9))))


def _score_share(
    chunks: Sequence[list[Pair]],
    settings: Settings,
    engine: Engine,
    skip_bad: bool,
    progress: Progress,
    groups: Groups | None,
) -> tuple[Total, list[InputError]]:
    total, done = Total(settings, groups is not None), 0
    skipped: list[InputError] = []
    pairs = sum(len(chunk) for chunk in chunks)
    pace = _Pace()
    calls = ((joined, settings, total.uses_fine_bins) for joined in pace.join(chunks))
    for part in engine.map(score_pairs, calls):
        pace.note(part)
        if part.bad and not skip_bad:
            raise part.bad[0]
        skipped += part.bad
        total.add(part, () if groups is None else groups.of(part.stems))
        done += len(part.stems) + len(part.bad)
        progress("Scoring", done, pairs)
    return total, skipped
