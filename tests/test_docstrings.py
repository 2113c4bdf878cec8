"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import densecal

MODULES = [
    module.name
    for module in pkgutil.walk_packages(densecal.__path__, "densecal.")
    if not module.name.startswith("densecal.cli")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    names = {"torch": importlib.import_module("torch"), "np": importlib.import_module("numpy")}
    assert doctest.testmod(module, extraglobs=names).failed == 0
