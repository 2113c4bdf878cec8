"""Functions that commands share: the console, checks of output files, progress bars, warnings as single lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from densecal.errors import InputError
from densecal.io.atomic import STDOUT
from densecal.io.urls import is_remote
from densecal.names import printable
from densecal.runtime.progress import Progress, silent

if TYPE_CHECKING:
    from densecal.io.groups import Groups

Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Replace existing files that this command did not write, but never files that it reads."
    ),
]


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Choose whether tables, summaries, notes and progress are left out from now on."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether --quiet was given."""
    return _quiet


def console(*files: Path | None) -> Console:
    """Return a console for standard output, wide enough for every column where that is not a terminal.

    With --quiet nothing is printed on it.

    Args:
        *files: Output files. If one of them is `-`, standard output belongs to it, and the console is standard error.
    """
    stderr = STDOUT in files
    console = Console(stderr=stderr, quiet=_quiet)
    return console if console.is_terminal else Console(stderr=stderr, width=200, quiet=_quiet)


def print_line(line: str, *files: Path | None) -> None:
    """Print a line on standard output, or on standard error if one of the output files is `-`; not with --quiet."""
    if _quiet:
        return
    print(printable(line), file=sys.stderr if STDOUT in files else sys.stdout)


def print_note(line: str) -> None:
    """Print a line on standard error: a warning, a reason for a failure, or, without --quiet, a note."""
    if _quiet and line.startswith("note: "):
        return
    print(printable(" ".join(line.split("\n"))), file=sys.stderr, flush=True)


def check_targets(*files: Path | None, folder: Path | None = None) -> None:
    """Check, before the work, that output can be written.

    Args:
        *files: Output files; None for one that was not requested.
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
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(existing):
        kind = "a file" if os.path.exists(existing) else "a link that leads nowhere"
        raise InputError(target, f"cannot be written ({existing} is {kind})", "a folder that can be written to")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(target, "cannot be written (Permission denied)", "a folder that can be written to")


def is_run(path: Path) -> bool:
    """Return whether a folder is a run or a checkpoint rather than a folder of maps."""
    return (path / "checkpoints").is_dir() or (path / "meta.json").is_file()


MASKS_HELP = "Masks of the maps: a folder, a data set, or a list of lines IMAGE MASK."
GROUPS_HELP = "Groups of similar images (patient, video): a file of lines NAME,GROUP, or a pattern in the name."


def read_groups(option: str | None) -> Groups | None:
    """Return the groups of images that the option --groups names."""
    from densecal.io.groups import Groups

    return None if option is None else Groups(option)


def named_files(*options: str | None) -> list[Path]:
    """Return the values of options that may name files as paths. A path that is not a file does no harm."""
    return [Path(option) for option in options if option is not None]


@contextmanager
def progress_bar(keep: bool = False) -> Iterator[Progress]:
    """Show progress on stderr: a bar if that is a terminal, lines if it is not, and nothing with --quiet.

    Args:
        keep: Leave the bar on the screen when it ends.
    """
    from densecal.cli.progress import Bar, Lines

    console = Console(stderr=True)
    if _quiet:
        yield silent
    elif console.is_terminal:
        bar = Bar(console, keep)
        with bar.shown:
            yield bar
    else:
        yield Lines(print_note)


def print_layouts(folder: Path, notes: Iterable[str]) -> None:
    """Print what layouts recognised in a folder on stderr, one line each."""
    for line in notes:
        print_note(f"note: {folder}: {line}")


def print_unfinished(*runs: Path) -> None:
    """Print a line on stderr for every run folder whose training has not finished."""
    folders = [run for run in runs if (run / "checkpoints").is_dir()]
    if not folders:
        return
    from densecal.training.state import unfinished

    for run in folders:
        with suppress(InputError):  # a damaged run is reported by the command that reads it
            state = unfinished(run)
            if state is not None:
                print_note(f"note: {run}: {state}; densecal train ... --out {run} --resume continues it")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as one line each on stderr, without the source line that Python adds."""
    import warnings

    def line(message: object, *_: object, **__: object) -> None:
        print_note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        warnings.showwarning = line
        yield
