"""How long work says how far it is: one protocol for every command, function and worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Called again and again while something is being done."""

    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        """Hear how far it is.

        Args:
            title: What is being done.
            done: Steps done.
            total: Steps in all.
            **figures: What was measured so far, such as ``loss``.
        """
        ...


def silent(title: str, done: int, total: int, /, **figures: float) -> None:
    """Say nothing."""


def retitled(progress: Progress, title: str) -> Progress:
    """Report under another title than the one that the work gives itself."""

    def report(_: str, done: int, total: int, /, **figures: float) -> None:
        progress(title, done, total, **figures)

    return report


def tracked(items: Iterable[T], title: str, progress: Progress, total: int | None = None) -> Iterator[T]:
    """Yield items and report each one when the next is asked for.

    Args:
        items: What is worked through.
        title: What is being done.
        progress: Told how far it is.
        total: How many there are, where ``items`` does not know.
    """
    if total is None:
        assert isinstance(items, Sized)
        total = len(items)
    for done, item in enumerate(items, start=1):
        yield item
        progress(title, done, total)
