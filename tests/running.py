"""The command in this process, as a shell would run it, and scripts with Triton's interpreter."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from densecal import cli
from tests import forked


def run(*arguments: Any) -> tuple[int, str, str]:
    """Run `densecal` with arguments; returns (exit code, stdout, stderr)."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["densecal", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


_INTERPRETED = """
import runpy, sys
# what was imported for a device is imported again for the interpreter, but for Triton's own module in C++
for name in list(sys.modules):
    if name.startswith(("triton", "densecal.kernels")) and not name.startswith("triton._C"):
        del sys.modules[name]
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def interpreted(script: Path, *arguments: str) -> dict:
    """What a script prints last, as JSON, with Triton's kernels run by its interpreter."""
    done = forked.run(
        [sys.executable, "-c", _INTERPRETED, script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
