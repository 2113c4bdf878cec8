"""How commands show progress: a bar with the time left on a terminal, and a line every half minute elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from densecal.names import printable
from densecal.report.tables import terminal_text

SECONDS_BETWEEN_LINES = 30


class Bar:
    """Progress on a terminal: a bar, and above it a line whenever there are figures."""

    def __init__(self, console: Console, keep: bool) -> None:
        """Make the bar.

        Args:
            console: The terminal.
            keep: Leave the bar on the screen when it ends.
        """
        self._pace = Pace()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Time(self._pace))
        self.shown = RichProgress(*columns, console=console, transient=not keep)
        self._task = self.shown.add_task("Starting", total=None)

    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        """Report progress."""
        self._pace.report(done, total)
        self.shown.update(self._task, description=terminal_text(title), completed=done, total=total)
        if figures:
            self.shown.console.print(terminal_text(figures_line(title, figures)), highlight=False, soft_wrap=True)


class Lines:
    """Progress in a file or a pipe: a line whenever there are figures, and otherwise at most one every half minute."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        """Write nothing yet.

        Args:
            print_line: Called with every line.
        """
        self._print_line = print_line
        self._pace = Pace()
        self._printed = time.monotonic()
        self._is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"

    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        """Report progress."""
        self._pace.report(done, total)
        if figures:
            self._print_line(figures_line(title, figures))
        elif self._is_due(done, total):
            self._print_line(f"{printable(title)}: {done:,} of {total:,}, {self._pace.text()}")
        else:
            return
        self._printed = time.monotonic()

    def _is_due(self, done: int, total: int) -> bool:
        """Return whether it is time for a line, and the time left is known."""
        is_time = time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES
        return is_time and self._is_first and done < total and self._pace.steps > 0


class Pace:
    """How fast the work goes, counted from its first report."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0
        self._start = self._reported = time.monotonic()
        self._start_done = 0

    def report(self, done: int, total: int) -> None:
        """Note the steps that are done."""
        now = time.monotonic()
        if done < self._done or total != self._total:  # other work, whose pace is not that of the work before
            self._start, self._start_done, self._total = now, done, total
        if done != self._done:
            self._reported = now
        self._done = done

    @property
    def steps(self) -> int:
        """Steps whose time is known."""
        return self._done - self._start_done

    def text(self) -> str:
        """Return the time left, or the time so far if there is nothing to estimate it from."""
        now = time.monotonic()
        if not self.steps:
            return f"{timedelta(seconds=round(now - self._start))} so far"
        left = (self._reported - self._start) / self.steps * (self._total - self._done) - (now - self._reported)
        return f"{timedelta(seconds=round(max(left, 0)))} left"


class _Time(ProgressColumn):
    """The column of the time left."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text(self._pace.text(), style="progress.remaining")


def figures_line(title: str, figures: dict[str, float]) -> str:
    """Return figures as one line, such as `Epoch 2 of 30: loss 0.2310, ECE 0.0142, 41.5 images/s, 0:12:30 left`."""
    parts = []
    for name, value in figures.items():
        if name == "images_per_second":
            parts.append(f"{value:.1f} images/s")
        elif name == "seconds_left":
            parts.append(f"{timedelta(seconds=round(value))} left")
        else:
            parts.append(f"{name} {value:.4f}")
    return f"{title}: {', '.join(parts)}"
