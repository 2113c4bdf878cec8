"""The command line: parse, call, print. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys

from densecal.cli import benchmark as benchmarking
from densecal.cli import calibrate as calibrating
from densecal.cli import data
from densecal.cli import evaluate as evaluating
from densecal.cli import export as exporting
from densecal.cli import report as reporting
from densecal.cli import shift as shifting
from densecal.cli import train as training
from densecal.cli.app import app
from densecal.errors import InputError, Preempted

__all__ = [
    "app", "benchmarking", "calibrating", "data", "evaluating", "exporting", "main", "reporting", "shifting",
    "training",
]  # fmt: skip

_OF_TRAINING = {
    "lightning_fabric", "pydantic", "safetensors", "segmentation_models_pytorch", "timm", "torchvision", "yaml",
}  # fmt: skip
"""Modules of the extra ``train``; without it everything but training and trained models works."""


def main() -> None:
    """Entry point: bad input is one line on stderr and exit code 2.

    A run that was asked to stop exits with 143, or with 130 where the keyboard asked.
    """
    try:
        app()
    except InputError as error:
        print(f"densecal: {error}".replace("\n", " "), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OF_TRAINING:
            raise
        print(f"densecal: {error.name}: not installed; expected pip install 'densecal[train]'", file=sys.stderr)
        sys.exit(2)
    except Preempted as stopped:
        print(f"densecal: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.number)
