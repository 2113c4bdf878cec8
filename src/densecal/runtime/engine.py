"""Engines: where chunks of work are done, in processes of this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from densecal.runtime.pool import map_in_processes

T = TypeVar("T")


class Engine(Protocol):
    """Runs chunks of work. Results are merged exactly, so the choice of engine changes no figure."""

    def map(self, function: Callable[..., T], calls: Iterable[tuple[Any, ...]], *, gpu: bool = False) -> Iterator[T]:
        """Call a function many times, and yield its results in the order of the calls.

        Args:
            function: A function that other processes can import. Called again for work that was lost, so calling it
                twice must leave the same files as calling it once.
            calls: The arguments of each call, read shortly before it is made.
            gpu: Every call uses a GPU, where there are any.

        Raises:
            InputError: The function raised it, or the work was lost again and again.
        """
        ...


@dataclass(frozen=True)
class LocalEngine:
    """The engine of one machine: worker processes, or this process if there is one worker.

    Attributes:
        workers: Number of processes.
        preload: Modules that are imported once for all workers.
    """

    workers: int = 1
    preload: Sequence[str] = ()

    def map(self, function: Callable[..., T], calls: Iterable[tuple[Any, ...]], *, gpu: bool = False) -> Iterator[T]:
        """Call a function many times, and yield its results in the order of the calls."""
        return map_in_processes(function, calls, self.workers, preload=self.preload)
