"""A private copy of a work tree, in which tests are run and the source may be changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Mutant

NOT_HASHED = ("tests/mutants/", "tests/equivalent_mutants.toml")
"""Files of this tool, on which the record of tests does not depend."""


@dataclass(frozen=True)
class Outcome:
    """How pytest ended; no code where it took too long."""

    code: int | None
    output: str


class Checkout:
    """A copy of the files of a work tree that git tracks or would add, without those it ignores."""

    def __init__(self, tree: Path, folder: Path, files: list[str] | None = None) -> None:
        self.root = folder / "tree"
        self.temporary = folder / "tmp"
        self.package = self.root / "src" / "densecal"
        self.files = _files(tree) if files is None else files
        for name in self.files:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target)
        for built in (tree / "src").rglob("*.so"):  # git ignores what was compiled, and users have it
            shutil.copy2(built, self.root / built.relative_to(tree))
        self._check_imported()

    def copy(self, folder: Path) -> Checkout:
        """Make another copy of the same files."""
        return Checkout(self.root, folder, self.files)

    @property
    def digest(self) -> str:
        """Return the hash of source and tests."""
        digest = hashlib.sha256()
        for name in self.files:
            if name.startswith(("src/", "tests/", "pyproject.toml")) and not name.startswith(NOT_HASHED):
                digest.update(f"{name}\0".encode() + hashlib.sha256((self.root / name).read_bytes()).digest())
        return digest.hexdigest()[:16]

    def environment(self, path: list[str], **settings: str) -> dict[str, str]:
        """Return the environment of a process whose `densecal` is the copy."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), *path]),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            "CI": "1",  # hypothesis sets no deadlines then, which a busy machine misses
            "COLUMNS": "240",
            **settings,
        }

    def pytest(
        self, arguments: list[str], timeout: float | None = None, path: list[str] | None = None, **settings: str
    ) -> Outcome:
        """Run tests of the copy; what they leave behind is removed before the next ones run."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE", *arguments]
        written = self.root.parent / "output.txt"  # no pipe, which a process left behind by a test would keep open
        with written.open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment(path or [], **settings), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return Outcome(code, written.read_text(errors="replace"))

    def compile(self) -> None:
        """Compile source and tests once; `run` compiles the changed module alone."""
        self.pytest(["--collect-only"])

    def run(self, tests: list[str], timeout: float, stop: bool = True) -> Outcome:
        """Run some tests; with `stop`, only until one fails."""
        listed = self.root.parent / "tests.txt"
        listed.write_text("\n".join(tests))
        arguments = ["--tb=no", *(["-x"] if stop else []), f"@{listed}"]
        return self.pytest(arguments, timeout, PYTHONDONTWRITEBYTECODE="1")

    @contextmanager
    def apply(self, mutant: Mutant) -> Iterator[None]:
        """Put a mutant into the copy. Its time stamp differs, so that Python does not use the old bytecode."""
        path = self.package / mutant.module
        source, before = path.read_text(encoding="utf-8"), path.stat()
        try:
            path.write_text(mutant.apply_to(source), encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 2_000_000_000))
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _check_imported(self) -> None:
        self.temporary.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", "import densecal; print(densecal.__file__)"]
        imported = Path(subprocess.check_output(command, cwd="/", env=self.environment([]), text=True).strip())
        if self.package not in imported.parents:
            raise SystemExit(f"tests would import densecal from {imported}, not from the copy in {self.package}")


def _files(tree: Path) -> list[str]:
    command = ["git", "-C", str(tree), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.check_output(command, text=True).split("\0")
    return sorted({name for name in listed if name and (tree / name).is_file()})
