"""Wrong variables of torchrun and SLURM give one line, and a process whose peers never arrive says so and ends."""

import os
import socket
import sys

import pytest

from tests import forked
from tests.adversarial.common import assert_one_line, densecal, write_set

WRONG = {
    "WORLD_SIZE": ["abc", "0", "-1", "1.5", "", "9" * 5000, "\N{SUPERSCRIPT TWO}"],
    "RANK": ["abc", "-1", "2"],
    "LOCAL_RANK": ["first", "2"],
    "MASTER_PORT": ["http", "65536", "-1"],
    "LOCAL_WORLD_SIZE": ["none"],
}
SOUND = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_wrong_variable_is_named(tmp_path, monkeypatch, command, name, value):
    write_set(tmp_path)
    for variable, sound in SOUND.items():
        monkeypatch.setenv(variable, sound)
    monkeypatch.setenv(name, value)
    arguments = {"evaluate": ["evaluate", "maps", "masks"], "train": ["train", "demo", "--out", "run"]}[command]
    assert_one_line(densecal(tmp_path, *arguments), f"densecal: {name}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "NODE_RANK"])
def test_a_wrong_variable_of_slurm_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "abc")
    assert_one_line(densecal(tmp_path, "train", "demo", "--out", "run"), f"densecal: {name}: 'abc'")


def test_a_world_size_that_does_not_match_the_devices_is_one_line(tmp_path, monkeypatch):
    for variable, value in {**SOUND, "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(variable, value)
    result = densecal(tmp_path, "train", "demo", "engine.devices=2", "engine.accelerator=cpu", "--out", "run")
    assert_one_line(result, "processes: cannot join the others", "does not match the world size (3)")


def test_half_of_the_variables_is_one_line(tmp_path, monkeypatch):
    write_set(tmp_path)
    for variable in ("WORLD_SIZE", "RANK"):
        monkeypatch.setenv(variable, SOUND[variable])
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks"), "cannot join the others", "MASTER_ADDR")


LONELY = """
import sys
from datetime import timedelta
from densecal import cli
from densecal.runtime import sharding
sharding.JOIN_TIMEOUT = timedelta(seconds=3)
sharding.NOTICE_SECONDS = 0.5
sys.argv = ["densecal", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_waits_alone_says_so_and_ends(tmp_path, rank):
    write_set(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", LONELY, "evaluate", "maps", "masks"]
    done = forked.run(command, cwd=tmp_path, env={**os.environ, **variables, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2, done.stderr
    own = [line for line in done.stderr.splitlines() if line.startswith("densecal: ")]
    assert f"waiting for the other processes (RANK={rank}, WORLD_SIZE=2, MASTER_ADDR=127.0.0.1" in own[0]
    assert "ends after 0.05 minutes" in own[0]
    assert own[1].startswith("densecal: processes: cannot join the others (RANK=")
    assert "Traceback" not in done.stderr
