"""Evaluation records, logs and examples as compact JSON, from which the page's script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from densecal.evaluation.measures import Consistency, SmoothDiagram
from densecal.evaluation.record import Curve, OutOfDistribution, Record, known_interval
from densecal.names import printable
from densecal.report.cases import AVERAGES
from densecal.report.gallery import Example
from densecal.report.pictures import Album
from densecal.report.runs import Run
from densecal.report.sections import class_name, has_classes

_INTERVALS = ("ece_ew", "oe_ew", "ue_ew", "ece_image_mean", "brier", "nll", "accuracy", "mean_confidence")
_QUANTILES = ("min", "q25", "median", "q75", "max")
_ALPHA_BINS = 30

Json = dict[str, Any]


class Colours:
    """One colour per method, the same in every diagram."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the number of a method's colour."""
        return self._numbers.setdefault(name, len(self._numbers))


def page_data(
    records: Sequence[Record], runs: Sequence[Run], examples: Sequence[Example], album: Album, budget: int
) -> Markup:
    """Return everything that the script needs, safe inside a script element.

    Args:
        records: Evaluation records.
        runs: Runs.
        examples: Images of the gallery.
        album: An empty album, for the pictures.
        budget: Largest number of characters of the text.
    """
    colours = Colours()
    data: Json = {
        "records": [_record(record, colours) for record in records],
        "runs": [_run(run, colours, album) for run in runs if run.log],
        "ood": [_ood(record, entry) for record in records for entry in record.ood],
        "gallery": [_example(example, album) for example in examples],
    }
    data["pictures"] = album.encode(budget - len(safe_json({**data, "pictures": []})))
    return safe_json(data)


def safe_json(value: Any) -> Markup:
    """Return JSON that no browser can mistake for markup, whatever names it holds. NaN and infinity become null."""
    return htmlsafe_json_dumps(_printable(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _record(record: Record, colours: Colours) -> Json:
    calibration, reliability = record.calibration, record.reliability
    intervals = {key: ends for key in _INTERVALS if (ends := known_interval(calibration.ci, key))}
    data: Json = {
        "name": record.name,
        "dataset": record.dataset,
        "colour": colours.of(record.name),
        "ece": f"{100 * calibration['ece_ew']:.2f} %" if "ece_ew" in calibration else "",
        "figures": {key: _round(calibration.get(key), 6) for key in _INTERVALS},
        "intervals": {key: [_round(v, 6) for v in ends] for key, ends in intervals.items()},
        "reliability": _curve(reliability.curve) | _bands(reliability.consistency),
        "smooth": _smooth(reliability.smooth),
        "smooth_foreground": _smooth(reliability.smooth_foreground),
        "foreground": None if reliability.foreground is None else _curve(reliability.foreground),
        "classes": [{"name": class_name(record, k), **_curve(curve)} for k, curve in enumerate(reliability.classes)]
        if has_classes(record)
        else [],
        "histogram": asdict(reliability.histogram),
        "joint": {key: getattr(record.joint, key) for key in ("cells", "counts", "mean_confidence", "mean_accuracy")},
        "thresholds": None,
        "logits": None if record.logits is None else asdict(record.logits),
        "curves": None,
        "trust": None,
    }
    if record.thresholds is not None:
        counts = record.thresholds
        data["thresholds"] = {
            "tp": counts.true_positives, "fp": counts.false_positives,
            "positives": counts.positives, "negatives": counts.negatives,
        }  # fmt: skip
    if record.curves is not None:
        curves = {"precision": record.curves.precision, "recall": record.curves.recall, "f": record.curves.f_curve}
        data["curves"] = {name: [_round(v, 4) for v in curve] for name, curve in curves.items()}
    if record.cases is not None and record.cases.trust is not None:
        trust = record.cases.trust
        averages = {AVERAGES.get(name, name): [_round(v, 5) for v in curve.curve] for name, curve in trust.by.items()}
        data["trust"] = {"cases": trust.cases, "risk": _round(trust.risk, 5), "by": averages}
    return data


def _curve(curve: Curve) -> Json:
    return {
        "count": curve.count,
        "confidence": [_round(v, 5) for v in curve.confidence],
        "accuracy": [_round(v, 5) for v in curve.accuracy],
    }


def _bands(consistency: Consistency | None) -> Json:
    """Return where a calibrated model would be in each bin, if that is known."""
    if consistency is None:
        return {}
    return {name: [_round(v, 5) for v in getattr(consistency, name)] for name in ("low", "high")}


def _smooth(diagram: SmoothDiagram | None) -> Json | None:
    if diagram is None:
        return None
    lists = {name: [_round(v, 4) for v in getattr(diagram, name)] for name in ("accuracy", "density")}
    return {"error": f"{100 * diagram.error:.2f} %", "bandwidth": _round(diagram.bandwidth, 5), **lists}


def _run(run: Run, colours: Colours, album: Album) -> Json:
    symbol = "beta" if any("beta_median" in line.get("method", {}) for line in run.log) else "alpha"
    lines = [line.get("method", {}) for line in run.log]
    keys = [f"{symbol}_{name}" for name in _QUANTILES]
    has_quantiles = bool(lines) and all(key in line for line in lines for key in keys)
    data: Json = {
        "name": run.name,
        "colour": colours.of(run.name),
        "symbol": symbol,
        "epochs": [line["epoch"] for line in run.log],
        "loss": [_round(line["loss"], 6) for line in run.log],
        "ece": [_round(line["validation"].get("ece_ew"), 6) for line in run.log],
        "accuracy": [_round(line["validation"].get("accuracy"), 6) for line in run.log],
        "quantiles": {
            name: [_round(line[key], 6) for line in lines] for name, key in zip(_QUANTILES, keys, strict=True)
        }
        if has_quantiles
        else None,
        "histogram": None,
    }
    if run.alpha:
        counts, edges = np.histogram(list(run.alpha.values()), _ALPHA_BINS)
        data["histogram"] = {"counts": counts.tolist(), "edges": [_round(float(edge), 6) for edge in edges]}
        for side, names in (("highest", run.highest), ("lowest", run.lowest)):
            data[side] = [
                {
                    "name": name,
                    "value": _round(run.alpha[name], 6),
                    "pictures": [[h, album.add(p)] for h, p in run.extremes.get(name, {}).items()],
                }
                for name in names
            ]
    return data


def _ood(record: Record, entry: OutOfDistribution) -> Json:
    return {
        "name": record.name,
        "dataset": record.dataset,
        "outside": entry.dataset,
        "auroc": entry.auroc,
        "fpr95": entry.fpr95,
        "in": entry.entropy.inside,
        "out": entry.entropy.outside,
    }


def _example(example: Example, album: Album) -> Json:
    return {
        "method": example.method,
        "dataset": example.dataset,
        "name": example.name,
        "confidence": _round(example.confidence, 5),
        "accuracy": _round(example.accuracy, 5),
        "entropy": _round(example.entropy, 5),
        "pictures": [[heading, album.add(picture)] for heading, picture in example.pictures.items()],
    }


def _round(value: float | None, digits: int) -> float | None:
    """Return a value with fewer digits, which are most of the JSON of a large evaluation."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def _printable(value: Any) -> Any:
    """Return the value with None for every NaN and infinity, and with printable text."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
