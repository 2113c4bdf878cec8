"""The command in this process, as a shell would run it, and scripts with Triton's interpreter."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
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


def interpreted(script: Path, *arguments: str) -> dict:
    """What a script prints last, as JSON, with Triton's kernels run by its interpreter."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments], env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
