"""The command line: parse, call, print. A command is imported when it is asked for, and imports what it needs."""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
import traceback
from typing import Any

import typer

from densecal.cli.app import app
from densecal.cli.common import print_note, warnings_as_lines
from densecal.errors import InputError, Preempted

__all__ = ["app", "main"]

_OPTIONAL = {
    "lightning_fabric", "lightning_utilities", "pydantic", "safetensors", "segmentation_models_pytorch", "timm",
    "torch", "torchvision", "yaml",
}  # fmt: skip
"""Modules that `pip install densecal` does not install. Readers name the extra for theirs themselves."""
_EXTRAS = {"io": "torch", "metrics": "torch", "posthoc": "torch", "calibrate.folders": "torch", "export": "export"}
"""The extra for the imports of a package or module. All others need ``train``."""


def main() -> None:
    """Run the command line; bad input becomes one line on stderr and exit code 2.

    A run that was asked to stop exits with 143, or with 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # print every result, even on a terminal that is not UTF-8
    try:
        with warnings_as_lines():
            _command()()
    except InputError as error:
        print_note(f"densecal: {error}")
        sys.exit(2)
    except OSError as error:  # a name that no file can have, a loop of links, a full disk
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        where = "disk" if error.filename is None else os.fsdecode(error.filename)
        print_note(f"densecal: {where}: {error.strerror}; expected a path that can be read or written")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OPTIONAL:
            raise
        print_note(f"densecal: {error.name}: not installed; expected pip install 'densecal[{_extra_for(error)}]'")
        sys.exit(2)
    except Preempted as stopped:
        print_note(f"densecal: {stopped}")
        sys.exit(128 + stopped.number)


@functools.cache
def _command() -> Any:
    """Return the application with the commands that were asked for, which a process derives from their types once."""
    return typer.main.get_command(app)


def _extra_for(error: ModuleNotFoundError) -> str:
    """Return the extra that installs a missing module, by the last module of densecal that was imported or run."""
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        name = module.removeprefix("densecal.") if module.startswith("densecal.") else name
    return next((extra for room, extra in _EXTRAS.items() if f"{name}.".startswith(f"{room}.")), "train")
