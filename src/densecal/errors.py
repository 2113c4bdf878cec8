"""What the command line answers with one line: bad input, naming file or key, and having been asked to stop."""

from __future__ import annotations

import signal
from pathlib import Path

LONGEST = 500
"""Characters of what was found; the rest of a longer text is no help."""


class InputError(ValueError):
    """Bad input from the user; the command line prints it as one line and exits with code 2.

    Args:
        where: The file, folder or configuration key that is wrong.
        found: What is there.
        expected: What should be there.
    """

    def __init__(self, where: str | Path, found: str, expected: str) -> None:
        self.where = str(where)
        self.found = found if len(found) <= LONGEST else f"{found[: LONGEST - 3]}..."
        self.expected = expected
        super().__init__(f"{self.where}: {self.found}; expected {expected}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Survive the way back from a worker process."""
        return InputError, (self.where, self.found, self.expected)


class Preempted(Exception):  # noqa: N818 - not an error: it was asked for
    """The process was asked to stop; what it left behind can be resumed.

    Attributes:
        number: The signal that asked: SIGTERM, or SIGINT for Ctrl-C.
    """

    number: int = signal.SIGTERM
