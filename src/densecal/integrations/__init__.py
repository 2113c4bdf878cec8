"""Adapters for other people's tools; each file needs a package of its own, and nothing else in densecal needs it."""

from importlib import import_module
from types import ModuleType


def required(user: str, *packages: str) -> ModuleType:
    """Import the first package of several that is installed.

    Args:
        user: Who needs it, for the message.
        packages: Importable names that will do.

    Raises:
        ImportError: None of them is installed; says how to get one.
    """
    for package in packages:
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            # a package that is there and lacks one of its own parts is another problem
            if error.name not in (package, package.partition(".")[0]):
                raise
    names = [package.partition(".")[0] for package in packages]
    raise ImportError(f"{user} needs {' or '.join(names)}: pip install {names[0]}")
