"""The number of threads that training uses on a CPU: one for each core that other processes leave free.

Every operation is split into equal parts, one per thread, and ends with the last of them. A thread whose core another
process has taken keeps all others waiting, so that two threads on one free core are far slower than one.
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
"""How many looks in a row must agree. What is over in a few seconds changes nothing."""
TAKEN, FREE = 0.4, 0.2
"""Others have taken a core from this share of its time on. It counts as free again up to the second."""


class Threads:
    """The number of threads of a run. As a context, it ends with the number that it began with.

    Args:
        taken: Returns how many of the cores for our threads others have used since it was last asked. Unless it is
            given, the number never changes.
        clock: Seconds.
    """

    def __init__(self, taken: Callable[[], float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = torch.get_num_threads()
        self._taken, self._clock = taken, clock
        self._looks: deque[float] = deque(maxlen=LOOKS)
        self._next_look = clock() + SECONDS_BETWEEN_LOOKS
        self._used = [self.most]
        self._has_warned = False

    @property
    def number(self) -> int:
        """The number now."""
        return self._used[-1]

    def start_with(self, number: int) -> None:
        """Begin with another number, that of the interrupted run, if the number may change."""
        if self._taken is not None:
            self._change(min(number, self.most))
            self._used = [self.number]

    def follow(self) -> None:
        """Look at what other processes use, if it is time to, and change the number if they have begun or ended."""
        if self._taken is None or self._clock() < self._next_look:
            return
        self._looks.append(self._taken())
        self._next_look = self._clock() + SECONDS_BETWEEN_LOOKS
        if len(self._looks) == LOOKS:
            self._change(self._fitting(min(self._looks), max(self._looks)))

    def used(self) -> list[int]:
        """Return the numbers since this was last called, in the order of their use."""
        used, self._used = self._used, [self.number]
        return used

    def _fitting(self, least: float, most: float) -> int:
        """Return the number nearest to the present one that fits the least and the most that others have used."""
        upper, lower = self.most - math.ceil(least - TAKEN), self.most - math.ceil(most - FREE)
        return max(1, lower, min(self.number, upper, self.most))

    def _change(self, number: int) -> None:
        if number == self.number:
            return
        torch.set_num_threads(number)
        self._used.append(number)
        self._looks.clear()
        if not self._has_warned:
            warnings.warn(
                f"other processes use cores of this machine: training goes on with {number} of {self.most} threads, "
                f"and with more when they have ended (engine.threads={self.most} keeps {self.most})",
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

    It follows what other processes leave free, unless the user has chosen it, training runs on another device, or the
    other processes belong to this run.
    """
    if engine.threads != "auto":
        torch.set_num_threads(engine.threads)
        return Threads()
    if "OMP_NUM_THREADS" in os.environ:
        return Threads()
    torch.set_num_threads(min(torch.get_num_threads(), max(1, cores() // engine.devices)))
    alone = engine.devices * engine.nodes == 1
    return Threads(create_load_meter(torch.get_num_threads()) if alone and device.type == "cpu" else None)
