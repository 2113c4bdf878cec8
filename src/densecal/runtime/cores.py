"""How many cores this process may use, and how many of them other processes are using."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

SHARE = "DENSECAL_CORES"
"""Environment variable: the most cores that a process uses, set for processes that share a machine."""


def cores() -> int:
    """Return how many cores this process may use; affinity, a cgroup or its share may allow fewer than exist."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(SHARE, "")
    return max(1, math.ceil(min(count, _cgroup_quota(), int(share) if share.isdecimal() else math.inf)))


def create_load_meter(threads: int, statistics: Path = Path("/proc/stat")) -> Callable[[], float] | None:
    """Create a function that returns how many of the cores for our threads others have used since its last call.

    The figure is 0 while others use only the remaining cores. Return ``None`` on systems without statistics.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}

    def read() -> tuple[float, float, float] | None:
        busy = _busy_seconds(statistics, allowed)
        return None if busy is None else (time.monotonic(), busy, time.process_time())

    before = read()
    if before is None:
        return None

    def busy_cores() -> float:
        nonlocal before
        now = read()
        if now is None or before is None or now[0] <= before[0]:
            return 0.0
        seconds, busy, own = (after - earlier for after, earlier in zip(now, before, strict=True))
        before = now
        return max(0.0, (busy - own) / seconds - (len(allowed) - threads))

    return busy_cores


def _busy_seconds(statistics: Path, allowed: set[str]) -> float | None:
    """Return the seconds since boot in which these cores were busy, or given to others by a hypervisor."""
    try:
        rows = [line.split() for line in statistics.read_text().splitlines()]
        ticks = [[int(word) for word in row[1:9]] for row in rows if row and row[0] in allowed]
    except (OSError, ValueError):
        return None
    # user, nice, system, idle, waiting for a disk, interrupts, more of them, stolen
    if len(ticks) < len(allowed) or any(len(row) < 8 for row in ticks):
        return None
    return sum(sum(row) - row[3] - row[4] for row in ticks) / os.sysconf("SC_CLK_TCK")


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many cores the control groups of this process, of version 1 or 2, allow it, or infinity."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder / "cpu.max") for folder in _with_parents(root, path)]
        elif "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu"):
                quotas += [_quota_v1(folder) for folder in _with_parents(mount, path)]
    return min(quotas)


def _with_parents(root: Path, path: str) -> list[Path]:
    """Return the folder of a group and of the groups around it. In a container, outer ones may not be visible."""
    inner = PurePosixPath(path.lstrip("/"))
    return [root / part for part in (inner, *inner.parents)]


def _quota_v2(path: Path) -> float:
    numbers = _read_numbers(path)
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] > 0 else math.inf


def _quota_v1(folder: Path) -> float:
    quota, period = (_read_numbers(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota[0] / period[0] if quota and period and quota[0] > 0 < period[0] else math.inf


def _read_numbers(path: Path) -> list[float]:
    """Return the numbers in a file; none if it is missing or says `max`."""
    try:
        return [float(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
