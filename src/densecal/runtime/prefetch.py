"""Iterating ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Run an iterator in a thread, a few items ahead; its errors are raised here."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in items:
                ready.put((True, item))
                if stop.is_set():
                    return
            ready.put((False, None))
        except BaseException as error:
            ready.put((False, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if not more:
                if isinstance(item, BaseException):
                    raise item
                return
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        while thread.is_alive():  # a full queue would block the thread
            try:
                ready.get_nowait()
            except queue.Empty:
                thread.join(0.01)
