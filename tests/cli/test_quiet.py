"""--quiet: what was asked for is written, and nothing is said but warnings, errors and failed checks."""

import json
import sys

import numpy as np
import pytest
import typer
from PIL import Image

from densecal.cli import app
from tests import forked
from tests.cli.test_help import commands
from tests.running import run


@pytest.fixture
def folders(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for kind in ("maps", "masks"):
        (tmp_path / kind).mkdir()
        for i in range(12):
            truth = np.add.outer(np.arange(20), np.arange(20)) > 15 + i
            p = np.clip(0.2 + 0.6 * truth + rng.normal(0, 0.2, truth.shape), 0.01, 0.99)
            pixels = 255 * (truth if kind == "masks" else p)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / kind / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "maps", "masks", "--json", "scores.json", "--workers", "1"),
        ("calibrate", "fit", "temperature", "maps", "masks", "--out", "cal.json"),
        ("risk-control", "maps", "masks", "--json", "risk.json"),
    ],
)
def test_a_quiet_command_writes_its_file_and_prints_nothing(folders, words):
    for option in ("--quiet", "-q"):
        code, out, errors = run(*words, option)
        assert (code, out, errors) == (0, "", "")
    assert (folders / words[[*words].index("--json" if "--json" in words else "--out") + 1]).is_file()
    assert run(*words)[1] != ""  # the next command is not quiet


def test_json_on_standard_output_is_all_there_is(folders):
    words = [sys.executable, "-m", "densecal", "evaluate", "maps", "masks", "--json", "-", "--workers", "1", "--quiet"]
    done = forked.run(words, cwd=folders)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["images"] == 12


def test_errors_and_failed_checks_are_said_all_the_same(folders):
    code, out, errors = run("evaluate", "nowhere", "masks", "--quiet")
    assert (code, out) == (2, "")
    assert "nowhere" in errors
    assert run("evaluate", "maps", "masks", "--json", "scores.json", "--workers", "1", "-q")[0] == 0
    limits = ("--max", "ece_ew=0", "--max", "brier=1")
    code, out, _ = run("check", "scores.json", *limits, "--quiet")
    assert code == 1
    assert len(out.splitlines()) == 1
    assert "ece_ew" in out
    assert len(run("check", "scores.json", *limits)[1].splitlines()) == 2


def test_every_command_has_the_option():
    for path, command in commands(typer.main.get_command(app)).items():
        if not hasattr(command, "commands"):
            context = command.make_context(path[-1], [], resilient_parsing=True)
            assert {"--quiet", "-q"} <= {name for p in command.get_params(context) for name in p.opts}, path
