"""Limits: whether an evaluation keeps within given limits, and is no worse than an older evaluation.

A limit is compared with the figure itself. A comparison with an older evaluation, the baseline, uses the 95 % intervals
of both records. With the figure a in [a_low, a_high] now and b in [b_low, b_high] before, where lower is better:

    worse if  a - b > sqrt((a - a_low)^2 + (b_high - b)^2)

The right side is the margin. It is that of the interval of a - b for two independent estimates (Zou and Donner,
Statistics in Medicine 27, 2008), and for symmetric intervals the textbook's. Evaluations of the same images are not
independent: their errors rise and fall together, so a difference is more certain than the margin suggests. The check
is then conservative. It misses small changes, and seldom mistakes chance for a change. Records hold no figures per
image, so a paired comparison cannot be made from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from densecal.errors import InputError
from densecal.evaluation.measures import Interval
from densecal.evaluation.record import Record, from_file, known_interval
from densecal.io.documents import read_json
from densecal.runtime.registry import suggestion

LOWER_IS_BETTER = (
    "ece_ew", "oe_ew", "oe_ew_weighted", "ue_ew", "ece_em", "oe_em", "oe_em_weighted", "ece_sweep", "oe_sweep",
    "oe_sweep_weighted", "ece_debias", "mce", "brier", "nll", "ece_image_mean", "ece_boundary_5", "ece_boundary_15",
    "ece_foreground", "sce", "ace", "tace", "smece", "smece_exact", "smece_foreground", "smece_foreground_exact",
    "brier_calibration", "brier_refinement", "nll_calibration", "nll_refinement", "aurc", "mae",
)  # fmt: skip
HIGHER_IS_BETTER = (
    "accuracy", "auroc_error", "f_max", "f_mean", "f_adaptive", "e_max", "e_mean", "e_adaptive", "s_measure",
    "f_weighted", "iou", "dice", "miou", "iou_image_mean", "dice_image_mean",
)  # fmt: skip
NEITHER = ("mean_confidence", "sweep_bins")
"""Figures of which neither high nor low values are better. They may have limits on both sides, and no baseline."""
COMPARED = ("ece_ew", "ece_image_mean", "brier", "nll", "accuracy", "iou_image_mean", "dice_image_mean")
"""Figures compared with a baseline if there are no limits. OE and UE are left out: one may rise as the ECE falls."""
_ABOVE_ONE = (
    "brier", "brier_calibration", "brier_refinement", "nll", "nll_calibration", "nll_refinement", "sweep_bins",
)  # fmt: skip
"""Figures that can exceed 1."""
_ROUNDING = 1e-9
"""Figures of the same maps agree to 1e-12, whatever the number of processes."""
_EXPECTED = "a file that densecal evaluate --json wrote"


@dataclass(frozen=True)
class Comparison:
    """A figure against a limit or against a baseline.

    Attributes:
        passed: False if the figure is beyond the limit, or worse than the baseline. None if it cannot be compared.
        line: The comparison in words.
    """

    passed: bool | None
    line: str


@dataclass(frozen=True)
class _Value:
    """A figure of a record, with its interval where it has one."""

    value: float
    interval: Interval | None

    def __str__(self) -> str:
        ends = "" if self.interval is None else f" (95 %: {self.interval[0]:.4g} to {self.interval[1]:.4g})"
        return f"{self.value:.4g}{ends}"


def check_limits(
    scores: Record | Path | str,
    *,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    baseline: Record | Path | str | None = None,
    name: str | None = None,
    dataset: str | None = None,
) -> list[Comparison]:
    """Compare every evaluation of a file with limits, and with an older evaluation.

    Figures are fractions and have the names of the JSON. With a baseline, the figures that have limits are compared
    with it, or `COMPARED` if none has. An evaluation is compared with that of the same method and data set in the
    baseline. If both hold one evaluation of the data set, the method may have another name.

    Args:
        scores: A record, or a file that `densecal evaluate --json` wrote.
        maximum: Largest values allowed, of figures for which lower is better.
        minimum: Smallest values allowed, of figures for which higher is better.
        baseline: An older record or file.
        name: Only evaluations of this method.
        dataset: Only evaluations on this data set.

    Returns:
        One comparison per evaluation, figure and limit or baseline.

    Raises:
        InputError: There is nothing to check, a figure is unknown or missing, or the baseline does not fit.
    """
    maximum, minimum = maximum or {}, minimum or {}
    if not maximum and not minimum and baseline is None:
        raise InputError("limits", "none", "a maximum, a minimum or a baseline")
    if isinstance(scores, str | Path) and isinstance(baseline, str | Path) and _is_same(Path(scores), Path(baseline)):
        raise InputError(f"baseline {baseline}", "the file that is checked", "an older evaluation")
    records = _select(_read(scores), str(_where(scores)), name, dataset)
    _check_names(maximum, minimum, records)
    older = [] if baseline is None else _read(baseline)
    result: list[Comparison] = []
    for record in records:
        result += [_against_limit(record, figure, limit, -1) for figure, limit in maximum.items()]
        result += [_against_limit(record, figure, limit, 1) for figure, limit in minimum.items()]
        if baseline is not None:
            before = _counterpart(record, records, older, str(_where(baseline)))
            result += _against_baseline(record, before, [*maximum, *minimum], str(_where(baseline)))
    return result


def _read(source: Record | Path | str) -> list[Record]:
    if isinstance(source, Record):
        return [source]
    return from_file(read_json(Path(source), _EXPECTED), source)[0]


def _where(source: Record | Path | str) -> Path | str:
    return _title(source) if isinstance(source, Record) else source


def _title(record: Record) -> str:
    return f"{record.name} on {record.dataset}"


def _is_same(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)


def _select(records: Sequence[Record], where: str, name: str | None, dataset: str | None) -> list[Record]:
    """Return the records of a method and a data set; refuse two records of the same."""
    chosen = [r for r in records if name in (None, r.name) and dataset in (None, r.dataset)]
    titles = [_title(record) for record in chosen]
    if not chosen:
        request = f"{name or 'any method'} on {dataset or 'any data set'}"
        known = ", ".join(map(_title, records)) or "an evaluation"
        raise InputError(where, f"no evaluation of {request}", f"one of {known}")
    for title in titles:
        if titles.count(title) > 1:
            raise InputError(where, f"several evaluations of {title}", "one evaluation per method and data set")
    return chosen


def _check_names(maximum: Mapping[str, float], minimum: Mapping[str, float], records: Sequence[Record]) -> None:
    """Refuse limits of figures that do not exist, limits on the wrong side, and limits that nothing can exceed."""
    computed = {key for record in records for key in (*record.calibration, *record.segmentation)}
    known = dict.fromkeys([*LOWER_IS_BETTER, *HIGHER_IS_BETTER, *NEITHER, *sorted(computed)])
    for kind, limits, wrong, other in (
        ("maximum", maximum, HIGHER_IS_BETTER, "a minimum (--min), because higher is better"),
        ("minimum", minimum, LOWER_IS_BETTER, "a maximum (--max), because lower is better"),
    ):
        for figure, limit in limits.items():
            if figure not in known:
                question = suggestion(figure, known)
                expected = f"another name ({question})" if question else f"one of {', '.join(known)}"
                raise InputError(f"{kind} of {figure}", "no such figure", expected)
            if figure in wrong:
                raise InputError(f"{kind} of {figure}", "a limit on the wrong side", other)
            if not math.isfinite(limit) or limit < 0:
                raise InputError(f"{kind} of {figure}", f"{limit:g}", "a number that is not negative")
            if limit > 1 and figure not in _ABOVE_ONE:
                raise InputError(f"{kind} of {figure}", f"{limit:g}", "a fraction: 2 % is 0.02")


def _against_limit(record: Record, figure: str, limit: float, sign: int) -> Comparison:
    """Compare a figure with its largest (sign -1) or smallest (sign 1) allowed value."""
    actual = _value(record, figure)
    if actual is None:
        raise InputError(_title(record), _missing(record, figure), f"a figure to compare with the limit {limit:g}")
    passed = sign * (actual.value - limit) >= 0
    relation = "within" if passed else "above" if sign < 0 else "below"
    return Comparison(passed, f"{figure} of {_title(record)} is {actual}, {relation} the limit {limit:g}")


def _value(record: Record, figure: str) -> _Value | None:
    """Return a figure of a record, or None if it was not computed or is a list over classes."""
    for section, ci in (("calibration", record.calibration.ci), ("segmentation", record.segmentation_ci or {})):
        value = record.figure(section, figure)
        if not math.isnan(value):
            return _Value(value, known_interval(ci, figure))
    return None


def _missing(record: Record, figure: str) -> str:
    per_class = isinstance(record.segmentation.get(figure), tuple)
    return f"{figure} is a list over classes" if per_class else f"has no {figure}"


def _counterpart(record: Record, records: Sequence[Record], older: Sequence[Record], where: str) -> Record:
    """Return the evaluation of the baseline that a record is compared with."""
    same_data = [before for before in older if before.dataset == record.dataset]
    same_name = [before for before in same_data if before.name == record.name]
    alone = len(same_data) == 1 and sum(other.dataset == record.dataset for other in records) == 1
    candidates = same_data if alone else same_name
    if len(candidates) != 1:
        number = "several evaluations" if candidates else "no evaluation"
        known = ", ".join(map(_title, older)) or "none"
        expected = f"one (it has {known}; densecal evaluate --dataset names the data set)"
        raise InputError(where, f"{number} of {_title(record)}", expected)
    (before,) = candidates
    for key in ("bins", "classes", "ignore_index"):
        was, now = getattr(before.settings, key), getattr(record.settings, key)
        if was != now:
            raise InputError(f"{where}: settings.{key}", str(was), f"{now}, as in the evaluation that is checked")
    return before


def _against_baseline(record: Record, before: Record, limited: Iterable[str], where: str) -> list[Comparison]:
    """Compare the figures that have intervals in both records."""
    required = [figure for figure in dict.fromkeys(limited) if figure not in NEITHER]
    compared, others = [], []
    for figure in required or COMPARED:
        now, was = _value(record, figure), _value(before, figure)
        if now is not None and was is not None and now.interval is not None and was.interval is not None:
            compared.append(_difference(record, figure, now, was, where))
        elif required:
            without = where if now is not None and now.interval is not None else "the evaluation"
            line = f"{figure} of {_title(record)} with {where}: {without} has no interval of it"
            others.append(Comparison(None, line))
    if not compared:
        actual = f"no figure of {_title(record)} that has an interval in both evaluations"
        raise InputError(where, actual, f"one of {', '.join(COMPARED)}, of two images or more")
    return [*compared, *others]


def _difference(record: Record, figure: str, now: _Value, was: _Value, where: str) -> Comparison:
    """Compare a figure with that of the baseline; both have intervals."""
    assert now.interval is not None
    assert was.interval is not None
    if figure in HIGHER_IS_BETTER:
        worse, margin = was.value - now.value, math.hypot(now.interval[1] - now.value, was.value - was.interval[0])
    else:
        worse, margin = now.value - was.value, math.hypot(now.value - now.interval[0], was.interval[1] - was.value)
    passed = worse <= margin + _ROUNDING
    relation = "no worse than" if worse <= 0 else "not clearly worse than" if passed else "worse than"
    margin_text = f"difference {now.value - was.value:+.4g}, margin {margin:.4g}"
    return Comparison(passed, f"{figure} of {_title(record)} is {now}, {relation} {was} in {where}: {margin_text}")
