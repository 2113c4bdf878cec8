"""The number of threads that training uses on a CPU: one for each core that other processes leave free.

Every operation is split into equal parts, one per thread, and ends with the last of them. A thread whose core another
process uses keeps all others waiting, so two threads on one free core are far slower than one.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable

import torch

from densecal.runtime.cores import cores, create_load_meter
from densecal.training.sections import EngineConfig

SECONDS_BETWEEN_LOOKS = 2.0
LOOKS = 3
"""How many readings in a row must agree, so that a load of a few seconds changes nothing."""
BUSY, FREE = 0.4, 0.2
"""A core counts as busy from the first share of its time that others use, and as free again up to the second."""


class Threads:
    """The number of threads of a run. As a context manager, it restores the number on exit.

    Args:
        busy_cores: Returns how many of the cores for our threads other processes have used since the last call. The
            number never changes unless this is given.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, busy_cores: Callable[[], float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = torch.get_num_threads()
        self._busy_cores, self._clock = busy_cores, clock
        self._looks: deque[float] = deque(maxlen=LOOKS)
        self._next_look = clock() + SECONDS_BETWEEN_LOOKS
        self._history = [self.most]
        self._has_warned = False

    @property
    def number(self) -> int:
        """The current number of threads."""
        return self._history[-1]

    def start_with(self, number: int) -> None:
        """Begin with the number of the interrupted run, if the number may change."""
        if self._busy_cores is not None:
            self._change(min(number, self.most))
            self._history = [self.number]

    def follow(self) -> None:
        """Read the load of other processes if a reading is due, and change the number if it has changed."""
        if self._busy_cores is None or self._clock() < self._next_look:
            return
        self._looks.append(self._busy_cores())
        self._next_look = self._clock() + SECONDS_BETWEEN_LOOKS
        if len(self._looks) == LOOKS:
            self._change(self._closest_fit(min(self._looks), max(self._looks)))

    def history(self) -> list[int]:
        """Return the numbers of threads since the last call, in the order of their use."""
        history, self._history = self._history, [self.number]
        return history

    def _closest_fit(self, least: float, most: float) -> int:
        """Return the number closest to the current one that fits the lowest and the highest load of other processes."""
        upper, lower = self.most - math.ceil(least - BUSY), self.most - math.ceil(most - FREE)
        return max(1, lower, min(self.number, upper, self.most))

    def _change(self, number: int) -> None:
        if number == self.number:
            return
        torch.set_num_threads(number)
        self._history.append(number)
        self._looks.clear()
        if not self._has_warned:
            warnings.warn(
                f"other processes use cores of this machine: training continues with {number} of {self.most} threads, "
                f"and with more when they end (engine.threads={self.most} keeps {self.most})",
                stacklevel=2,
            )
            self._has_warned = True

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self.number != self.most:
            torch.set_num_threads(self.most)


def choose_threads(engine: EngineConfig, device: torch.device) -> Threads:
    """Set the number of threads of this process, one of several on the machine.

    The number follows the cores that other processes leave free, unless the user has set it, training runs on another
    device, or the other processes belong to this run.
    """
    if engine.threads != "auto":
        torch.set_num_threads(engine.threads)
        return Threads()
    if "OMP_NUM_THREADS" in os.environ:
        return Threads()
    torch.set_num_threads(min(torch.get_num_threads(), max(1, cores() // engine.devices)))
    alone = engine.devices * engine.nodes == 1
    return Threads(create_load_meter(torch.get_num_threads()) if alone and device.type == "cpu" else None)
