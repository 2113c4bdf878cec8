"""Optional dependencies: imported where they are needed, with an error that says how to install them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def require(user: str, *packages: str, install: str | None = None) -> Any:
    """Import the first package of several that is installed.

    Args:
        user: What needs the package, for the message.
        packages: Importable names, any of which will do.
        install: The argument of pip install; by default the first package's name.

    Raises:
        ImportError: None of them is installed; the message says how to install one.
    """
    for package in packages:
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            # An installed package that lacks one of its own dependencies is a different problem.
            if error.name not in (package, package.partition(".")[0]):
                raise
    names = [package.partition(".")[0] for package in packages]
    raise ImportError(f"{user} needs {' or '.join(names)}: pip install {install or names[0]}")
