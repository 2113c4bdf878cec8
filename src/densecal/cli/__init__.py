"""The command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys

from densecal.cli import data, evaluating, training
from densecal.cli.app import app
from densecal.errors import InputError

__all__ = ["app", "data", "evaluating", "main", "training"]


def main() -> None:
    """Entry point: bad input is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"densecal: {error}".replace("\n", " "), file=sys.stderr)
        sys.exit(2)
