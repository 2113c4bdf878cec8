"""Several processes that share one piece of work: which part each one does, and how the parts are gathered.

A command that torchrun started (with `RANK`, `WORLD_SIZE` and the address of the first process in the environment)
joins the others over gloo, on one machine or many.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from densecal.errors import InputError
from densecal.runtime.cores import cores

T = TypeVar("T")

PEER_TIMEOUT = timedelta(hours=24)
"""How long a process waits for the slowest one."""
JOIN_TIMEOUT = timedelta(minutes=5)
"""How long a process waits for the others at the start."""
NOTICE_SECONDS = 20.0
_NUMBERS = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0, "NODE_RANK": 0,
            "SLURM_NTASKS": 1, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NODEID": 0}  # fmt: skip
"""Variables of torchrun and SLURM, with their smallest values."""


@dataclass(frozen=True)
class Processes:
    """The processes that work together.

    Attributes:
        rank: Number of this process; only the first, 0, prints and writes.
        count: Number of processes.
        local: Number of processes on this machine.
    """

    rank: int = 0
    count: int = 1
    local: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the consecutive items of this process; shares differ in length by at most one."""
        begin, end = (len(items) * rank // self.count for rank in (self.rank, self.rank + 1))
        return items[begin:end]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes by rank on the first, an empty list on the others; all must call it."""
        if self.count == 1:
            return [value]
        from torch import distributed

        values: list[T | None] | None = [None] * self.count if self.first else None
        distributed.gather_object(value, values, dst=0)
        return [gathered for gathered in values or () if gathered is not None]

    def use_own_gpu(self) -> None:
        """Make "cuda" mean a different GPU for every process of a machine, as far as its GPUs suffice."""
        if self.count == 1:  # predicting by ONNX needs no torch
            return
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())

    def workers(self) -> int:
        """Return the number of cores per process on this machine."""
        return max(1, cores() // self.local)


ALONE = Processes()


def check_variables() -> None:
    """Check the variables by which torchrun and SLURM number the processes.

    Raises:
        InputError: One of them is not a number, or a rank is not below the number of processes.
    """
    numbers = {}
    for name, least in {**_NUMBERS, "MASTER_PORT": 0}.items():
        text = os.environ.get(name)
        if text is None:
            continue
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if number < least or (name == "MASTER_PORT" and number > 65535):
            expected = "a port, from 0 to 65535" if name == "MASTER_PORT" else f"a whole number, at least {least}"
            raise InputError(name, f"{text!r:.100}", f"{expected}, as torchrun sets it")
        numbers[name] = number
    for rank, count in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in numbers and numbers[rank] >= numbers.get(count, math.inf):
            raise InputError(rank, str(numbers[rank]), f"a number below {count}, which is {numbers[count]}")


@contextmanager
def report_waiting(limit: timedelta) -> Iterator[None]:
    """Tell the user if the block waits long for the other processes, and raise an error if it fails.

    Args:
        limit: How long the block may wait.

    Raises:
        InputError: The others did not arrive in time, or cannot be reached.
    """
    names = ("RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT")

    def own_address() -> str:
        return ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "one machine"

    minutes = f"{limit.total_seconds() / 60:.3g} minutes"

    def give_notice() -> None:
        print(f"densecal: waiting for the other processes ({own_address()}); ends after {minutes}", file=sys.stderr)

    notice = threading.Timer(NOTICE_SECONDS, give_notice)
    notice.daemon = True
    notice.start()
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:200]
        problem = f"cannot join the others ({own_address()}): {reason}"
        raise InputError("processes", problem, f"all processes to join within {minutes}") from None
    finally:
        notice.cancel()


def is_first_process() -> bool:
    """Return whether this process is alone or the first of its process group."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def join_after_restart(backend: str, timeout: timedelta | None = None) -> None:
    """Create the process group if torchrun has restarted the processes of one machine; else do nothing.

    torchrun passes the store of one attempt on to the next. A process that reads the address of a dead process there
    waits for it until the timeout, so every attempt uses its own keys. Machines may count attempts differently, so
    several machines must not share the store: ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``.

    Args:
        backend: Backend of the process group.
        timeout: How long a process waits for the others; by default the backend's own timeout.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1" or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
    own = distributed.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=timeout)


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes if torchrun started this one.

    Bad input of any process is gathered and raised by the first; the others end silently.
    """
    check_variables()
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    with report_waiting(JOIN_TIMEOUT):
        join_after_restart("gloo", PEER_TIMEOUT)
        if not distributed.is_initialized():
            store, rank, count = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=PEER_TIMEOUT)
    processes = Processes(distributed.get_rank(), count, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    try:
        yield processes
    except InputError:
        if processes.first:
            raise
        raise SystemExit(2) from None
    finally:
        distributed.destroy_process_group()
