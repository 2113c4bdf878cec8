"""The registry of training methods: names to classes, and the one way to make a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from densecal.methods.base import Method

_METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound="type[Method]")


def register(name: str) -> Callable[[M], M]:
    """Make a method available to `create` under a name: `@register("my-method")` above its class."""

    def add(method: M) -> M:
        if name in _METHODS:
            raise ValueError(f"method {name!r} is already registered by {_METHODS[name].__qualname__}")
        _METHODS[name] = method
        return method

    return add


def names() -> list[str]:
    """List the registered methods."""
    return sorted(_METHODS)


def options(name: str) -> list[str]:
    """List the options a method takes, its own first."""
    if name not in _METHODS:
        raise ValueError(f"method: found {name!r}; expected one of {', '.join(names())}")
    allowed: list[str] = []
    for cls in _METHODS[name].__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
        allowed += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in allowed]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return allowed


def create(name: str, **given: Any) -> Method:
    """Create a training method.

    Args:
        name: One of `names()`.
        **given: Its options. Every method takes `num_samples` (training images; required), `num_classes`
            (1: one sigmoid logit), `ignore_index` (value of void pixels) and `seed`.

    Raises:
        ValueError: Unknown name, or an option's value is out of range.
        TypeError: Unknown option, or `num_samples` is missing.

    Examples:
        >>> create("bce", num_samples=10).num_samples
        10
    """
    allowed = options(name)
    for option in given:
        if option not in allowed:
            raise TypeError(f"method {name!r}: unknown option {option!r}; expected one of {', '.join(allowed)}")
    if "num_samples" not in given:
        raise TypeError(f"method {name!r}: missing option 'num_samples', the number of training images")
    return _METHODS[name](**given)
