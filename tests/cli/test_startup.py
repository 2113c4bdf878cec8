"""What a command imports: no more than it uses, because imports are most of the time of a short one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.files import write_files

HEAVY = ("numpy", "scipy", "scipy.stats", "scipy.optimize", "scipy.ndimage", "matplotlib", "torch", "PIL", "pydantic")
SHELL = {"rich", "typer"}
MEASURING = {"numpy", "scipy", "scipy.ndimage", "PIL"}
REPAIRING = MEASURING | {"scipy.optimize"}
FREE = {"pydantic"}
"""Newer versions of typer import it to read arguments."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_files(tmp_path_factory.mktemp("startup") / "data", 3)


def imported(arguments: list[str], folder: Path) -> set[str]:
    """Return which heavy packages a command imports."""
    names = (*HEAVY, *SHELL)
    script = (
        f"import json, sys; sys.argv = ['densecal', *{arguments!r}]\n"
        "from densecal.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        f"print(); print(json.dumps([name for name in {names!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("--version", set()),
        ("--help", SHELL),
        ("evaluate --help", SHELL),
        ("train --help", SHELL),
        ("evaluate maps8 masks --json scores.json --workers 1", SHELL | MEASURING),
        ("evaluate softmax labels --classes 4 --workers 1", SHELL | MEASURING),
        ("calibrate fit temperature maps16 masks --out c.json", SHELL | REPAIRING),
        ("risk-control maps8 masks --alpha 0.4", SHELL | REPAIRING),
    ],
)
def test_a_command_imports_what_it_uses(arguments: str, allowed: set[str], data: Path) -> None:
    assert imported(arguments.split(), data) - FREE <= allowed


def test_the_version_is_that_of_the_command_line(data: Path) -> None:
    texts = {
        subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True).stdout
        for module in ("densecal", "densecal.cli")
    }
    assert len(texts) == 1
