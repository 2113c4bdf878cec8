"""Which tests run which lines, recorded once per version of source and tests, and which of them a mutant needs."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

from tests.mutants import recording
from tests.mutants.changes import Mutant
from tests.mutants.checkout import Checkout

FOR_A_MODULE = 150
"""How many tests are run for a line that runs once, when a module is imported."""


@dataclass
class Covering:
    """What the tests run.

    Attributes:
        seconds: How long each passed test takes, without the fixtures it shares with others.
        uses: The shared fixtures of a test.
        fixtures: How long those take.
        lines: The tests that run a line, by module and line.
        failed: Tests that failed while it was recorded. They can kill nothing.
    """

    seconds: dict[str, float]
    uses: dict[str, list[str]]
    fixtures: dict[str, float]
    lines: dict[str, dict[int, list[str]]]
    failed: list[str]

    def duration(self, tests: Iterable[str]) -> float:
        """Return the seconds that tests take together."""
        tests = list(tests)
        shared = {fixture for test in tests for fixture in self.uses[test]}
        return sum(self.seconds[test] for test in tests) + sum(self.fixtures.get(name, 0.0) for name in shared)

    def tests_of_lines(self, module: str, first: int, last: int) -> set[str]:
        """Return the tests that run any of these lines."""
        lines = self.lines.get(module, {})
        return {test for line, tests in lines.items() if first <= line <= last for test in tests}

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Return the tests that may notice a mutant, fastest first."""
        tests = self.tests_of_lines(mutant.module, mutant.first, mutant.last)
        if mutant.once or not tests:  # what runs once, or in processes that tests start, is not in the record
            tests = set(self._of_module(mutant.module)[:FOR_A_MODULE])
        return sorted(tests, key=lambda test: (self.duration([test]), test))

    def _of_module(self, module: str) -> list[str]:
        """Return the tests related to a module: first those in its own test file, then those that run most of it."""
        named = _test_file(module)
        own = {test for test in self.seconds if test.startswith(named + "::")}
        counts: dict[str, int] = defaultdict(int)
        for tests in self.lines.get(module, {}).values():
            for test in tests:
                counts[test] += 1
        return sorted(own | set(counts), key=lambda test: (test not in own, -counts.get(test, 0), test))


def _test_file(module: str) -> str:
    path = Path("tests") / module
    return path.with_name(f"test_{path.name}").as_posix()


def load_record(checkout: Checkout, cache: Path) -> Covering:
    """Return what the tests of a checkout run: from the cache, or recorded now."""
    path = cache / f"covering-{checkout.digest}.json.gz"
    if not path.exists():
        print("Recording which tests run which lines: all fast tests, once for this version", flush=True)
        covering = _record(checkout, cache / "recording.log")
        partial = path.with_suffix(".partial")
        partial.write_bytes(gzip.compress(json.dumps(_with_numbers(covering)).encode(), compresslevel=4))
        partial.replace(path)
    saved = json.loads(gzip.decompress(path.read_bytes()))
    names = list(saved["seconds"])
    lines = {
        module: {int(line): [names[i] for i in tests] for line, tests in by_line.items()}
        for module, by_line in saved.pop("lines").items()
    }
    return Covering(**saved, lines=lines)


def _with_numbers(covering: Covering) -> dict:
    """Return the record as JSON, with numbers in place of the names of tests, which would take a gigabyte."""
    numbers = {test: number for number, test in enumerate(covering.seconds)}
    lines = {
        module: {line: [numbers[test] for test in tests] for line, tests in by_line.items()}
        for module, by_line in covering.lines.items()
    }
    return {**vars(covering), "lines": lines}


def _record(checkout: Checkout, log: Path) -> Covering:
    with tempfile.TemporaryDirectory(prefix="mutants-record-") as folder:
        arguments = ["-p", "recording", "-n", "2", "--dist", "worksteal", "--tb=short"]
        plugin = str(Path(recording.__file__).parent)
        settings = {recording.FOLDER: folder, recording.SOURCE: str(checkout.package)}
        done = checkout.pytest(arguments, path=[plugin], **settings)
        log.write_text(done.output)
        results = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("tests.*.json"))]
        if done.code not in (0, 1) or not results:
            raise SystemExit(f"the tests could not be recorded, see {log}")
        tests = {test: result for part in results for test, result in part["tests"].items()}
        covering = Covering(
            seconds={name: max(test["seconds"], 0.0) for name, test in tests.items() if test["passed"]},
            uses={name: test["fixtures"] for name, test in tests.items() if test["passed"]},
            fixtures={name: seconds for part in results for name, seconds in part["fixtures"].items()},
            lines={},
            failed=sorted(name for name, test in tests.items() if test["failed"]),
        )
        covering.lines = _lines(sorted(Path(folder).glob("coverage.*")), covering, checkout.package)
    return covering


def _lines(files: list[Path], covering: Covering, package: Path) -> dict[str, dict[int, list[str]]]:
    users: dict[str, set[str]] = defaultdict(set)
    for test, fixtures in covering.uses.items():
        for fixture in fixtures:
            users[fixture].add(test)
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in files:
        data = CoverageData(basename=str(file))
        data.read()
        for path in data.measured_files():
            module = Path(path).relative_to(package).as_posix()
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    found[module][line] |= users[context] if context in users else {context} & set(covering.seconds)
    return {
        module: {line: sorted(tests) for line, tests in sorted(by_line.items()) if tests}
        for module, by_line in sorted(found.items())
    }
