"""Commands in processes of their own that start at once: forked from a process that has imported what they need.

A test that kills a command, or looks at its output and exit code, needs a process but not the three seconds of imports
before it. `run` and `start` take the arguments of `subprocess` for `python -m MODULE ...` and `python -c CODE ...`.
What depends on a fresh interpreter (which modules are imported, hash seeds, memory, threads) is tested by `subprocess`.

`python -m tests.forked` is the process that is forked. It reads requests, forks once per request, and that process
forks the command, waits for it and writes down how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTS = (
    "densecal.cli", "densecal.benchmark", "densecal.calibrate", "densecal.data.packed", "densecal.evaluation.folders",
    "densecal.models", "densecal.prediction", "densecal.report.tables", "densecal.training.loop", "torch.optim",
    # what these import when they are called
    "densecal.report.figures", "rich.progress", "segmentation_models_pytorch", "timm", "torch.utils.tensorboard",
)  # fmt: skip


class Command:
    """A command that runs in a process of its own.

    Attributes:
        pid: The process.
        args: Its arguments.
        returncode: Its exit code, or minus the signal that ended it; None while it runs.
    """

    def __init__(
        self, arguments: Sequence[str | Path], env: Mapping[str, str] | None, cwd: Path | None, new_session: bool
    ):
        self.args = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        self._printed: tuple[str, str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="densecal-command-")
        self._place = Path(self._folder.name)
        request = {
            "arguments": self.args[1:], "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()), "out": self._folder.name, "session": new_session,
        }  # fmt: skip
        server = _server(os.getpid())
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        if self.returncode is None and (self._place / "status").exists():
            self.returncode = os.waitstatus_to_exitcode(int((self._place / "status").read_text()))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end; return what was printed on stdout and stderr."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.002)
        if self._printed is None:
            files = (self._place / "stdout", self._place / "stderr")
            out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
            self._printed = out, err
            self._folder.cleanup()
        return self._printed

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.send_signal(signal.SIGKILL)
        self.communicate()


def start(
    arguments: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    new_session: bool = False,
) -> Command:  # fmt: skip
    """Start `python -m MODULE ...` or `python -c CODE ...`; what it prints can be read when it has ended."""
    return Command(arguments, env, cwd, new_session)


def run(
    arguments: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end."""
    command = start(arguments, env=env, cwd=cwd)
    out, err = command.communicate(timeout)
    return subprocess.CompletedProcess(command.args, command.returncode or 0, out, err)


def run_without(missing: Sequence[str], code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code as if these packages were not installed. What may import them is imported again, unlike PyTorch."""
    return run([sys.executable, "-c", _WITHOUT.format(missing=tuple(missing)) + code], cwd=cwd)


_WITHOUT = """
import sys
for name in list(sys.modules):
    if name.partition(".")[0] in {missing!r} or name.startswith(("densecal", "timm", "segmentation_models_pytorch")):
        del sys.modules[name]
sys.modules.update(dict.fromkeys({missing!r}))
"""


def run_ranks(module: str, folder: Path) -> None:
    """Run `worker(rank, folder)` of a test module as ranks 0 and 1, in processes at the same time."""
    done = run([sys.executable, "-c", _RANKS.format(module=module), folder], cwd=ROOT)
    assert done.returncode == 0, done.stderr


# the module is imported once, before the ranks are forked; others end with the first that fails
_RANKS = """
import multiprocessing, sys
from multiprocessing.connection import wait
from {module} import worker
create = multiprocessing.get_context("fork").Process
ranks = [create(target=worker, args=(rank, sys.argv[1]), daemon=True) for rank in (0, 1)]
for rank in ranks:
    rank.start()
running = ranks
while running and not any(rank.exitcode for rank in ranks):
    wait([rank.sentinel for rank in running])
    running = [rank for rank in running if rank.is_alive()]
sys.exit(any(rank.exitcode for rank in ranks))
"""


@functools.cache
def _server(owner: int) -> subprocess.Popen[str]:
    """Start the process that is forked, once per process that asks; it ends with that process."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.forked"], cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def _serve() -> dict[str, Any] | None:
    """Fork commands until there are no more requests; return the request in the process of the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes in between
    answers = os.dup(1)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        command = os.fork()
        if command == 0:
            os.close(answers)
            return request
        os.write(answers, f"{command}\n".encode())
        for descriptor in (0, 1, answers):
            os.close(descriptor)
        _, status = os.waitpid(command, 0)
        written = Path(request["out"]) / "status.tmp"
        if written.parent.exists():
            written.write_text(str(status))
            written.rename(written.with_suffix(""))
        os._exit(0)
    return None


def _become(request: dict[str, Any]) -> None:
    """Turn this process into the one that was asked for, and do its work."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor, name in enumerate((os.devnull, "stdout", "stderr")):
        flags = os.O_RDWR | os.O_CREAT
        opened = os.open(os.path.join(request["out"], name), flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    kind, source, *arguments = request["arguments"]
    sys.argv = [kind, *arguments]
    sys.path[0] = "" if kind == "-c" else request["folder"]
    if kind == "-m":
        runpy.run_module(source, run_name="__main__", alter_sys=True)
    else:
        assert kind == "-c", kind
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})


def _import_all() -> None:
    """Import what commands need, in the order of the command line.

    The garbage collector leaves all that alone, here and in the processes of the commands. It would cost each of them
    up to a second, also because a process shares the memory only as long as it does not look at it.
    """
    gc.disable()
    for module in IMPORTS:
        importlib.import_module(module)
    gc.freeze()
    atexit.register(gc.unfreeze)  # the interpreter frees it all at its end, which packages in C++ check


if __name__ == "__main__":
    _import_all()
    asked = _serve()
    if asked is not None:
        gc.enable()
        _become(asked)
