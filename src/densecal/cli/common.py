"""What the commands share: the console, progress bars, warnings as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


def console() -> Console:
    """Standard output; wide enough for every column where it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, for people only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title.replace("[", r"\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def training_progress() -> Iterator[Callable[[str, int, int, dict[str, float]], None]]:
    """One bar that is reused for packing, epochs and validations, with the latest figures beside it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Starting", total=None, figures="")

        def show(title: str, done: int, total: int, figures: dict[str, float]) -> None:
            bar.update(task, description=title, completed=done, total=total)
            if figures:
                bar.update(task, figures="  ".join(f"{name} {value:.4f}" for name, value in figures.items()))

        yield show


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
