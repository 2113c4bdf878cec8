"""Evaluating folders: prediction maps and masks in, one record with every figure out."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.entropy import EntropySums
from densecal.metrics.exact import ExactSums
from densecal.metrics.segmentation import ConfusionMeter, SegmentationMeter
from densecal.orphans import end_with_parent
from densecal.pairing import dataset_name, find_pairs, skipped_entry
from densecal.scoring import FEW_LEVELS, Findings, Pair, Part, Settings, score_pairs
from densecal.sharding import ALONE, Processes

if TYPE_CHECKING:
    from densecal.metrics.calibration import CalibrationMeter, CalibrationResult

CHUNK = 32
JOINT_CELLS = 100
"""The joint density of confidence and accuracy is kept on a grid of this many cells a side."""
_COMMON = 0.9
"""A look that this share of all maps has is worth a warning."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """Every figure of one method on one data set, ready to be written as JSON.

    Attributes:
        record: The JSON object: name, dataset, images, pixels, skipped, warnings, calibration, segmentation,
            reliability, joint, settings; for foreground maps also curves and thresholds; with ``settings.entropy``
            also entropy.
        stems: Names of the scored images in the order of ``rows``.
        rows: Per-image table for paired intervals.
    """

    record: dict[str, Any]
    stems: list[str]
    rows: np.ndarray[Any, np.dtype[np.float64]]


def evaluate(
    predictions: Path,
    masks: Path,
    *,
    name: str | None = None,
    dataset: str | None = None,
    settings: Settings | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Evaluation:
    """Score a folder of prediction maps against a folder of masks.

    Args:
        predictions: Folder of maps: 8- or 16-bit PNG, TIFF, WebP, JPEG, or ``.npy``/``.npz``.
        masks: Folder of masks with the same stems.
        name: What to call the method; the folder's name unless given.
        dataset: What to call the data; the mask folder's name unless given.
        settings: Bins, metrics and classes.
        workers: Processes to use.
        skip_bad: Leave out what cannot be read, and list it, instead of stopping.
        progress: Called with (done, total) pairs.
        processes: Those that share the work, all of which make this call. The first gets the evaluation, the same to
            the bit however many they are; the others get an empty one.

    Returns:
        The evaluation.

    Raises:
        InputError: A file is missing, unreadable or not what it should be.
    """
    pairs, skipped = find_pairs(predictions, masks, skip_bad)
    total, bad = score_all(pairs, settings or Settings(), workers, skip_bad, progress, processes)
    if not processes.first:
        return nowhere()
    skipped += bad
    if not total.stems:
        raise InputError(predictions, "no map that could be scored", "at least one readable pair")
    if not total.meter.sketch.image_rows()[:, 0].any():
        raise InputError(masks, "nothing but void pixels", "at least one valid pixel")
    record = total.record(name or predictions.resolve().name, dataset or dataset_name(masks), skipped)
    return Evaluation(record, total.stems, total.meter.sketch.image_rows())


def nowhere() -> Evaluation:
    """What processes other than the first have instead of an evaluation."""
    return Evaluation({}, [], np.zeros((0, 0)))


def score_all(
    pairs: list[Pair],
    settings: Settings,
    workers: int,
    skip_bad: bool,
    progress: Progress | None,
    processes: Processes = ALONE,
) -> tuple[Total, list[dict[str, str]]]:
    """Score the pairs and add everything up.

    Returns:
        The sums, and what was skipped (empty unless ``skip_bad``); of all processes on the first, of its own share on
        another.
    """
    try:
        outcome: tuple[Total, list[dict[str, str]]] | InputError = _score_share(
            processes.share(_chunks(pairs)), settings, workers, skip_bad, progress
        )
    except InputError as error:  # the others wait for this one's sums
        outcome = error
    outcomes = processes.gather(outcome) or [outcome]
    total, skipped = Total(settings), []
    for found in outcomes:
        if isinstance(found, InputError):
            raise found
        total.merge(found[0])
        skipped += found[1]
    return total, skipped


def _score_share(
    chunks: Sequence[list[Pair]], settings: Settings, workers: int, skip_bad: bool, progress: Progress | None
) -> tuple[Total, list[dict[str, str]]]:
    total, skipped, done = Total(settings), [], 0
    pairs = sum(len(chunk) for chunk in chunks)
    for part in _parts(chunks, settings, workers, lambda: total.folded):
        if part.bad and not skip_bad:
            raise part.bad[0][1]
        skipped += [skipped_entry(error) for _, error in part.bad]
        total.add(part)
        done += len(part.stems) + len(part.bad)
        if progress:
            progress(done, pairs)
    return total, skipped


def _chunks(pairs: list[Pair]) -> list[list[Pair]]:
    """Pairs that are scored together, cut alike however many processes share the work."""
    return [pairs[i : i + CHUNK] for i in range(0, len(pairs), CHUNK)]


def paired_differences(evaluations: list[Evaluation]) -> list[dict[str, Any]]:
    """For every two methods on the same images of a data set: the difference of their figures with its interval."""
    from densecal.metrics.bootstrap import paired_intervals

    differences = []
    for a, b in combinations(evaluations, 2):
        if a.record["dataset"] != b.record["dataset"] or a.stems != b.stems or a.rows.shape != b.rows.shape:
            continue
        ci = paired_intervals(a.rows, b.rows)
        here, there = a.record["calibration"], b.record["calibration"]
        differences.append(
            {
                "dataset": a.record["dataset"],
                "a": a.record["name"],
                "b": b.record["name"],
                "difference": {name: here[name] - there[name] for name in ci},
                "ci": {name: list(pair) for name, pair in ci.items()},
            }
        )
    return differences


class Total:
    """The parts of an evaluation, added up."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter: CalibrationMeter = settings.calibration_meter()
        self.segmentation = ExactSums()
        """Of the states of a ``SegmentationMeter``, or of a ``ConfusionMeter`` for K classes."""
        self.findings = Findings()
        self.entropy = EntropySums()
        self.stems: list[str] = []

    @property
    def folded(self) -> bool:
        """Whether float maps are summarised in fine bins."""
        return self.meter.sketch.folded

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
        # rows in the order of the files, whatever their kind
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

    def record(self, name: str, dataset: str, skipped: list[dict[str, str]]) -> dict[str, Any]:
        """The JSON object of the whole."""
        result = self.meter.compute()
        record = {
            "name": name,
            "dataset": dataset,
            "images": len(self.stems),
            "pixels": result.pixels,
            "skipped": skipped,
            "warnings": warnings_of(self.findings, self.settings),
            "calibration": result.as_dict(),
            "segmentation": {},
            "reliability": _reliability(result),
            "joint": _joint(result),
            "settings": {key: getattr(self.settings, key) for key in ("bins", "classes", "ignore_index")},
        }
        if self.settings.binary:
            record["thresholds"] = _thresholds(result)
            meter = SegmentationMeter(full=self.settings.full and self.settings.ignore_index is None)
            meter.load_state_dict(self.segmentation.values())
            scores = meter.compute()
            record["segmentation"] = scores.as_dict()
            curves = ("precision", "recall", "f_curve", "e_curve")
            record["curves"] = {curve: getattr(scores, curve).tolist() for curve in curves}
        else:
            confusion = ConfusionMeter(self.settings.classes or 1)
            confusion.load_state_dict(self.segmentation.values())
            record["segmentation"] = confusion.compute().as_dict()
        if self.settings.entropy:
            record["entropy"] = self.entropy.as_dict()
        return record


