"""The command in this process, as a shell would run it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

from densecal import cli


def run(*arguments: Any) -> tuple[int, str, str]:
    """Run `densecal` with arguments; returns (exit code, stdout, stderr)."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["densecal", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()
