"""Being asked to stop: SIGTERM or Ctrl-C ends a run between two steps, with a checkpoint to go on from there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from densecal.errors import Preempted


@dataclass(frozen=True)
class Place:
    """Where an epoch was left.

    Attributes:
        step: Steps done.
        losses: Their losses.
        random: States of the random number generators, of the CPU and the device.
    """

    step: int
    losses: Tensor
    random: list[Tensor]

    @classmethod
    def here(cls, losses: Tensor) -> Place:
        """After as many steps as there are losses."""
        random = [torch.get_rng_state()]
        if losses.is_cuda:
            random.append(torch.cuda.get_rng_state(losses.device))
        return cls(len(losses), losses.clone(), random)

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, for a checkpoint."""
        return {"step": self.step, "losses": self.losses.cpu(), "random": self.random}

    def restore_random(self, device: torch.device) -> None:
        """Let the generators go on as if nothing had happened."""
        torch.set_rng_state(self.random[0])
        if device.type == "cuda" and len(self.random) > 1:
            torch.cuda.set_rng_state(self.random[1], device)


@contextmanager
def stop_when_asked(alone: bool = True) -> Iterator[threading.Event]:
    """An event that is set when the process is asked to stop; a second signal ends it at once.

    Args:
        alone: Whether this process trains alone; several cannot stop between the same two steps, so they end at once.
    """
    stop = threading.Event()
    if not alone or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    at_once: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        stop.set()
        signal.signal(number, at_once[number])

    # the workers of a benchmark ignore the keyboard, which their parent answers
    heard = [number for number in at_once if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield stop
    except Preempted as stopped:
        if asked:
            stopped.number = asked[0]
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
