"""Output that cannot be written: a full disk, a folder that cannot be created, or one that another process uses."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from densecal.data.scenes import generate, write
from densecal.errors import InputError
from densecal.runtime.lock import lock_folder
from densecal.training.loop import train
from tests import forked, running
from tests.training.common import (
    SMALL,
    command,
    end_state,
    environment,
    log_lines,
    run,
    run_afresh,
    small_config,
    train_command,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a run, scenes, and a benchmark's matrix."""
    inputs = tmp_path_factory.mktemp("outputs")
    train(small_config("optim.epochs=1"), inputs / "run")
    write(generate(4, 48, seed=3), inputs / "scenes")
    settings = {"recipe": "demo", "overrides": SMALL[:6], "methods": ["bce"]}
    (inputs / "matrix.yaml").write_text(yaml.safe_dump(settings))
    return inputs


def commands(inputs: Path, out: Path) -> dict[str, list[str]]:
    masks, images = inputs / "scenes" / "masks", inputs / "scenes" / "images"
    return {
        "train": train_command(out, "engine.loggers=[]"),
        "evaluate": command("evaluate", masks, masks, "--metrics", "fast", "--workers", 1, "--json", out / "e.json"),
        "predict": command("predict", inputs / "run", images, "--out", out),
        "calibrate fit": command("calibrate", "fit", "isotonic", masks, masks, "--out", out / "cal.json"),
        "benchmark": command("benchmark", inputs / "matrix.yaml", "--out", out),
        "data pack": command("data", "pack", inputs / "scenes", "--size", 32, "--workers", 1, "--out", out / "cache"),
    }  # fmt: skip


NAMES = ["train", "evaluate", "predict", "calibrate fit", "benchmark", "data pack"]


def assert_one_line(arguments: list[str], out: Path) -> None:
    """Run a command in this process, and check that its last line names the output."""
    code, _, errors = running.run(*arguments[3:])
    assert code == 2, errors
    assert errors.splitlines()[-1].startswith(f"densecal: {out}"), errors
    assert "; expected " in errors.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_cannot_be_created_is_one_line(inputs, tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    assert_one_line(commands(inputs, tmp_path / "file" / "out")[name], tmp_path / "file")


def test_a_file_system_that_cannot_be_written_is_one_line():
    # permissions would not stop the superuser
    out = Path("/proc/densecal")
    assert_one_line(train_command(out), out)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_line(inputs, tmp_path, name):
    out = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        assert_one_line(commands(inputs, out)[name], out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
    assert left == [], "no partial file may stay"


def test_a_run_folder_has_one_process_at_a_time(tmp_path):
    out = tmp_path / "run"
    slow = train_command(out, "optim.epochs=2000")
    with forked.start(slow, env=environment()) as first:
        while first.poll() is None and not (out / "checkpoints" / "last" / "meta.json").exists():
            time.sleep(0.01)
        second = run([*slow, "--resume"])
        first.send_signal(signal.SIGKILL)
    assert second.returncode == 2
    assert "another process is training into it" in second.stderr
    # the lock is released when its process ends, even if it is killed
    with lock_folder(out) as mine:
        assert mine


def test_a_run_that_starts_at_the_same_moment_is_refused(tmp_path):
    with lock_folder(tmp_path / "run") as mine:
        assert mine
        with pytest.raises(InputError, match="another process"):
            train(small_config(), tmp_path / "run")
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["0", "1"])
def test_torchrun_restarts_from_the_last_checkpoint_when_a_process_is_killed(tmp_path, whole_of_two, killed):
    out = tmp_path / "killed"
    log = out / "log.jsonl"
    with subprocess.Popen(
        two_process_command(out), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= 2):
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = {_rank(child): int(child) for child in children if _rank(child) is not None}
        assert set(ranks) == {"0", "1"}, ranks
        before = log_lines(out)
        os.kill(ranks[killed], signal.SIGKILL)
        _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert "failed (exitcode: -9)" in errors
    # the first epoch was not repeated: its line still has the original speed
    assert log_lines(out)[0] == before[0]
    assert end_state(out) == whole_of_two


@pytest.fixture(scope="module")
def whole_of_two(tmp_path_factory):
    """The end state of a run of two processes without interruption."""
    out = tmp_path_factory.mktemp("two") / "whole"
    done = run_afresh(two_process_command(out))
    assert done.returncode == 0, done.stderr
    return end_state(out)


def two_process_command(out: Path) -> list[str]:
    python, _, module, *rest = train_command(out, "engine.devices=2", "optim.epochs=5", "engine.accelerator=cpu")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    return [python, *launcher, "-m", module, *rest, "--resume"]


def _rank(child: str) -> str | None:
    """Return the rank in a process's environment."""
    pairs = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    return next((pair[5:].decode() for pair in pairs if pair.startswith(b"RANK=")), None)
