"""The tutorial is its notebook, and the notebook runs from an empty folder."""

import contextlib
import importlib.util
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def made() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("make_notebook", DOCS / "tools/make_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.notebook((DOCS / "tutorial.md").read_text(encoding="utf-8"))


def test_the_notebook_is_the_page():
    assert json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8")) == made()


def test_every_cell_is_text_or_code_that_compiles():
    cells = made()["cells"]
    assert {cell["cell_type"] for cell in cells} == {"markdown", "code"}
    for cell in cells:
        source = "".join(cell["source"])
        assert "```" not in source
        if cell["cell_type"] == "code" and not source.startswith("!"):
            compile(source, "cell", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("smaller", [["optim.epochs=2", "data.scenes.train=24", "data.scenes.validation=8"], []])
def test_the_notebook_runs_from_an_empty_folder(tmp_path, monkeypatch, smaller):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    for cell in made()["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if not source.startswith("!"):
            with contextlib.redirect_stdout(printed):
                exec(compile(source, "cell", "exec"), names)
            continue
        for line in source.splitlines():
            words = shlex.split(line.removeprefix("!"))
            assert words[0] == "densecal"
            code, out, err = run(*words[1:], *(smaller if words[1] == "train" else ()))
            assert code == 0, (line, out[-1500:], err[-1500:])
    first, second = printed.getvalue().splitlines()
    print(printed.getvalue(), file=sys.stderr)
    assert (tmp_path / "all.html").stat().st_size > 50_000
    if smaller:
        return
    assert float(first.split(" % sure")[0]) > float(first.split(", ")[1].split(" %")[0])  # over-confident
    assert float(second.split("falls by ")[1].split(" ")[0]) > 0
