"""How long-running work reports its progress: one protocol for every command, function and worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """A callable that receives reports of progress."""

    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        """Report progress.

        Args:
            title: What is being done.
            done: Number of steps done.
            total: Number of all steps.
            **figures: Figures measured so far, such as ``loss``.
        """
        ...


def silent(title: str, done: int, total: int, /, **figures: float) -> None:
    """Report nothing."""


def retitle(progress: Progress, title: str) -> Progress:
    """Return a progress callable that replaces the title given by the work itself."""

    def report(_: str, done: int, total: int, /, **figures: float) -> None:
        progress(title, done, total, **figures)

    return report


def track(items: Iterable[T], title: str, progress: Progress, total: int | None = None) -> Iterator[T]:
    """Yield items and report each as done when the next is requested.

    Args:
        items: The items to work through.
        title: What is being done.
        progress: Called after every item.
        total: Number of items, if ``items`` has no length.
    """
    if total is None:
        assert isinstance(items, Sized)
        total = len(items)
    for done, item in enumerate(items, start=1):
        yield item
        progress(title, done, total)
