"""The examples in docstrings are true."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import densecal

IN_C = ("densecal.io._png", "densecal.metrics._native")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(densecal.__path__, "densecal.")
    if not module.name.startswith("densecal.cli") and module.name not in IN_C
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name.startswith("densecal.integrations.ray"):
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'densecal[ray]'")
    module = importlib.import_module(name)
    names = {"torch": importlib.import_module("torch"), "np": importlib.import_module("numpy")}
    done = doctest.testmod(module, extraglobs=names)
    assert done.failed == 0
    assert done.attempted == inspect.getsource(module).count(">>> ")


def test_there_are_examples():
    files = Path(densecal.__file__).parent.rglob("*.py")
    assert sum(path.read_text(encoding="utf-8").count(">>> ") for path in files) >= 20
