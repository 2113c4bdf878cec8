"""Ray as the engine of the commands: a cluster does the work of a process pool.

The commands send tasks, not actors. A task is a chunk of files, and its result is a few kilobytes of exact sums, so
Ray may run it anywhere and run it again when a node is lost: the figures are those of one process, bit for bit.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from densecal import __version__
from densecal.errors import InputError
from densecal.runtime.cores import cores
from densecal.runtime.extras import require

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no usage statistics
require("densecal.integrations.ray_engine", "ray", install="'densecal[ray]'")
import ray  # noqa: E402
from ray._private import utils, worker  # noqa: E402
from ray.exceptions import RayError, RayTaskError  # noqa: E402

T = TypeVar("T")

RETRIES = 5
"""How often a task is run again after its node or process was lost."""
OBJECT_STORE_BYTES = 200_000_000
"""Shared memory of a Ray that is started here. It can be small, as results are."""
_AHEAD = 3
"""Tasks per CPU or GPU that are submitted, so that the next one is ready when one ends."""
_MOST_PRELOADED = 64
"""Largest number of processes that import modules before there is work for them."""
_REACH_SECONDS = 10.0
_WAIT_SECONDS = 1.0
"""After this time without a result, count the nodes again."""


@dataclass(frozen=True)
class _Refusal:
    """An InputError that a task raised, as its result: Ray would not run it again."""

    error: InputError


class RayEngine:
    """The engine of a Ray cluster.

    Args:
        address: ``auto`` or HOST:PORT of a running cluster; Ray is started on this machine unless given.
        workers: Tasks at a time; by default as many as the cluster has CPUs, or GPUs where these are used.
        preload: Modules that the nodes import while the caller prepares the first calls.

    Raises:
        InputError: There is no cluster at the address, or one of another version of Python or Ray.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, *, preload: Sequence[str] = ()) -> None:
        self.workers = workers
        self._started = not ray.is_initialized()
        if self._started:
            _connect(address or os.environ.get("RAY_ADDRESS"), workers)
        if preload:
            self._preload(preload)

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            ray.shutdown()

    def _preload(self, modules: Sequence[str]) -> None:
        """Let one process per CPU start and import modules. Nobody waits for them."""
        task = ray.remote(_import).options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        for _ in range(min(_MOST_PRELOADED, self.workers or int(ray.cluster_resources().get("CPU", 0)))):
            task.remote(modules)

    def map(
        self,
        function: Callable[..., T],
        calls: Iterable[tuple[Any, ...] | None],
        *,
        gpu: bool = False,
        ordered: bool = True,
        lost: Callable[[tuple[Any, ...], str], T] | None = None,
    ) -> Iterator[T]:
        """Call a function many times in tasks, and yield its results.

        Args:
            function: A function that the nodes can import. Called again for work that was lost.
            calls: The arguments of each call. None means: wait for another result first.
            gpu: Let every task take a GPU, if the cluster has any.
            ordered: Yield the results in the order of the calls, and not as they come.
            lost: Returns what to yield for a call that was lost repeatedly, given the call and the reason.

        Raises:
            InputError: The function raised it, or a call was lost repeatedly.
        """
        resource = "GPU" if gpu and ray.cluster_resources().get("GPU", 0) >= 1 else "CPU"
        amounts = {"num_cpus": 0, "num_gpus": 1} if resource == "GPU" else {"num_cpus": 1}
        task = ray.remote(_run).options(**amounts, max_retries=RETRIES, name=f"densecal {function.__name__}")
        source, exhausted, limit = iter(calls), False, _TaskLimit(resource, self.workers)
        pending: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        done: dict[int, T] = {}
        submitted = first = 0
        try:
            while not exhausted or pending:
                while not exhausted and len(pending) < limit.size():
                    call = next(source, _END)
                    if call is _END:
                        exhausted = True
                    elif call is None:
                        break
                    else:
                        assert isinstance(call, tuple)
                        pending[task.remote(function, os.getcwd(), __version__, call)] = submitted, call
                        submitted += 1
                if not pending:
                    time.sleep(0 if exhausted else _WAIT_SECONDS)
                    continue
                for reference in _wait(list(pending)):
                    number, call = pending.pop(reference)
                    done[number if ordered else first] = _result(reference, call, lost)
                    while first in done:
                        yield done.pop(first)
                        first += 1
        finally:
            for reference in pending:
                with suppress(Exception):
                    ray.cancel(reference, force=True)


