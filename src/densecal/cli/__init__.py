"""The command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys

from densecal.cli import benchmark, calibrate, data, evaluate, export, report, shift, train
from densecal.cli.app import app
from densecal.errors import InputError, Preempted

__all__ = ["app", "benchmark", "calibrate", "data", "evaluate", "export", "main", "report", "shift", "train"]

_TRAINING_MODULES = {
    "lightning_fabric", "pydantic", "safetensors", "segmentation_models_pytorch", "timm", "torchvision", "yaml",
}  # fmt: skip
"""Modules of the extra ``train``. Without it, everything works except training and trained models."""


def main() -> None:
    """Run the command line; bad input becomes one line on stderr and exit code 2.

    A run that was asked to stop exits with 143, or with 130 after Ctrl-C.
    """
    try:
        app()
    except InputError as error:
        print(f"densecal: {error}".replace("\n", " "), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _TRAINING_MODULES:
            raise
        print(f"densecal: {error.name}: not installed; expected pip install 'densecal[train]'", file=sys.stderr)
        sys.exit(2)
    except Preempted as stopped:
        print(f"densecal: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.number)
