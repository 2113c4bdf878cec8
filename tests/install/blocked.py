"""Run the commands of `files.py`, or import modules, in a process where importing PyTorch fails.

Usage: python blocked.py commands DATA OUT | import MODULE ... | COMMAND ARGUMENT ...
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


class Blocker:
    """A finder that has no PyTorch, and nothing that needs it."""

    packages = ("lightning_fabric", "safetensors", "segmentation_models_pytorch", "timm", "torch", "torchvision")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(arguments: tuple[str, ...]) -> int:
    from densecal.cli import main

    sys.argv = ["densecal", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def run_all(data: Path, out: Path) -> None:
    """Run every command; the first that fails ends the process."""
    from tests.install.files import commands

    for arguments in commands(data, out):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = run(arguments)
        if code:
            sys.exit(f"densecal {' '.join(arguments)}: exit code {code}\n{text.getvalue()}")


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    if sys.argv[1] == "import":
        for module in sys.argv[2:]:
            importlib.import_module(module)
    elif sys.argv[1] == "commands":
        run_all(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(run(tuple(sys.argv[1:])))
