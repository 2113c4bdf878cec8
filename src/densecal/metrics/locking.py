"""Objects that threads may share: one thread at a time, and copies and pickles that are taken between two changes."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S", bound="Shareable")
P = ParamSpec("P")
R = TypeVar("R")


class Shareable:
    """Base of meters; every method that reads or changes what was counted is ``locked``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy({name: value for name, value in vars(self).items() if name != "_lock"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time into the locked methods of an object."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return call
