"""What the commands have in common: two ways to start them, and mistakes reported before imports and work."""

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from densecal.cli.evaluate import evaluate
from densecal.cli.predict import predict
from densecal.evaluation.worker import Settings
from densecal.io.images import MAX_PIXELS
from densecal.prediction.folder import write_maps
from tests import forked
from tests.running import run
from tests.training.common import environment


@pytest.mark.parametrize("module", ["densecal", "densecal.cli"])
def test_both_modules_can_be_run(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("densecal ")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["train", "demo", "optim.lr=fast", "--out", "x"], "densecal.training.loop"),
        (["predict", "run", "photos", "--overlap", "32", "--out", "x"], "torch"),
        (["calibrate", "fit", "platt", "maps", "masks", "--out", "x.txt"], "torch"),
        (["calibrate", "fit", "plat", "maps", "masks", "--out", "x.json"], "densecal.calibrate"),
        (["benchmark", "nowhere.yaml", "--out", "x"], "matplotlib"),
        (["report", "run", "--masks", "masks", "--out", "x.html"], "densecal.report.collect"),
    ],
)
def test_mistakes_are_reported_before_heavy_imports(arguments, heavy):
    code = (
        f"import sys; sys.argv = ['densecal', *{arguments!r}]\n"
        f"from densecal import cli\n"
        f"try: cli.main()\n"
        f"except SystemExit as stop: print(stop.code, {heavy!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n", done.stderr


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("yaml", ["train", "demo", "--out", "x"]),
        ("pydantic", ["demo", "--out", "x"]),
        ("safetensors", ["predict", "run", "photos", "--out", "x"]),
        ("lightning_fabric", ["train", "demo", "--out", "x"]),
    ],
)
def test_without_the_packages_of_training_one_line_says_so(missing, arguments, tmp_path):
    code = f"sys.argv = ['densecal', *{arguments!r}]\nfrom densecal import cli\ncli.main()"
    done = forked.run_without([missing], code, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"densecal: {missing}: not installed; expected pip install 'densecal[train]'\n"


def test_torchmetrics_does_not_delay_training_and_can_be_imported_afterwards():
    code = (
        "import sys\nimport densecal.training.loop\nfrom lightning_fabric.utilities import imports\n"
        "print('torchmetrics' in sys.modules, imports._TORCHMETRICS_GREATER_EQUAL_1_0_0)\n"
        "import torchmetrics\nprint(torchmetrics.__name__)"
    )
    done = forked.run([sys.executable, "-c", code], env=environment())  # has imported even more than the loop
    assert done.stdout == "False True\ntorchmetrics\n", done.stderr


@pytest.fixture
def folder(tmp_path):
    """A folder with one map, which is its own mask."""
    (tmp_path / "maps").mkdir()
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(tmp_path / "maps" / "x.png")
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "maps"


@pytest.mark.parametrize(
    ("option", "target", "reason"),
    [
        ("--json", "maps", "it is a folder"),
        ("--csv", "file/x.csv", "file is a file"),
        ("--latex", "file/new/x.tex", "file is a file"),
        ("--figures", "file", "file is a file"),
        ("--figures", "locked/figures", "Permission denied"),
    ],
)
def test_targets_of_evaluate_are_checked_before_scoring(folder, tmp_path, monkeypatch, option, target, reason):
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    monkeypatch.setattr("densecal.evaluation.folders.evaluate", lambda *_, **__: pytest.fail("it was scored"))
    (tmp_path / "locked").mkdir()
    code, _, err = run("evaluate", folder, folder, option, tmp_path / target)
    assert code == 2
    assert err.startswith(f"densecal: {tmp_path / target}: cannot be written (")
    assert reason in err
    assert err.count("\n") == 1


def test_a_run_in_place_of_maps_is_named_with_the_command_that_makes_maps(folder, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    code, _, err = run("evaluate", tmp_path / "run", folder)
    assert code == 2
    assert err.startswith(f"densecal: {tmp_path / 'run'}: a run, which holds no maps; expected maps, as densecal ")
    assert err.count("\n") == 1


def test_targets_may_be_in_new_folders(folder, tmp_path):
    code, _, err = run("evaluate", folder, folder, "--json", tmp_path / "a" / "b" / "x.json", "--workers", 1)
    assert code == 0, err
    assert (tmp_path / "a" / "b" / "x.json").is_file()


def test_the_commands_have_the_same_limit_of_pixels():
    assert inspect.signature(predict).parameters["max_pixels"].default is None  # a limit for pictures and for volumes
    assert inspect.signature(write_maps).parameters["max_pixels"].default is MAX_PIXELS
    assert inspect.signature(evaluate).parameters["max_pixels"].default is None  # a limit per format
    assert Settings().max_pixels is MAX_PIXELS
