"""`densecal risk-control`."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from densecal.cli.app import app
from densecal.cli.common import (
    GROUPS_HELP,
    MASKS_HELP,
    Force,
    check_targets,
    named_files,
    print_layouts,
    print_line,
    print_note,
    progress_bar,
    read_groups,
)
from densecal.cli.map_options import Classes, IgnoreIndex, with_map_options
from densecal.errors import InputError
from densecal.io.map_options import AS_STORED, MapOptions

if TYPE_CHECKING:
    from densecal.calibrate.guarantees import ClassRisk, MaskedMaps
    from densecal.posthoc.high_probability import ConfidentControl
    from densecal.posthoc.margins import Margin
    from densecal.posthoc.prediction_sets import SetControl

    Guarantee: TypeAlias = ConfidentControl | SetControl | Margin


class Control(StrEnum):
    """The loss or set that is controlled."""

    misses = "misses"
    precision = "precision"
    sets = "sets"
    margin = "margin"


@app.command("risk-control")
@with_map_options
def risk_control(
    predictions: Annotated[Path, typer.Argument(help="Folder of foreground maps, or of softmax maps (--classes).")],
    masks: Annotated[Path, typer.Argument(help=MASKS_HELP)],
    alpha: Annotated[
        float, typer.Option(help="Largest loss to accept: the share missed, unless --control names another.")
    ] = 0.1,
    control: Annotated[
        Control,
        typer.Option(help="misses, precision (false alarms), sets (of classes per pixel) or margin (around masks)."),
    ] = Control.misses,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Hold with probability 1 - delta over calibration sets, not on average. Default for precision: 0.1."
        ),
    ] = None,
    score: Annotated[str, typer.Option(help="For sets: thr (smallest), aps or raps (never empty).")] = "thr",
    coverage: Annotated[float, typer.Option(help="For margin: share of the foreground to cover.")] = 0.95,
    shape: Annotated[str, typer.Option(help="For margin: disc, square or cross.")] = "disc",
    classes: Classes = None,
    ignore_index: IgnoreIndex = None,
    groups: Annotated[str | None, typer.Option(metavar="FILE|REGEX", help=GROUPS_HELP)] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
    maps: MapOptions = AS_STORED,
    force: Force = False,
) -> None:
    """Find the threshold that misses at most a share alpha of the foreground of a new image, on average.

    The guarantee (conformal risk control) holds for new images of the same kind. It needs at least 1/alpha - 1
    images with masks. The other figures show its price: how much is called foreground. With `--groups`, all this
    holds for groups, such as patients. With `--classes`, every class has a threshold of its own, and the guarantee is
    for new images that show the class. Exits with 3 if a guarantee is met only by calling every pixel foreground, or
    if too few images show a class.

    With `--delta`, the guarantee is about these very images: with probability 1 - delta over sets of calibration
    images, the expected loss of a new image is at most alpha. `--control precision` bounds the share of what is
    called foreground that is background. `--control sets` finds, for K classes, a set of classes per pixel that lacks
    the true class at no more than a share alpha of the pixels. `--control margin` finds by how many pixels predicted
    masks must grow to cover the share `--coverage` of the foreground of a new image with probability 1 - alpha.

    Examples:

    * `densecal risk-control val-maps/ val-masks/ --alpha 0.05 --json threshold.json`

    * `densecal risk-control val-maps/ val-masks/ --groups patients.csv`

    * `densecal risk-control softmax/ labels/ --classes 11 --ignore-index 11`

    * `densecal risk-control val-maps/ val-masks/ --alpha 0.1 --delta 0.05`

    * `densecal risk-control val-maps/ val-masks/ --control precision --alpha 0.2`

    * `densecal risk-control softmax/ labels/ --classes 11 --ignore-index 11 --control sets --score aps`

    * `densecal risk-control val-maps/ val-masks/ --control margin --coverage 0.9`
    """
    check_targets(json)
    from densecal.calibrate import guarantees
    from densecal.io.atomic import write_json
    from densecal.io.outputs import check_outputs
    from densecal.posthoc.high_probability import control as control_confidently

    if control is Control.sets and (maps.multilabel or maps.region is not None):
        expected = "softmax maps, where one of the K classes is true at a pixel"
        raise InputError("--control sets", "regions, which may overlap", expected)
    grouping = read_groups(groups)
    data = guarantees.MaskedMaps(predictions, masks, classes or 1, ignore_index, grouping, maps)
    check_outputs("risk-control", [(json, "json")], [*data.plan.files(), *named_files(groups)], force)
    print_layouts(predictions, data.plan.notes)
    unit = "group" if data.grouped else "image"
    _check_options(control, data.classes, delta)
    with progress_bar() as data.progress:
        if control is Control.misses and delta is None:
            risks = _risks(data, alpha)
        elif control is Control.sets:
            guarantee: Guarantee = guarantees.control_sets(data, score, alpha, delta)
        elif control is Control.margin:
            guarantee = guarantees.control_margin(data, coverage, shape, alpha)
        else:
            curve = guarantees.foreground_curve(data)
            guarantee = control_confidently(curve, control.value, alpha, delta or 0.1, data.grouped)
    if control is not Control.misses or delta is not None:
        _print_guarantee(guarantee, unit, json)
        return
    problems = []
    for risk in risks:
        name = "foreground" if len(risks) == 1 else f"class {risk.label}"
        for line in _risk_lines(risk, name, unit):
            print_line(line, json)
        problems += _risk_problems(risk, alpha, name, unit)
    if json:
        entries = [_risk_entry(risk) for risk in risks]
        content = entries[0] if len(risks) == 1 else {"alpha": alpha, "classes": entries}
        write_json(json, {"densecal": "risk-control", "version": 1, **content})
    for problem in problems:
        print_note(f"densecal: risk-control: {problem}")
    if problems:
        raise typer.Exit(3)


def _risks(data: MaskedMaps, alpha: float) -> list[ClassRisk]:
    """Return the threshold of the foreground, or of every class."""
    from densecal.calibrate.guarantees import ClassRisk, control_class_risks, control_risk

    if data.classes > 1:
        return control_class_risks(data, alpha)
    result = control_risk(data, alpha)
    return [ClassRisk(1, result.images, result.groups or result.images, result)]


def _risk_lines(risk: ClassRisk, name: str, unit: str) -> list[str]:
    """Return the threshold of a class, what it guarantees, and what it costs."""
    result = risk.control
    if result is None:
        return []
    count = f"{result.images:,} images" + (f" in {risk.units:,} groups" if unit == "group" else "")
    return [
        f"{name} is p >= {result.threshold:g} (lambda {result.lam:g}), from {count}",
        f"  false-negative rate  {100 * result.risk:.2f} % here, at most {100 * result.alpha:g} % expected on a new "
        + unit + ("" if name == "foreground" else " that shows it"),
        f"  false-positive rate  {100 * result.fpr:.2f} %",
        f"  called {name:<13} {100 * result.set_size:.2f} % of an image",
    ]  # fmt: skip


def _risk_problems(risk: ClassRisk, alpha: float, name: str, unit: str) -> list[str]:
    """Return why the guarantee for a class is useless, if it is."""
    result = risk.control
    if result is None:
        needed = math.ceil(1.0 / alpha - 1.0 - 1e-12)
        return [f"{name}: {risk.units} {unit}s show it; expected at least {needed} (1/alpha - 1) for a threshold"]
    if not result.is_trivial:
        return []
    return [f"{name}: {_useless(alpha, f'calling every pixel {name}', result.smallest_alpha)}"]


def _useless(alpha: float, way: str, smallest: float) -> str:
    """Say in which trivial way alone a guarantee is met, and the smallest alpha that avoids it."""
    way_out = (
        "no alpha below 1 does better" if math.isnan(smallest) else f"the smallest alpha without that is {smallest:g}"
    )
    return f"alpha {alpha:g} is met only by {way}, which is of no use; {way_out}"


def _risk_entry(risk: ClassRisk) -> dict[str, object]:
    """Return the threshold of a class for JSON."""
    from dataclasses import asdict

    if risk.control is None:
        return {"class": risk.label, "threshold": None, "images": risk.images}
    entry = asdict(risk.control)
    return {"class": risk.label, "lambda": entry.pop("lam"), **entry, "trivial": risk.control.is_trivial}


def _check_options(control: Control, classes: int, delta: float | None) -> None:
    """Refuse options that do not go together."""
    several = classes > 1
    if control is Control.sets and not several:
        raise InputError("--control sets", "one foreground probability", "--classes K, and maps of K classes")
    if several and (
        control in (Control.precision, Control.margin) or (control is Control.misses and delta is not None)
    ):
        raise InputError("--classes", f"{control} with {classes} classes", "maps of one foreground probability")
    if control is Control.margin and delta is not None:
        raise InputError("--delta", str(delta), "nothing, because a margin's alpha is a probability already")


def _print_guarantee(guarantee: Guarantee, unit: str, json: Path | None) -> None:
    """Print a guarantee and write it; exit with 3 if it is trivial."""
    from dataclasses import asdict

    from densecal.io.atomic import write_json

    for line in _lines(guarantee, unit):
        print_line(line, json)
    if json:
        figures = {name: _finite(value) for name, value in asdict(guarantee).items()}
        write_json(json, {"densecal": "risk-control", "version": 1, **figures, "trivial": guarantee.is_trivial})
    if guarantee.is_trivial:
        print_note(
            f"densecal: risk-control: {_useless(guarantee.alpha, _trivial_way(guarantee), guarantee.smallest_alpha)}"
        )
        raise typer.Exit(3)


def _trivial_way(guarantee: Guarantee) -> str:
    """Return the trivial way in which a guarantee is met."""
    from densecal.posthoc.margins import Margin
    from densecal.posthoc.prediction_sets import SetControl

    if isinstance(guarantee, Margin):
        return "covering the whole image"
    if isinstance(guarantee, SetControl):
        return "giving every pixel all classes"
    return "calling every pixel foreground" if guarantee.kind == "misses" else "calling no pixel foreground"


def _finite(value: object) -> object:
    """Return a figure for JSON, which has no infinite numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(guarantee: Guarantee, unit: str) -> list[str]:
    """Return the guarantee, and what it costs on these images, as lines."""
    from densecal.posthoc.margins import Margin
    from densecal.posthoc.prediction_sets import SetControl

    count = f"{guarantee.images:,} images" + (f" in {guarantee.groups:,} groups" if guarantee.groups else "")
    if isinstance(guarantee, Margin):
        before = f"without margin {100 * guarantee.covered_before:.2f} %"
        return [
            f"masks grow by {guarantee.pixels:g} pixels ({guarantee.shape}), from {count}",
            f"  {100 * guarantee.coverage:g} % of the foreground of a new {unit} is covered with probability "
            f"{100 * (1 - guarantee.alpha):g} %; here in {100 * guarantee.covered:.2f} %, {before}",
            f"  inside the masks: {100 * guarantee.set_size:.2f} % of an image, "
            f"without margin {100 * guarantee.set_size_before:.2f} %",
        ]
    certainty = "expected" if guarantee.delta is None else f"with probability {100 * (1 - guarantee.delta):g} %"
    if isinstance(guarantee, SetControl):
        return [
            f"the set of a pixel is the classes of score <= {guarantee.threshold:g} ({guarantee.score}), from {count}",
            f"  pixels without their class  {100 * (1 - guarantee.coverage):.2f} % here, at most "
            f"{100 * guarantee.alpha:g} % {certainty} on a new {unit}",
            f"  classes per pixel           {guarantee.set_size:.3f}",
            f"  pixels without any class    {100 * guarantee.empty:.2f} %",
        ]
    own = " <-" if guarantee.kind == "misses" else ""
    other = " <-" if guarantee.kind == "precision" else ""
    return [
        f"foreground is p >= {guarantee.threshold:g}, from {count}",
        f"  promised on a new {unit}: at most {100 * guarantee.alpha:g} % {certainty}, of the figure marked",
        f"  false-negative rate   {100 * guarantee.miss_rate:.2f} %{own}",
        f"  false-discovery rate  {100 * guarantee.false_discovery_rate:.2f} %{other}",
        f"  false-positive rate   {100 * guarantee.fpr:.2f} %",
        f"  called foreground     {100 * guarantee.set_size:.2f} % of an image",
    ]
