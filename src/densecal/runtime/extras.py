"""Optional dependencies: imported where they are needed, with one line that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def require(user: str, *packages: str, install: str | None = None) -> Any:
    """Import the first package of several that is installed.

    Args:
        user: Who needs it, for the message.
        packages: Importable names, any of which will do.
        install: What to give to pip; the first package's own name unless given.

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
    raise ImportError(f"{user} needs {' or '.join(names)}: pip install {install or names[0]}")
