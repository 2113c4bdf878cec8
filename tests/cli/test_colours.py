"""Colours on a terminal, and none where NO_COLOR is set."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence


def on_a_terminal(arguments: Sequence[str], **variables: str) -> str:
    """Return what `densecal` prints on a terminal."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS")
    }
    controller, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "densecal", *arguments], check=False, stdin=subprocess.DEVNULL, stdout=terminal,
            stderr=terminal, env={**kept, "TERM": "xterm-256color", **variables}, timeout=300,
        )  # fmt: skip
        return os.read(controller, 1 << 16).decode()
    finally:
        os.close(controller)
        os.close(terminal)


def colours(text: str) -> list[str]:
    """Return the escape sequences that set a colour."""
    codes = re.findall(r"\x1b\[([\d;]*)m", text)
    return [code for code in codes if any(re.fullmatch(r"3[0-8]|4[0-8]|9\d|10\d", part) for part in code.split(";"))]


def test_help_has_colours_on_a_terminal_unless_no_color_is_set():
    arguments = ("cache", "--help")  # short enough for the buffer of the terminal
    assert colours(on_a_terminal(arguments))
    plain = on_a_terminal(arguments, NO_COLOR="1")
    assert "Usage" in plain
    assert colours(plain) == []
    assert colours(on_a_terminal(arguments, NO_COLOR=""))  # https://no-color.org: empty counts as not set
