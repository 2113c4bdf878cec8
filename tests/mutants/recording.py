"""A pytest plugin that records which test runs which lines of the source: `pytest -p recording`.

It imports nothing of this package, because the tests of another checkout bring a package `tests` of their own.
What a fixture of a module or a session runs is recorded for the fixture, since it runs only in the first test that
requests it. So a line belongs to a test that runs it, or to all tests that use the fixture that runs it.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER, SOURCE = "MUTANTS_RECORD_TO", "MUTANTS_SOURCE"
FIXTURE = "fixture of "


class Recorder:
    """Records the tests of one process.

    Attributes:
        tests: For every test how long it took without its wide fixtures, whether it passed, and those fixtures.
        fixtures: Seconds taken by fixtures that serve several tests.
    """

    def __init__(self, folder: Path, source: str, process: str) -> None:
        self.results = folder / f"tests.{process}.json"
        self.coverage = coverage.Coverage(
            data_file=str(folder / f"coverage.{process}"), source=[source], config_file=False, messages=False
        )
        self.tests: dict[str, dict] = {}
        self.fixtures: dict[str, float] = {}
        self.contexts = [""]
        self.coverage.start()

    def _enter(self, context: str) -> None:
        self.contexts.append(context)
        self.coverage.switch_context(context)

    def _leave(self) -> None:
        self.contexts.pop()
        self.coverage.switch_context(self.contexts[-1])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        definitions = getattr(item, "_fixtureinfo", None)
        wide = [] if definitions is None else [found[-1] for found in definitions.name2fixturedefs.values()]
        uses = [_fixture_name(definition) for definition in wide if definition.scope != "function"]
        self.tests[item.nodeid] = {"seconds": 0.0, "passed": True, "failed": False, "fixtures": uses}
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        name, start = _fixture_name(fixturedef), time.perf_counter()
        test = self.contexts[1] if len(self.contexts) > 1 else ""
        nested = len(self.contexts) > 2
        self._enter(name)
        try:
            return (yield)
        finally:
            self._leave()
            taken = time.perf_counter() - start
            self.fixtures[name] = max(taken, self.fixtures.get(name, 0.0))
            if test in self.tests and not nested:
                self.tests[test]["seconds"] -= taken

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        test["seconds"] += report.duration
        test["passed"] &= report.passed
        test["failed"] |= report.failed

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.results.write_text(json.dumps({"tests": self.tests, "fixtures": self.fixtures}))


def _fixture_name(definition: pytest.FixtureDef) -> str:
    return f"{FIXTURE}{definition.baseid}::{definition.argname}"


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests, not in the one that distributes them."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if runs_tests and FOLDER in os.environ:
        process = os.environ.get("PYTEST_XDIST_WORKER", "main")
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER]), os.environ[SOURCE], process))
