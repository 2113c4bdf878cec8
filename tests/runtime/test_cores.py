"""Cores are those that affinity and control groups allow, and others take what their statistics say."""

import itertools
import math
import os
import time

import pytest

from densecal.runtime import cores as module
from densecal.runtime.cores import SHARE, _cgroup_quota, cores, create_load_meter


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


def statistics(*rows):
    """Return the text of `/proc/stat` for cores 0, 1, ...: user, nice, system, idle, disk, interrupts, more, stolen."""
    lines = [f"cpu{core} {' '.join(map(str, row))} 0 0" for core, row in enumerate(rows)]
    return "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *lines, "intr 5 0 0", "ctxt 1"])


IDLE = (500, 0, 0, 900, 0, 0, 0, 0)


@pytest.mark.parametrize(("share", "expected"), [("1", 1), ("2", 2), ("8", 3), ("0", 1), ("many", 3), ("", 3)])
def test_a_process_keeps_to_its_share_of_the_cores(monkeypatch, share, expected):
    monkeypatch.setattr(module, "_cgroup_quota", lambda: math.inf)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setenv(SHARE, share)
    assert cores() == expected


@pytest.mark.parametrize(
    ("after", "own", "wanted", "expected"),
    [
        ([IDLE, IDLE, IDLE], 0.0, 2, 0.0),
        ([(700, 0, 0, 900, 0, 0, 0, 0), IDLE, IDLE], 2.0, 2, 0.0),  # 200 ticks of our own in two seconds
        ([(700, 0, 0, 900, 0, 0, 0, 0), IDLE, IDLE], 0.5, 2, 0.75),
        ([(520, 30, 10, 900, 700, 5, 5, 30), IDLE, IDLE], 0.0, 2, 0.5),  # waiting for a disk takes no core
        ([(700, 0, 0, 900, 0, 0, 0, 0), (700, 0, 0, 900, 0, 0, 0, 0), IDLE], 1.0, 2, 1.5),
        ([(700, 0, 0, 900, 0, 0, 0, 0), (700, 0, 0, 900, 0, 0, 0, 0), IDLE], 1.0, 1, 0.5),  # one core to spare
        ([IDLE, IDLE, (700, 0, 0, 900, 0, 0, 0, 0)], 0.0, 2, 0.0),  # a core that is not ours
        ([IDLE, IDLE, IDLE], 1.0, 2, 0.0),
    ],
)
def test_others_take_what_is_busy_on_our_cores_and_not_our_own(monkeypatch, tmp_path, after, own, wanted, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    times, own_times = itertools.count(50.0, 2.0), itertools.count(3.0, own)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(module.time, "process_time", lambda: next(own_times))
    path = tmp_path / "stat"
    path.write_text(statistics(IDLE, IDLE, IDLE))
    taken = create_load_meter(wanted, path)
    path.write_text(statistics(*after))
    assert taken() == pytest.approx(expected)
    assert taken() == 0.0  # nothing has happened since


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2 3\n", statistics(IDLE), "cpu0 a b c d e f g h\n"])
def test_systems_without_load_statistics_count_as_quiet(monkeypatch, tmp_path, text):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    path = tmp_path / "stat"
    if text is not None:
        path.write_text(text)
    assert create_load_meter(2, path) is None
    path.write_text(statistics(IDLE, IDLE))
    taken = create_load_meter(2, path)
    path.write_text(text or "")
    assert taken() == 0.0


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only Linux tells")
def test_this_machine_tells():
    taken = create_load_meter(cores())
    time.sleep(0.1)
    assert 0 <= taken() <= len(os.sched_getaffinity(0)) + 0.5
