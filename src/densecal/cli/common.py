"""What the commands share: the console, checks of output files, progress bars, warnings as single lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from densecal.errors import InputError
from densecal.io.atomic import STDOUT
from densecal.io.urls import is_remote
from densecal.runtime.progress import Progress


def console(*files: Path | None) -> Console:
    """Return a console for standard output, wide enough for every column where that is not a terminal.

    Args:
        *files: Output files. If one of them is `-`, standard output belongs to it, and the console is standard error.
    """
    stderr = STDOUT in files
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=200)


def print_line(line: str, *files: Path | None) -> None:
    """Print a line on standard output, or on standard error if one of the output files is `-`."""
    print(line, file=sys.stderr if STDOUT in files else sys.stdout)


def check_targets(*files: Path | None, folder: Path | None = None) -> None:
    """Check, before the work, that output can be written.

    Args:
        *files: Output files; None for one that was not asked for.
        folder: A folder for further output.

    Raises:
        InputError: A file or the folder cannot be written.
    """
    for file in files:
        if file not in (None, STDOUT):
            if file.is_dir():
                raise InputError(file, "cannot be written (it is a folder)", "the name of a file")
            _check_can_hold(file.parent, file)
    if folder is not None:
        _check_can_hold(folder, folder)


def _check_can_hold(folder: Path, target: Path) -> None:
    """Refuse a target whose folder can be neither written to nor created."""
    if is_remote(target):
        return
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not existing.is_dir():
        raise InputError(target, f"cannot be written ({existing} is a file)", "a folder that can be written to")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(target, "cannot be written (Permission denied)", "a folder that can be written to")


@contextmanager
def progress_bar(keep: bool = False) -> Iterator[Progress]:
    """Show the progress of the work and its latest figures on stderr, if that is a terminal.

    Args:
        keep: Leave the bar on the screen when it ends.
    """
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=not keep, disable=not console.is_terminal) as bar:
        task = bar.add_task("Starting", total=None, figures="")

        def show(title: str, done: int, total: int, /, **figures: float) -> None:
            bar.update(task, description=escape(title), completed=done, total=total)
            if figures:
                bar.update(task, figures="  ".join(f"{name} {value:.4f}" for name, value in figures.items()))

        yield show


def import_fabric() -> None:
    """Import Lightning Fabric without torchmetrics, which it imports for seconds only to learn its version."""
    hidden = "torchmetrics" not in sys.modules
    if hidden:
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        import lightning_fabric  # noqa: F401
    finally:
        if hidden:
            del sys.modules["torchmetrics"]


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as one line each on stderr, without the source line that Python adds."""
    import warnings

    def line(message: object, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        warnings.showwarning = line
        yield