def warnings_of(findings: Findings, settings: Settings) -> list[str]:
    """What the maps and masks of a set look like that they should not."""
    maps, found = findings.maps, []
    if settings.binary and settings.ignore_index is not None and not findings.foreground:
        found.append(
            f"no mask holds foreground: is {settings.ignore_index}, given as void, the value of the foreground?"
        )
    if maps >= 2 and findings.stretched >= _COMMON * maps:
        found.append(
            f"{findings.stretched} of {maps} maps span exactly 0 to 1 with few pixels at the top: they look min-max "
            "normalised image by image, which destroys their confidence; evaluate the raw probabilities"
        )
    if findings.both_classes and findings.inverted > 2 / 3 * findings.both_classes:
        found.append(
            f"{findings.inverted} of {findings.both_classes} maps are darker on the foreground than on the "
            "background: they look inverted; expected the probability of foreground"
        )
    if maps and findings.few_levels > 0.5 * maps:
        found.append(
            f"{findings.few_levels} of {maps} maps hold fewer than {FEW_LEVELS} grey levels: they look thresholded or "
            "quantised; their confidences are not those of the model"
        )
    if findings.grey_masks:
        found.append(
            f"{findings.grey_masks} masks hold values other than 0 and 255: they were cut at > 127, for segmentation "
            "scores at > 128"
        )
    if findings.resized:
        found.append(
            f"{findings.resized} maps differ in size from their mask: they were resized to the mask bilinearly"
        )
    return found


