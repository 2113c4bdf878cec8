"""Studies of a grid of settings: a figure against a parameter, the effective range of alpha, convergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from densecal.benchmark.matrix import REFERENCE
from densecal.benchmark.plan import PLAIN
from densecal.benchmark.summary import Row, Summary, spread

TECHNIQUES = ("hi", "si", "m", "dm")


@dataclass(frozen=True)
class Sweep:
    """The rows of one method in which one number varies.

    Attributes:
        method: Name of the method.
        key: The setting that varies, such as ``alpha``.
        lines: Rows of all data sets in the order of the number, by the other settings in which they differ.
    """

    method: str
    key: str
    lines: dict[str, list[Row]]

    def points(self, line: str, dataset: str) -> list[tuple[float, Row]]:
        """Return the number and the row at each point of a line."""
        return [(float(row.method[self.key]), row) for row in self.lines[line] if row.dataset == dataset]


@dataclass(frozen=True)
class EffectiveRange:
    """The values of a setting, around the best one, that lower the calibration error of plain cross entropy.

    Attributes:
        line: The other settings, such as the technique.
        dataset: Data set.
        bins: Bins of the calibration error.
        lower: Least of these values; 0 if the smallest value tried is one of them, ``None`` if there are none.
        upper: Largest of these values.
        best: The value with the least error.
        ece: That error.
        baseline: The error of plain cross entropy.
    """

    line: str
    dataset: str
    bins: int
    lower: float | None
    upper: float | None
    best: float
    ece: float
    baseline: float


@dataclass(frozen=True)
class AlphaPath:
    """How an adaptive method's values moved during training, averaged over seeds.

    Attributes:
        technique: ``hi``, ``si``, ``m`` or ``dm``.
        grad_norm: ``none``, ``paper`` or ``confidence``.
        epochs: Epochs.
        alpha: Mean over the images.
        confidence: Expected confidence of the perturbed labels.
        accuracy: On the validation images.
    """

    technique: str
    grad_norm: str
    epochs: list[int]
    alpha: list[float]
    confidence: list[float]
    accuracy: list[float]


def sweeps(summary: Summary) -> list[Sweep]:
    """Return the sweeps of a benchmark: methods whose entries have a grid over a number."""
    swept: dict[tuple[str, str], list[Row]] = {}
    for row in summary.rows:
        if row.calibrator != PLAIN or row.reference:
            continue
        for key in row.grid:
            name = key.removeprefix("method.")
            if key.startswith("method.") and _is_number(row.grid[key]):
                swept.setdefault((row.method["name"], name), []).append(row)
    return [
        Sweep(method, key, _lines(rows, key))
        for (method, key), rows in swept.items()
        if len({row.method[key] for row in rows}) > 1
    ]


def effective_ranges(summary: Summary, sweep: Sweep, bins: int) -> list[EffectiveRange]:
    """Return the effective range of a sweep's setting for every line and data set, as in the paper's appendix.

    The baseline is plain cross entropy if the benchmark has it, else the value 0 of the setting.
    """
    other = None if bins == summary.bins else bins
    ranges = []
    for line in sweep.lines:
        for dataset in summary.datasets:
            points = [(x, _mean_ece(row, other)) for x, row in sweep.points(line, dataset)]
            baseline = reference_value(summary, dataset, "calibration", "ece_ew", other)
            if baseline is None:
                baseline = next((ece for x, ece in points if x == 0), None)
            points = [(x, ece) for x, ece in points if x > 0]
            if baseline is None or not points:
                continue
            best, ece = min(points, key=lambda point: point[1])
            good = _around(best, [x for x, _ in points], {x for x, error in points if error < baseline})
            lower = None if not good else 0.0 if good[0] == points[0][0] else good[0]
            upper = good[-1] if good else None
            ranges.append(EffectiveRange(line, dataset, bins, lower, upper, best, ece, baseline))
    return ranges


def reference_value(summary: Summary, dataset: str, section: str, key: str, bins: int | None = None) -> float | None:
    """Return the mean figure of plain cross entropy on a data set, if the benchmark has it."""
    for row in summary.rows:
        plain = row.calibrator == PLAIN and not row.reference and not row.grid
        if row.label == REFERENCE and plain and row.dataset == dataset:
            values = row.values(section, key, bins)
            return spread(values.values())[0] if values else None
    return None


def convergence(summary: Summary) -> list[AlphaPath]:
    """Return the paths of cells whose grid varies the normalisation of the gradient, by technique."""
    labels = {row.label: row for row in summary.rows if "method.grad_norm" in row.grid}
    groups: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}
    for label, row in labels.items():
        key = (str(row.method.get("technique", TECHNIQUES[0])), str(row.method["grad_norm"]))
        groups.setdefault(key, []).extend(log for log in summary.logs[label].values() if log)
    paths = [_path(*key, logs) for key, logs in groups.items() if logs]
    return sorted(paths, key=lambda path: (TECHNIQUES.index(path.technique), path.grad_norm))


def _path(technique: str, grad_norm: str, logs: list[list[dict[str, Any]]]) -> AlphaPath:
    length = min(map(len, logs))

    def mean(section: str, name: str) -> list[float]:
        return [spread(log[epoch][section][name] for log in logs)[0] for epoch in range(length)]

    return AlphaPath(
        technique, grad_norm, [line["epoch"] for line in logs[0][:length]],
        mean("method", "alpha_mean"), mean("method", "expected_confidence"), mean("validation", "accuracy"),
    )  # fmt: skip


def _lines(rows: list[Row], key: str) -> dict[str, list[Row]]:
    """Group rows by the settings that differ between them, except the one that is swept."""
    others = [{name: value for name, value in row.method.items() if name not in ("name", key)} for row in rows]
    names = sorted({name for other in others for name in other})
    varied = [name for name in names if len({str(other.get(name)) for other in others}) > 1]
    lines: dict[str, list[Row]] = {}
    for row, other in zip(rows, others, strict=True):
        title = ", ".join(str(other[n]) if n == "technique" else f"{n} {other[n]}" for n in varied if n in other)
        lines.setdefault(title or row.method["name"], []).append(row)
    return {title: sorted(line, key=lambda row: float(row.method[key])) for title, line in lines.items()}


def _around(best: float, values: list[float], good: set[float]) -> list[float]:
    """Return the run of consecutive good values that contains the best one."""
    run: list[float] = []
    for value in values:
        if value in good:
            run.append(value)
        elif best in run:
            break
        else:
            run = []
    return run if best in run else []


def _mean_ece(row: Row, bins: int | None) -> float:
    return spread(row.values("calibration", "ece_ew", bins).values())[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
