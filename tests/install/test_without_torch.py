"""Measuring and repairing need no PyTorch: modules and commands in a process where importing it fails."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.install.files import commands, write_files
from tests.running import run

BLOCKED = [sys.executable, str(Path(__file__).with_name("blocked.py"))]
SRC = Path(__file__).parents[2] / "src"
LEFT = ("errors", "names", "runtime", "io", "metrics", "posthoc", "evaluation", "calibrate", "cli")
"""Rooms of the left half. Of ``data`` and ``report``, what networks and benchmarks need is left out below."""
NETWORKS = (
    "posthoc.networks", "posthoc.torch_module", "calibrate.runs", "evaluation.model", "evaluation.shift",
    "data.augment", "data.enhance", "data.informationless", "report.benchmark",
)  # fmt: skip
"""Modules of the left half that serve networks."""


def modules() -> list[str]:
    """Return the modules of the left half, without those that serve networks."""
    files = [path for room in (*LEFT, "data", "report") for path in sorted((SRC / "densecal").glob(f"{room}*/**/*.py"))]
    files += sorted((SRC / "densecal").glob("*.py"))
    names = [".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for path in files]
    alone = ("densecal.rng", "densecal.labels", "densecal.demo")  # labels and their noise are for training
    return [
        name
        for name in names
        if name not in alone
        and not name.endswith("__main__")
        and not name.startswith(tuple(f"densecal.{module}" for module in NETWORKS))
    ]


def test_every_module_that_measures_or_repairs_is_imported_without_torch():
    names = modules()
    assert len(names) > 120
    done = subprocess.run([*BLOCKED, "import", *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["densecal.posthoc.networks.selective", "densecal.calibrate.runs"])
def test_the_process_of_these_tests_has_no_torch(module):
    assert importlib.util.find_spec("torch") is not None
    done = subprocess.run([*BLOCKED, "import", module], capture_output=True, text=True)
    assert "No module named 'torch'" in done.stderr


def test_commands_write_the_same_bytes_without_torch(tmp_path):
    data = write_files(tmp_path / "data")
    without, with_torch = tmp_path / "without", tmp_path / "with"
    without.mkdir()
    done = subprocess.run([*BLOCKED, "commands", data, without], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    without.rename(tmp_path / "kept")
    without.mkdir()  # the same names, which files hold
    import torch  # noqa: F401

    for arguments in commands(data, without):
        assert run(*arguments)[0] == 0, arguments
    without.rename(with_torch)
    (tmp_path / "kept").rename(without)
    files = sorted(path.relative_to(without) for path in without.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(with_torch) for path in with_torch.rglob("*") if path.is_file())
    assert len(files) >= 60
    for file in files:
        assert (without / file).read_bytes() == (with_torch / file).read_bytes(), file


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("train", "demo", "--out", "run"), "train"),
        (("predict", "run", "photographs", "--out", "maps"), "train"),
        (("demo",), "train"),
        (("export", "run", "--out", "model.onnx"), "export"),
        (("calibrate", "fit", "selective", "floats", "masks", "--images", "photographs", "--out", "c.json"), "torch"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_that_needs_an_extra_says_so_in_one_line(arguments, extra, tmp_path):
    done = subprocess.run([*BLOCKED, *arguments], capture_output=True, text=True, cwd=write_files(tmp_path / "d", 2))
    assert done.returncode == 2
    assert done.stderr == f"densecal: torch: not installed; expected pip install 'densecal[{extra}]'\n"


def test_arrays_are_calibrated_without_torch(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from densecal.posthoc import LogitHistogram, create, load, save\n"
        "rng = np.random.default_rng(0)\n"
        "z = 3 * rng.normal(size=10_000)\n"
        "y = rng.random(z.size) < 1 / (1 + np.exp(-z / 2))\n"
        "histogram = LogitHistogram()\n"
        "histogram.update(z, y)\n"
        f"save(create('temperature').fit(histogram), {str(tmp_path / 'c.json')!r})\n"
        f"p = load({str(tmp_path / 'c.json')!r})(z.reshape(1, 1, 100, 100))\n"
        f"np.save({str(tmp_path / 'p.npy')!r}, p)\n"
    )
    code = f"import runpy, sys; sys.argv = ['x', 'import']; runpy.run_path({BLOCKED[1]!r}, run_name='__main__')\n"
    subprocess.run([sys.executable, "-c", f"{code}runpy.run_path({str(script)!r})"], check=True)
    p = np.load(tmp_path / "p.npy")
    z = 3 * np.random.default_rng(0).normal(size=10_000).reshape(p.shape)
    assert np.log(p / (1 - p)) == pytest.approx(z / 2, abs=0.3)