def _parts(
    chunks: Sequence[list[Pair]], settings: Settings, workers: int, folded: Callable[[], bool]
) -> Iterator[Part]:
    """Score the chunks in order, with a bounded number of them under way."""
    workers = min(workers, len(chunks))
    if workers <= 1:
        for chunk in chunks:
            yield score_pairs(chunk, settings, folded())
        return
    with _pool(workers) as pool:
        waiting: deque[Future[Part]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(score_pairs, chunk, settings, folded()))
                if len(waiting) > 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise InputError(
                "evaluate", "a worker process died (out of memory?)", "fewer workers, or more memory"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that do not inherit this one's threads and use one thread each."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["densecal.scoring"])
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _reliability(result: CalibrationResult) -> dict[str, Any]:
    """The curves behind the reliability diagrams and the confidence histogram."""
    from densecal.metrics.curves import Atoms, ReliabilityCurve

    def listed(curve: ReliabilityCurve) -> dict[str, Any]:
        return {
            "count": curve.count.astype(int).tolist(),
            "confidence": curve.confidence.tolist(),
            "accuracy": curve.accuracy.tolist(),
        }

    top = Atoms.sorted(*result.sketch.top_atoms())
    cell = _cells(top.value)
    pixels, correct = (np.bincount(cell, amount, JOINT_CELLS) for amount in (top.count, top.hits))
    record = {
        "bins": result.sketch.bins,
        **listed(result.reliability),
        "histogram": {"count": pixels.astype(int).tolist(), "correct": correct.astype(int).tolist()},
        "classes": [{**listed(curve), "ece": curve.ece} for curve in result.classwise],
    }
    if result.reliability_foreground is not None:
        record["foreground"] = listed(result.reliability_foreground)
    return record


def _thresholds(result: CalibrationResult) -> dict[str, Any]:
    """Pixels called foreground, p > t, at t = 0, 0.01, ..., 1: raw maps, all images pooled."""
    from densecal.metrics.curves import Atoms

    p = Atoms.sorted(*result.sketch.class_atoms(0))
    up_to = np.searchsorted(p.value, np.arange(JOINT_CELLS + 1) / JOINT_CELLS, side="right")
    pixels, positives = (np.concatenate([[0], np.cumsum(amount)]) for amount in (p.count, p.hits))
    tp = positives[-1] - positives[up_to]
    fp = pixels[-1] - pixels[up_to] - tp
    return {
        "true_positives": tp.tolist(),
        "false_positives": fp.tolist(),
        "positives": int(positives[-1]),
        "negatives": int(pixels[-1] - positives[-1]),
    }


def _cells(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which of the equal cells of [0, 1] holds each value; 1.0 lies in the last."""
    return np.asarray(np.minimum((values * JOINT_CELLS).astype(np.int64), JOINT_CELLS - 1))


def _joint(result: CalibrationResult) -> dict[str, Any]:
    """Where the images lie in the plane of mean confidence and accuracy: the occupied cells of a grid on [0, 1]."""
    confidence, accuracy = result.image_points()
    cells, counts = np.unique(np.stack([_cells(confidence), _cells(accuracy)], axis=1), axis=0, return_counts=True)
    return {
        "cells": JOINT_CELLS,
        "counts": [[int(x), int(y), int(n)] for (x, y), n in zip(cells, counts, strict=True)],
        "mean_confidence": float(confidence.mean()),
        "mean_accuracy": float(accuracy.mean()),
        "spread": math.sqrt(float(np.mean((confidence - accuracy) ** 2))),
    }
