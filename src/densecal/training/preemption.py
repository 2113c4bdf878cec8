"""Requests to stop: SIGTERM or Ctrl-C ends a run between two steps, with a checkpoint to resume from."""

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
class Position:
    """Where an epoch was interrupted.

    Attributes:
        step: Number of steps done.
        losses: Their losses.
        random: States of the random number generators of the CPU and, on CUDA, of the device.
    """

    step: int
    losses: Tensor
    random: list[Tensor]

    @classmethod
    def after(cls, losses: Tensor) -> Position:
        """Return the position after the steps that had these losses."""
        random = [torch.get_rng_state()]
        if losses.is_cuda:
            random.append(torch.cuda.get_rng_state(losses.device))
        return cls(len(losses), losses.clone(), random)

    def state(self) -> dict[str, Any]:
        """Return plain tensors and numbers, for a checkpoint."""
        return {"step": self.step, "losses": self.losses.cpu(), "random": self.random}

    def restore_random(self, device: torch.device) -> None:
        """Restore the random number generators."""
        torch.set_rng_state(self.random[0])
        if device.type == "cuda" and len(self.random) > 1:
            torch.cuda.set_rng_state(self.random[1], device)


@contextmanager
def stop_on_signal(alone: bool = True) -> Iterator[threading.Event]:
    """Yield an event that is set when the process is asked to stop. A second signal ends the process at once.

    Args:
        alone: Whether this process trains alone. Several processes cannot agree on a step to stop after, so a signal
            ends them at once.
    """
    stop = threading.Event()
    if not alone or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    end_at_once: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    received: list[int] = []

    def request_stop(number: int, frame: Any) -> None:
        received.append(number)
        stop.set()
        signal.signal(number, end_at_once[number])

    # the workers of a benchmark ignore Ctrl-C, which their parent handles
    handled = [number for number in end_at_once if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request_stop) for number in handled}
    try:
        yield stop
    except Preempted as stopped:
        if received:
            stopped.number = received[0]
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
