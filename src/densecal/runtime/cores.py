"""The cores that are really there."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath


def cores() -> int:
    """Return the number of cores that this process may use: fewer than the machine has, by affinity or a cgroup."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _cgroup_quota())))


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
