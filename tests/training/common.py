"""A run small enough for tests: scenes of 32 pixels and a small network."""

import json
import os
import subprocess
import sys
from pathlib import Path

from densecal.training.config import Config, load_config
from tests import forked, running

SMALL = [
    "data.size=32",
    "data.scenes.train=18",
    "data.scenes.validation=6",
    "model.encoder=test_efficientnet",  # timm's smallest
    "model.options={decoder_channels: [16, 16, 8, 8, 8]}",
    "optim.batch=4",
    "optim.epochs=3",
    "method.warmup=1",
    "method.lam=50",
    "method.eta=0.02",
]


def small_config(*overrides: str) -> Config:
    other_method = any(override.startswith("method.name=") for override in overrides)
    kept = [setting for setting in SMALL if not (other_method and setting.startswith("method."))]
    return load_config("demo", [*(["method={}"] if other_method else []), *kept, *overrides])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "densecal.cli", *map(str, arguments)]


def train_command(out: Path, *overrides: str) -> list[str]:
    return command("train", "demo", *SMALL, *overrides, "--out", str(out))


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(arguments: list[str]) -> subprocess.CompletedProcess:
    """Run a command in a process of its own."""
    return forked.run(arguments, env=environment())


_SIGNALLED = """
import os, sys, threading, time
from densecal import cli
log, number, lines, delay = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def count():
    return len(open(log).read().splitlines()) if os.path.exists(log) else 0
wanted = count() + lines
def work():
    while count() < wanted:
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(os.getpid(), number)
threading.Thread(target=work, daemon=True).start()
sys.argv = ["densecal", *sys.argv[5:]]
cli.main()
"""


def run_signalled(
    arguments: list[str], out: Path, number: int, lines: int, delay: float = 0
) -> subprocess.CompletedProcess:
    """Run a command that gets a signal when so many lines more are in its log, after a delay.

    It sends the signal itself, so that it cannot be far ahead of a process that is late on a busy machine.
    """
    own = ["-c", _SIGNALLED, str(out / "log.jsonl"), str(int(number)), str(lines), str(delay)]
    return forked.run([arguments[0], *own, *arguments[3:]], env=environment())


_FORKED_WORKERS = """
import multiprocessing, sys
from densecal import cli
create = multiprocessing.get_context
multiprocessing.get_context = lambda method: create("fork")
sys.argv = ["densecal", *sys.argv[1:]]
cli.main()
"""


def with_forked_workers(arguments: list[str]) -> list[str]:
    """Change a command for `forked`: its worker processes are forked from it too, and need not import everything."""
    return [arguments[0], "-c", _FORKED_WORKERS, *arguments[3:]]


def run_afresh(arguments: list[str]) -> subprocess.CompletedProcess:
    """Do the same as `run` from a new interpreter, as a shell does; that takes seconds for the imports."""
    return subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=300)


def run_here(arguments: list[str]) -> subprocess.CompletedProcess:
    """Do the same as `run` in this process, which has already imported everything."""
    return subprocess.CompletedProcess(arguments, *running.run(*arguments[3:]))


def log_lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def end_state(out: Path) -> dict[str, bytes]:
    """Return what must be equal to the bit: weights, alpha, and the figures of the log without timings."""
    files = {
        name: (out / "checkpoints" / "last" / name).read_bytes() for name in ("model.safetensors", "method.safetensors")
    }
    files["best"] = (out / "checkpoints" / "best" / "model.safetensors").read_bytes()
    files["alpha.csv"] = (out / "alpha.csv").read_bytes()
    lines = [{k: v for k, v in line.items() if k != "images_per_second"} for line in log_lines(out)]
    files["log"] = json.dumps(lines).encode()
    return files
