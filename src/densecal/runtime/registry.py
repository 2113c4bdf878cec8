"""Classes and functions by name: a decorator registers one, `find` returns it, `create` calls it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from densecal.errors import InputError

T = TypeVar("T", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Classes, or functions that build something, by name.

    Args:
        kind: What messages call them, such as "method".
        modules: Modules that register a name when they are imported, which happens when the name is requested. This is
            for classes that need an optional dependency.
    """

    def __init__(self, kind: str, modules: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._modules = dict(modules or {})
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Make the decorated class or function available under a name."""

        def add(item: T) -> T:
            if name in self._items:
                raise ValueError(f"{self.kind} {name!r} is already registered by {self._items[name].__qualname__}")
            self._items[name] = item
            return item

        return add

    def names(self) -> list[str]:
        """List the registered names."""
        return sorted({*self._items, *self._modules})

    def find(self, name: str, where: str | None = None) -> T:
        """Return what is registered under a name.

        Args:
            name: One of `names()`.
            where: The file or key that an error names; by default the kind.

        Raises:
            InputError: There is no such name.
        """
        if name not in self._items and name in self._modules:
            import_module(self._modules[name])
        if name not in self._items:
            question = suggestion(name, self.names())
            expected = f"one of {', '.join(self.names())}" + (f" ({question})" if question else "")
            raise InputError(where or self.kind, repr(name)[:100], expected)
        return self._items[name]

    def options(self, name: str) -> list[str]:
        """List the options of a registered class or function, its own before inherited ones."""
        item = self.find(name)
        options: list[str] = []
        for source in _signatures(item):
            options += [p.name for p in source if p.kind is not p.VAR_KEYWORD and p.name not in options]
        return options

    def create(self, name: str, **options: Any) -> Any:
        """Call a registered class or function.

        Raises:
            InputError: There is no such name.
            TypeError: There is no such option.
        """
        allowed = self.options(name)
        for option in options:
            if option not in allowed:
                raise TypeError(
                    f"{self.kind} {name!r}: unknown option {option!r}; expected one of {', '.join(allowed)}"
                )
        return self._items[name](**options)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the known names that are close to a misspelt one as a question, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=5)
    return f"did you mean {', '.join(close)}?" if close else ""


def _signatures(item: Callable[..., Any]) -> Iterable[list[inspect.Parameter]]:
    """Yield the parameters of a function, or of a class's constructor and of those that it passes options on to."""
    if not inspect.isclass(item):
        yield list(inspect.signature(item).parameters.values())
        return
    for base in item.__mro__:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            yield parameters
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                return
