"""Exceptions that the command line reports in one line: bad input, named by file or key, and requests to stop."""

from __future__ import annotations

import signal
from pathlib import Path

from densecal.names import printable

MAX_FOUND = 500
"""Longest description of what was found, in characters; longer ones are cut."""


class InputError(ValueError):
    """Bad input from the user; the command line prints it as one line and exits with code 2.

    Control characters and bytes that are not UTF-8 are escaped (`densecal.names`), so that it can be printed.

    Args:
        where: The file, folder or configuration key that is wrong.
        found: What was found there.
        expected: What was expected.
    """

    def __init__(self, where: str | Path, found: str, expected: str) -> None:
        self.where, found = printable(str(where)), printable(" ".join(found.split("\n")))
        self.found = found if len(found) <= MAX_FOUND else f"{found[: MAX_FOUND - 3]}..."
        self.expected = printable(expected)
        super().__init__(f"{self.where}: {self.found}; expected {self.expected}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Make the error picklable, so that a worker process can return it."""
        return InputError, (self.where, self.found, self.expected)


class Preempted(Exception):  # noqa: N818 - not an error: it was requested
    """The process was asked to stop; what it left behind can be resumed.

    Attributes:
        number: The signal that was received: SIGTERM, or SIGINT for Ctrl-C.
    """

    number: int = signal.SIGTERM
