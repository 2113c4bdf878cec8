"""Locks: held by one process at a time, and released however that process ends."""

import subprocess
import sys
import threading

import pytest

from densecal.errors import InputError
from densecal.runtime.lock import lock_file, lock_folder

HOLDS_A_LOCK = """
import sys, time
from pathlib import Path
from densecal.runtime.lock import lock_folder
with lock_folder(Path(sys.argv[1])) as held:
    print(held, flush=True)
    time.sleep(60)
"""


def test_a_missing_folder_is_created_and_left_empty(tmp_path):
    with lock_folder(tmp_path / "a" / "b") as held:
        assert held
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_lock_is_free_again_after_an_error(tmp_path):
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError
    with lock_folder(tmp_path) as held:
        assert held


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDS_A_LOCK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with lock_folder(tmp_path) as held:
            assert not held
        with lock_folder(tmp_path) as held:  # giving up does not release the lock of the other process
            assert not held
        other.kill()
    with lock_folder(tmp_path) as held:
        assert held


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"file/out: cannot be written \(.+\); expected a folder"),
        lock_folder(tmp_path / "file" / "out"),
    ):
        pass


def test_a_lock_file_exists_only_while_it_is_held(tmp_path):
    path = tmp_path / "build.lock"
    with lock_file(path, wait=True) as held:
        assert held
        assert path.exists()
        with lock_file(path, wait=False) as again:
            assert not again
        assert path.exists()
    assert not path.exists()


def test_a_thread_that_waits_gets_the_lock_and_the_file_of_its_own(tmp_path):
    path = tmp_path / "build.lock"
    states = []

    def wait() -> None:
        with lock_file(path, wait=True) as held:
            states.append((held, path.exists()))

    waiting = threading.Thread(target=wait)
    with lock_file(path, wait=True):
        waiting.start()
        waiting.join(0.2)
        assert states == []
    waiting.join(200)
    assert states == [(True, True)]


def test_a_lock_file_that_cannot_be_created_is_not_held(tmp_path):
    (tmp_path / "file").write_text("")
    with lock_file(tmp_path / "file" / "build.lock", wait=False) as held:
        assert not held
