"""The registry of calibrators: names to classes, and the one way to make a calibrator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from densecal.errors import InputError

if TYPE_CHECKING:
    from densecal.posthoc.base import Calibrator

_CALIBRATORS: dict[str, type[Calibrator]] = {}
C = TypeVar("C", bound="type[Calibrator]")


def register(name: str) -> Callable[[C], C]:
    """Make a calibrator available to `create` and to files under a name: `@register("mine")` above its class."""

    def add(calibrator: C) -> C:
        if name in _CALIBRATORS:
            raise ValueError(f"calibrator {name!r} is already registered by {_CALIBRATORS[name].__qualname__}")
        calibrator.method = name
        _CALIBRATORS[name] = calibrator
        return calibrator

    return add


def names() -> list[str]:
    """List the registered calibrators."""
    return sorted(_CALIBRATORS)


def find(name: str, where: str = "calibrator") -> type[Calibrator]:
    """The class registered under a name.

    Args:
        name: One of `names()`.
        where: What an error names as the place of the bad name.
    """
    if name not in _CALIBRATORS:
        raise InputError(where, repr(name)[:100], f"one of {', '.join(names())}")
    return _CALIBRATORS[name]


def options(name: str) -> list[str]:
    """List the options a calibrator takes."""
    return list(inspect.signature(find(name)).parameters)


def create(name: str, **given: Any) -> Calibrator:
    """Create a calibrator that has not been fitted yet: it leaves probabilities as they are, or nearly so.

    Args:
        name: One of `names()`.
        **given: Its options; those for K classes take `num_classes` (1: one sigmoid logit).

    Raises:
        InputError: Unknown name, or an option's value is out of range.
        TypeError: Unknown option.

    Examples:
        >>> float(create("temperature").temperature)
        1.0
    """
    allowed = options(name)
    for option in given:
        if option not in allowed:
            raise TypeError(f"calibrator {name!r}: unknown option {option!r}; expected one of {', '.join(allowed)}")
    return find(name)(**given)
