"""The group of commands `densecal calibrate`."""

from __future__ import annotations

import typer

calibrate_app = typer.Typer(help="Fit a post-hoc calibrator, choose one, and apply it to maps.", no_args_is_help=True)
