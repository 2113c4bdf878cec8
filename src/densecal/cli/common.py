"""What the commands share: the console, progress bars, warnings as lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from densecal.errors import InputError
from densecal.io.urls import is_remote
from densecal.runtime.progress import Progress


def console() -> Console:
    """Standard output; wide enough for every column where it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def check_targets(*files: Path | None, folder: Path | None = None) -> None:
    """Refuse files, and a folder for further ones, that cannot be written; before the work rather than after it."""
    for file in files:
        if file is not None:
            if file.is_dir():
                raise InputError(file, "cannot be written (it is a folder)", "the name of a file")
            _check_can_hold(file.parent, file)
    if folder is not None:
        _check_can_hold(folder, folder)


def _check_can_hold(folder: Path, target: Path) -> None:
    """Refuse a target whose folder cannot be written to, or made where there is none."""
    if is_remote(target):
        return
    place = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not place.is_dir():
        raise InputError(target, f"cannot be written ({place} is a file)", "a folder that can be written to")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(target, "cannot be written (Permission denied)", "a folder that can be written to")


@contextmanager
def progress_bar(keep: bool = False) -> Iterator[Progress]:
    """Show a bar on stderr, for people only: what is being done, how far it is, and the latest figures.

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
    """Import Lightning's Fabric without torchmetrics, which it would import, in seconds, to learn its version."""
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
    """Warnings of densecal as one line each on stderr, without the source line Python adds."""
    import warnings

    def line(message: object, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        warnings.showwarning = line
        yield
