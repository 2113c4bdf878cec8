"""Worker processes: how many, how they start, results in order, and no worker that outlives its parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from densecal.errors import InputError

T = TypeVar("T")

_AHEAD = 3
"""Calls per worker that are submitted before their results are needed; more would only take memory."""
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 26)}
"""Limits of glibc for keeping memory that is free. Workers need arrays of a megabyte again and again. With the limits
that glibc starts with, every one is handed back to the system and fetched page by page, which takes a quarter of the
time of `densecal evaluate`. These limits are the highest that glibc comes to by itself."""


def map_in_processes(
    function: Callable[..., T],
    arguments: Iterable[tuple[Any, ...]],
    workers: int,
    *,
    preload: Sequence[str] = (),
    start: Callable[..., None] | None = None,
    start_arguments: tuple[Any, ...] = (),
) -> Iterator[T]:
    """Call a function in worker processes and yield its results in the order of the calls.

    Args:
        function: A function that the workers can import.
        arguments: The arguments of each call, read shortly before the call is submitted.
        workers: Number of processes; if it is 1, the calls are made in this process.
        preload: Modules that are imported once for all workers.
        start: Called first in every worker.
        start_arguments: Arguments of ``start``.

    Raises:
        InputError: A worker died.
    """
    if workers <= 1:
        for call in arguments:
            yield function(*call)
        return
    pending: deque[Future[T]] = deque()
    with _pool(workers, preload, start, start_arguments) as pool:
        try:
            for call in arguments:
                pending.append(pool.submit(function, *call))
                if len(pending) > _AHEAD * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise InputError(
                "workers",
                f"one of {workers} worker processes died",
                'enough memory for them, and a script that guards its main part with if __name__ == "__main__" '
                "(workers=1 needs neither)",
            ) from None


def start_worker() -> None:
    """Leave Ctrl-C to the parent, and end this worker when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes started inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _pool(
    workers: int, preload: Sequence[str], start: Callable[..., None] | None, start_arguments: tuple[Any, ...]
) -> Iterator[ProcessPoolExecutor]:
    # Not fork: the caller may have threads and a CUDA context.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver" and preload:
        context.set_forkserver_preload(list(preload))
    allocator = {name: value for name, value in _ALLOCATOR.items() if name not in os.environ}
    with environment({"OMP_NUM_THREADS": "1", **allocator}):
        pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(start, start_arguments))
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _start(then: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    start_worker()
    if then is not None:
        then(*arguments)
