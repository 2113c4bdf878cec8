"""Choosing the strength of a method on the validation images alone, with the same budget for all methods."""

from __future__ import annotations

from dataclasses import dataclass

from densecal.benchmark.matrix import REFERENCE
from densecal.benchmark.plan import Cell, Plan, is_finished, read_result

MAX_DROP = 0.005
"""Largest loss of the F measure (mIoU for K classes) that a strength may cause."""


@dataclass(frozen=True)
class Trial:
    """The result of one value of a strength on the validation images.

    Attributes:
        override: The setting, as ``key=value``.
        ece: Calibration error, equal-width bins.
        score: F max, or mIoU for K classes.
    """

    override: str
    ece: float
    score: float


@dataclass(frozen=True)
class Choice:
    """The trials of a method and the one that was chosen.

    Attributes:
        trials: In the order of the matrix.
        reference: The score of plain cross entropy with the same seed.
        chosen: The override that the method's cells are trained with.
        kept_score: False if every value lowers the score by more than is allowed; then the one that lowers it least is
        chosen.
    """

    trials: tuple[Trial, ...]
    reference: float
    chosen: str
    kept_score: bool


def choose(trials: tuple[Trial, ...], reference: float) -> Choice:
    """Choose the value with the least calibration error among those that keep the score; the first wins a tie."""
    acceptable = [trial for trial in trials if trial.score > reference - MAX_DROP]
    best = min(acceptable, key=lambda t: t.ece) if acceptable else max(trials, key=lambda t: t.score)
    return Choice(trials, reference, best.override, bool(acceptable))


def choices(plan: Plan) -> dict[str, Choice]:
    """Return the choices that can be made so far, by label: those whose trials, and the reference, are finished."""
    if not plan.trials:
        return {}
    first = plan.matrix.seeds[0]
    reference = next(cell for cell in plan.untuned if cell.label == REFERENCE and cell.seed == first)
    plain = _validation(reference)
    if plain is None:
        return {}
    by_label = {}
    for label in plan.matrix.tune:
        figures = [(cell, _validation(cell)) for cell in plan.trials if cell.label == label]
        trials = [Trial(cell.trial, *values) for cell, values in figures if values is not None]
        if len(trials) == len(figures):
            by_label[label] = choose(tuple(trials), plain[1])
    return by_label


def _validation(cell: Cell) -> tuple[float, float] | None:
    """Return the calibration error and the score of a finished cell on the validation images."""
    if not is_finished(cell):
        return None
    result = read_result(cell)
    assert result is not None
    record = result.records[0]
    score = "f_max" if "f_max" in record.segmentation else "miou"
    return record.calibration["ece_ew"], record.figure("segmentation", score)
