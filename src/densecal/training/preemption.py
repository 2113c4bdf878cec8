"""Being asked to stop: SIGTERM ends a run between two steps, with a checkpoint that goes on at the next one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
def stop_on_sigterm(alone: bool = True) -> Iterator[threading.Event]:
    """An event that is set when the process is asked to stop; a second signal ends it at once.

    Args:
        alone: Whether this process trains alone; several cannot stop between the same two steps, so they end at once.
    """
    stop = threading.Event()
    if not alone or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
