"""Cores are those that affinity and control groups allow."""

import math
import os

import pytest

from densecal.runtime import cores as module
from densecal.runtime.cores import _cgroup_quota, cores


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "100000 100000\n"}, 1.0),
        ("0::/host/path\n", {"cpu.max": "50000 100000\n"}, 0.5),  # a container sees its own group as the root
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "1 0\n"}, math.inf),
        ("0::/\n", {"cpu.max": "damaged"}, math.inf),
        ("0::/\n", {}, math.inf),
        (
            "4:memory:/x\n3:cpu,cpuacct:/g\n",
            {"cpu,cpuacct/g/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/g/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        ("3:cpu:/g\n", {"cpu/cpu.cfs_quota_us": "70000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.7),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("3:cpuset:/g\n", {"cpuset/g/cpu.cfs_quota_us": "1\n", "cpuset/g/cpu.cfs_period_us": "100\n"}, math.inf),
    ],
)
def test_control_groups_of_both_versions_limit_the_cores(tmp_path, membership, files, expected):
    (tmp_path / "membership").write_text(membership)
    write(tmp_path / "root", files)
    assert _cgroup_quota(tmp_path / "root", tmp_path / "membership") == expected
    assert _cgroup_quota(tmp_path / "root", tmp_path / "missing") == math.inf


@pytest.mark.parametrize(("quota", "expected"), [(0.2, 1), (1.5, 2), (3.0, 3), (9.0, 3), (math.inf, 3)])
def test_the_smaller_of_affinity_and_quota_counts(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    monkeypatch.setattr(module, "_cgroup_quota", lambda: quota)
    assert cores() == expected
