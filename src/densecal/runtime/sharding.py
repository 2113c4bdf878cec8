"""Several processes that share one piece of work: who has which part, and how the parts come together.

Started by torchrun (`RANK`, `WORLD_SIZE` and the address of the first process in the environment) a command joins the
others over gloo, on one machine or many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from densecal.errors import InputError

T = TypeVar("T")

PATIENCE = timedelta(hours=24)
"""How long a process waits for the slowest."""


@dataclass(frozen=True)
class Processes:
    """The processes that work together.

    Attributes:
        rank: Which of them this is; the first, 0, alone prints and writes.
        count: How many they are.
        local: How many of them run on this machine.
    """

    rank: int = 0
    count: int = 1
    local: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's consecutive part; parts by rank are the whole and differ in length by at most one."""
        begin, end = (len(items) * rank // self.count for rank in (self.rank, self.rank + 1))
        return items[begin:end]

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank, on the first; nothing on the others. All have to call it."""
        if self.count == 1:
            return [value]
        from torch import distributed

        values: list[T | None] | None = [None] * self.count if self.first else None
        distributed.gather_object(value, values, dst=0)
        return [one for one in values or () if one is not None]

    def use_own_gpu(self) -> None:
        """Make "cuda" mean another GPU for every process of a machine, as far as there are so many."""
        import torch

        if self.count > 1 and torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())

    def workers(self) -> int:
        """Cores of this machine for each of the processes on it."""
        return max(1, (os.cpu_count() or 1) // self.local)


ALONE = Processes()


def is_first_process() -> bool:
    """Return whether this process is alone or the first of its process group."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def join_after_restart(backend: str, timeout: timedelta | None = None) -> None:
    """Make the process group where torchrun has started the processes of one machine again; else do nothing.

    torchrun hands the store of the attempt before to the next one. A process that finds the address of a dead one there
    waits for it until the timeout, so every attempt keeps its keys apart. Machines do not count attempts alike, so
    for several of them the store must not be shared: ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``.

    Args:
        backend: Of the process group.
        timeout: How long a process waits for the others; the backend's own if ``None``.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1" or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://"))
    own = distributed.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=timeout)


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that torchrun started; alone where it did not.

    Bad input that one process meets is to be gathered and raised by the first; the others end without a word.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    from torch import distributed

    join_after_restart("gloo", PATIENCE)
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=PATIENCE)
    processes = Processes(distributed.get_rank(), count, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    try:
        yield processes
    except InputError:
        if processes.first:
            raise
        raise SystemExit(2) from None
    finally:
        distributed.destroy_process_group()
