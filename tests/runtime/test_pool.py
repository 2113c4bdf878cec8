"""Worker processes: results in order, errors passed on, few calls ahead, and none outlives its owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from densecal.errors import InputError
from densecal.runtime.cores import cores
from densecal.runtime.pool import environment, map_in_processes

setting = ""


def sleep_and_return(seconds: float, value: int) -> int:
    time.sleep(seconds)
    return value


def set_up(value: str) -> None:
    global setting
    setting = value


def describe_worker(_: int) -> tuple[int, str, str]:
    return os.getpid(), setting, os.environ.get("OMP_NUM_THREADS", "")


def describe_allocator(_: int) -> list[str]:
    return [os.environ.get(f"MALLOC_{limit}_THRESHOLD_", "") for limit in ("MMAP", "TRIM")]


def fail(value: int) -> int:
    if value == 2:
        raise InputError("two.png", "a two", "any other number")
    return value


def die(_: int) -> None:
    os._exit(9)


def test_results_come_in_the_order_of_the_calls():
    calls = [(0.2 if i == 0 else 0.0, i) for i in range(10)]
    assert list(map_in_processes(sleep_and_return, calls, 2)) == list(range(10))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_worker_keeps_its_parts(workers):
    with pytest.raises(InputError) as caught:
        list(map_in_processes(fail, [(i,) for i in range(4)], workers))
    assert (caught.value.where, caught.value.found, caught.value.expected) == ("two.png", "a two", "any other number")


def test_one_worker_is_this_process():
    [(process, _, _)] = map_in_processes(describe_worker, [(0,)], 1)
    assert process == os.getpid()


def test_workers_keep_memory_that_they_will_need_again():
    before = dict(os.environ)
    for limits in map_in_processes(describe_allocator, [(0,), (1,)], 2):
        assert all(int(limit) >= 1 << 25 for limit in limits)
    assert dict(os.environ) == before


def test_every_worker_is_set_up_and_uses_one_thread():
    results = list(map_in_processes(describe_worker, [(i,) for i in range(6)], 2, start=set_up, start_arguments=("a",)))
    assert {(value, threads) for _, value, threads in results} == {("a", "1")}
    assert os.getpid() not in {process for process, _, _ in results}


def test_a_worker_that_dies_is_one_error():
    with pytest.raises(InputError, match=r"^workers: one of 2 worker processes died; expected enough memory"):
        list(map_in_processes(die, [(i,) for i in range(4)], 2))


def test_arguments_are_requested_shortly_before_they_are_needed():
    requested = []

    def arguments():
        for i in range(50):
            requested.append(i)
            yield 0.0, i

    results = map_in_processes(sleep_and_return, arguments(), 2)
    assert next(results) == 0
    assert len(requested) <= 8
    assert list(results) == list(range(1, 50))


def test_environment_variables_are_restored(monkeypatch):
    monkeypatch.setenv("DENSECAL_TEST_OLD", "before")
    monkeypatch.delenv("DENSECAL_TEST_NEW", raising=False)
    variables = {"DENSECAL_TEST_OLD": "during", "DENSECAL_TEST_NEW": "during"}
    with environment(variables):
        assert os.environ["DENSECAL_TEST_OLD"] == os.environ["DENSECAL_TEST_NEW"] == "during"
    with pytest.raises(KeyError), environment(variables):
        raise KeyError
    assert os.environ["DENSECAL_TEST_OLD"] == "before"
    assert "DENSECAL_TEST_NEW" not in os.environ


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


POOL_OWNER = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from densecal.runtime.pool import start_worker

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(2, mp_context=context, initializer=start_worker)
    list(pool.map(abs, range(8)))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_pool_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(POOL_OWNER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, start_new_session=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        try:
            os.killpg(owner.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(owner.pid, signal.SIGKILL)
    raise AssertionError("workers outlived their owner")
