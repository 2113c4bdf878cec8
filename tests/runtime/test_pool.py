"""Worker processes end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(owner.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(owner.pid, signal.SIGKILL)
    raise AssertionError("workers outlived their owner")
