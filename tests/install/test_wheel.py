"""The wheel and the sdist: complete, valid, and enough to measure and repair where there is no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import densecal
from tests.install.files import commands, write_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DATA = [path for path in (ROOT / "src/densecal").rglob("*") if path.suffix not in ("", ".py", ".pyc", ".so", ".pyd")]
"""Recipes, matrices, lists, templates, the files of the page and the source in C."""


def extra(name: str) -> dict[str, Requirement]:
    requirements = map(Requirement, PROJECT["optional-dependencies"][name])
    return {requirement.name: requirement for requirement in requirements}


def test_the_base_has_no_torch_and_every_extra_that_uses_it_has():
    base = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert not base & {"torch", "timm", "lightning-fabric", "safetensors", "onnx"}
    assert {"numpy", "scipy", "pillow", "tifffile"} <= base
    assert all("torch" in extra(name) for name in ("torch", "train", "export", "integrations"))


def test_all_brings_every_extra_but_those_of_development():
    (everything,) = extra("all").values()
    assert everything.extras == set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "oracles"}


def run(*words: object, **given: object) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, **given)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> tuple[Path, Path]:
    """Build both packages as the release does."""
    folder = tmp_path_factory.mktemp("packages")
    python = make_environment(folder / "tools")
    run(python, "-m", "pip", "install", "-q", "build", "twine")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT)
    (wheel,), (source,) = ((folder / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
    run(python, "-m", "twine", "check", "--strict", wheel, source)
    return wheel, source


def make_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


@pytest.mark.slow
def test_both_packages_carry_every_file(packages):
    wheel, source = packages
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    assert len(DATA) > 40
    for path in DATA:
        assert path.relative_to(ROOT / "src").as_posix() in in_wheel
        assert path.relative_to(ROOT).as_posix() in in_source
    assert not any("__pycache__" in name or name.startswith("tests/") for name in in_wheel)


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.12", "3.13", "3.14"])
def test_the_dependencies_of_the_wheel_resolve(python, packages, tmp_path):
    options = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--python-version", python)
    text = run(sys.executable, "-m", "pip", "install", *options, "--target", tmp_path, packages[0])
    assert f"densecal-{densecal.__version__}" in text
    assert "torch" not in text


@pytest.mark.slow
def test_the_wheel_measures_and_repairs_in_an_empty_environment(packages, tmp_path):
    python = make_environment(tmp_path / "empty")
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", packages[0])
    assert "torch" not in run(python, "-m", "pip", "list")
    command = python.with_name("densecal")
    assert run(command, "--version", cwd=tmp_path) == f"densecal {densecal.__version__}\n"
    data, out = write_files(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    lines = commands(data, out)
    lines[0] += ("--figures", str(out / "figures"))
    for arguments in lines:
        run(command, *arguments, cwd=tmp_path)
    files = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.json")}
    out.rename(tmp_path / "kept")
    out.mkdir()  # the same names, which files hold
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for arguments in lines:
        subprocess.run([sys.executable, "-m", "densecal", *arguments], env=here, check=True, capture_output=True)
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*.json")} == files
    assert len(files) >= 14
    done = subprocess.run([command, "train", "demo", "--out", "run"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "densecal: torch: not installed; expected pip install 'densecal[train]'\n"
