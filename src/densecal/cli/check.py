"""`densecal check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import print_line
from densecal.errors import InputError
from densecal.names import printable

_WORDS = {True: "passed", False: "failed", None: "not compared"}


@app.command()
def check(
    scores: Annotated[Path, typer.Argument(help="File that densecal evaluate --json wrote.")],
    maximum: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="FIGURE=LIMIT", help="Largest value allowed; a fraction. May be repeated."),
    ] = None,
    minimum: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="FIGURE=LIMIT", help="Smallest value allowed; a fraction. May be repeated."),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Older file of the same kind. No figure may be clearly worse than in it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Check only this method.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Check only this data set.")] = None,
) -> None:
    """Fail, with exit code 1, when a figure is beyond its limit or worse than in an older evaluation.

    A limit is compared with the figure itself. A figure is worse than the baseline's if the difference is larger than
    chance explains, by the 95 % intervals of both. Figures that have limits are compared with the baseline; if none
    has, all that have intervals, except the parts of the ECE.

    Examples:

    * `densecal check scores.json --max ece_ew=0.02 --min dice=0.9`

    * `densecal check scores.json --max ece_ew=0.02 --baseline old.json`
    """
    if not maximum and not minimum and baseline is None:
        raise InputError("check", "nothing to compare with", "--max, --min or --baseline")
    from densecal.evaluation.limits import check_limits

    comparisons = check_limits(
        scores,
        maximum=_limits("--max", maximum),
        minimum=_limits("--min", minimum),
        baseline=baseline,
        name=name,
        dataset=dataset,
    )
    for comparison in comparisons:
        line = f"{_WORDS[comparison.passed]}: {comparison.line}"
        if comparison.passed is False:
            print(printable(line))  # with --quiet too
        else:
            print_line(line)
    if any(comparison.passed is False for comparison in comparisons):
        raise typer.Exit(1)


def _limits(option: str, values: list[str] | None) -> dict[str, float]:
    """Parse FIGURE=LIMIT from every use of an option."""
    limits: dict[str, float] = {}
    for text in values or []:
        figure, _, number = text.partition("=")
        try:
            limit = float(number)
        except ValueError:
            raise InputError(option, repr(text), "FIGURE=LIMIT, such as ece_ew=0.02") from None
        if figure in limits:
            raise InputError(option, f"two limits of {figure}", "one limit per figure")
        limits[figure] = limit
    return limits