class _TaskLimit:
    """The number of tasks that are submitted at a time: a few more than the cluster, which may change, can run."""

    def __init__(self, resource: str, workers: int | None) -> None:
        self.resource, self.workers = resource, workers
        self._size, self._updated_at = 1, -math.inf

    def size(self) -> int:
        """Return the number of tasks that may be submitted at a time."""
        if self.workers is not None:
            return self.workers
        if time.monotonic() - self._updated_at > _WAIT_SECONDS:
            self._size = _AHEAD * max(1, int(ray.cluster_resources().get(self.resource, 1)))
            self._updated_at = time.monotonic()
        return self._size


_END: Any = object()


def _import(modules: Sequence[str]) -> None:
    """Import modules on a node; if that fails, the first call does so too, and is reported."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


def _run(function: Callable[..., Any], folder: str, version: str, call: tuple[Any, ...]) -> bytes:
    """Run one call on a node.

    Returns:
        The result as bytes, which the caller copies. The arrays of other results stay in Ray's shared memory for as
        long as the caller has any of them.
    """
    if version != __version__:
        actual = f"densecal {__version__} on the node {ray.util.get_node_ip_address()}"
        expected = f"densecal {version}, as in the calling process"
        return pickle.dumps(_Refusal(InputError("--engine ray", actual, expected)))
    with suppress(OSError):  # relative paths are those of the calling process, if the node has its folder
        os.chdir(folder)
    try:
        return pickle.dumps(function(*call), pickle.HIGHEST_PROTOCOL)
    except InputError as error:
        return pickle.dumps(_Refusal(error))


def _wait(references: list[Any]) -> list[Any]:
    """Return at most one reference whose result is ready, or none after a while."""
    try:
        ready: list[Any] = ray.wait(references, num_returns=1, timeout=_WAIT_SECONDS)[0]
    except SystemError as error:  # what the handler of SIGTERM raised
        raise error.__cause__ or error from None
    return ready


def _result(reference: Any, call: tuple[Any, ...], lost: Callable[[tuple[Any, ...], str], T] | None) -> T:
    try:
        result: T | _Refusal = pickle.loads(ray.get(reference))
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except RayError as error:
        problem = " ".join(str(error).split())[:200]
        if lost is None:
            raise InputError("--engine ray", f"a task was lost {RETRIES + 1} times ({problem})",
                             "nodes that have enough memory and stay in the cluster") from None  # fmt: skip
        return lost(call, problem)
    if isinstance(result, _Refusal):
        raise result.error
    return result


def _connect(address: str | None, workers: int | None) -> None:
    """Join a cluster, or start Ray on this machine; Ctrl-C and SIGTERM stay with the command."""
    if address not in (None, "auto", "local"):
        _check_reachable(address)
    options: dict[str, Any] = {"address": address} if address else {
        "num_cpus": workers or cores(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False,
    }  # fmt: skip
    worker.print_to_stdstream = _print_note
    utils.set_sigterm_handler = lambda handler: None
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (RuntimeError, ValueError, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"--address {address}", problem, "a running cluster, as started by ray start") from None


def _print_note(message: Any, *_: object, **__: object) -> None:
    """Print Ray's messages on lost nodes as one line each on stderr; Ray would print pages to standard output."""
    for text in message.get("lines", ()):
        print(f"note: Ray: {' '.join(str(text).split())[:200]}", file=sys.stderr)


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would try again for many minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"--address {address}", str(error), "auto, or HOST:PORT of a running cluster") from None
