"""Options for the prices of a miss and of a false alarm, shared by commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from densecal.errors import InputError

if TYPE_CHECKING:
    from densecal.metrics.cost import Prices

CostMiss = Annotated[
    float | None, typer.Option(metavar="PRICE", help="Price of a missed pixel. Adds the cost of acting on the maps.")
]
CostAlarm = Annotated[float | None, typer.Option(metavar="PRICE", help="Price of a falsely reported pixel.")]


def prices_of(miss: float | None, alarm: float | None) -> Prices | None:
    """Return the prices, or None if none are given."""
    if miss is None and alarm is None:
        return None
    if miss is None or alarm is None:
        raise InputError("--cost-miss, --cost-alarm", "only one of them", "both or none")
    from densecal.metrics.cost import Prices

    try:
        return Prices(miss, alarm)
    except ValueError as error:
        raise InputError("--cost-miss, --cost-alarm", str(error).partition(";")[0], "a number above 0") from None
