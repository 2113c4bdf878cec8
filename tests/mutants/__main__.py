"""`python -m tests.mutants`: change the source in one place at a time; a test must fail each time.

A mutant is killed when a test that runs its line fails, or runs into the time limit. The score is the share of killed
mutants among those that are not known to be equivalent (`tests/equivalent_mutants.toml`).
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.changes import Mutant, mutants
from tests.mutants.checkout import Checkout
from tests.mutants.covering import Covering, load_record
from tests.mutants.selection import CORE, modules, sample, unmatched

ROOT = Path(__file__).parents[2]
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
CACHE = ROOT / ".mutants"
LOWEST_SCORE = 0.92
FIRST = 60
"""How many of a mutant's tests, the fastest ones, run before the others: most mutants do not survive them."""
SHORTEST_LIMIT, SLACK = 60.0, 6.0
"""Time limit of a mutant, in seconds and as a multiple of the usual time of its tests."""

KILLED, TIMEOUT, SURVIVED, IS_EQUIVALENT = "killed", "timeout", "survived", "equivalent"


@dataclass(frozen=True)
class Result:
    """The outcome of a mutant: `by` names the test that killed it, or says why none did."""

    mutant: Mutant
    status: str
    by: str
    tests: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:10} {self.mutant}" + (f"  [{self.by}]" if self.by else "")


class Runner:
    """Runs mutants in copies of a checkout, one in each at a time."""

    def __init__(self, copies: list[Checkout], covering: Covering) -> None:
        self.size = len(copies)
        self.covering = covering
        self.free: queue.Queue[Checkout] = queue.Queue()
        for copy in copies:
            self.free.put(copy)

    @contextmanager
    def copy(self) -> Iterator[Checkout]:
        """Lend a copy that holds no other mutant."""
        copy = self.free.get()
        try:
            yield copy
        finally:
            self.free.put(copy)

    def compile(self) -> None:
        """Compile source and tests of every copy."""
        with ThreadPoolExecutor(self.size) as pool:
            list(pool.map(Checkout.compile, list(self.free.queue)))

    def run_all(self, chosen: list[Mutant], flaky: frozenset[str] = frozenset()) -> Iterator[Result]:
        """Yield the results of mutants as they are found."""
        with ThreadPoolExecutor(self.size) as pool:
            jobs = [pool.submit(self.run, mutant, flaky) for mutant in chosen]
            try:
                for job in as_completed(jobs):
                    yield job.result()
            finally:
                for job in jobs:
                    job.cancel()

    def run(self, mutant: Mutant, flaky: frozenset[str] = frozenset()) -> Result:
        """Run the tests of a mutant, the fastest first, until one fails."""
        tests = [test for test in self.covering.tests_for(mutant) if test not in flaky]
        start = time.monotonic()
        status, by = SURVIVED, "" if tests else "no test has to do with it"
        with self.copy() as copy, copy.apply(mutant):
            for part in (tests[:FIRST], tests[FIRST:]):
                if part and status == SURVIVED:
                    status, by = self._run_tests(copy, part)
        return Result(mutant, status, by, len(tests), round(time.monotonic() - start, 1))

    def _run_tests(self, copy: Checkout, tests: list[str]) -> tuple[str, str]:
        limit = max(SHORTEST_LIMIT, SLACK * self.covering.duration(tests))
        done = copy.run(tests, limit)
        if done.code == 4:  # a test is missing: its parameters come from the source and are named differently now
            done = copy.run(sorted({test.split("[")[0] for test in tests}), limit)
        if done.code in (0, 5):  # passed, or nothing is left to run
            return SURVIVED, ""
        if done.code is None:
            return TIMEOUT, f"more than {limit:.0f} s"
        return KILLED, _failed(done.output)[0] if _failed(done.output) else f"pytest ended with code {done.code}"

    def flaky(self, results: Iterable[Result]) -> frozenset[str]:
        """Return the tests that killed a mutant and also fail without one."""
        killers = sorted({result.by for result in results if result.by in self.covering.seconds})
        if not killers:
            return frozenset()
        with self.copy() as copy:
            done = copy.run(killers, SLACK * max(SHORTEST_LIMIT, self.covering.duration(killers)), stop=False)
        return frozenset(_failed(done.output))


def _failed(output: str) -> list[str]:
    """Return the tests or files that have failed, from the summary of pytest."""
    return [re.split(r" - ", line, maxsplit=1)[0] for line in re.findall(r"^(?:FAILED|ERROR) (.+)$", output, re.M)]


def equivalents(path: Path) -> dict[tuple[str, str, str], str]:
    """Return why mutants cannot be noticed, by module, text of the line, and changed text."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []) if path.exists() else []
    return {(entry["module"], entry["line"], entry["becomes"]): entry["why"] for entry in entries}


def stale(known: Iterable[tuple[str, str, str]], sources: dict[str, str]) -> list[str]:
    """Return known equivalents in these modules whose line no longer exists."""
    lines = {name: {line.strip() for line in source.splitlines()} for name, source in sources.items()}
    return [f"{module}: {line}" for module, line, _ in known if module in lines and line not in lines[module]]


def score(results: Iterable[Result]) -> float:
    """Return the share of killed mutants among those that are not equivalent."""
    counts = Counter(result.status for result in results)
    killed = counts[KILLED] + counts[TIMEOUT]
    return killed / max(killed + counts[SURVIVED], 1)


def summary(results: list[Result]) -> str:
    """Return counts by module, the survivors, and the score."""
    statuses = (KILLED, TIMEOUT, SURVIVED, IS_EQUIVALENT)
    rows = [f"{'module':32}" + "".join(f"{status:>12}" for status in statuses)]
    for module in sorted({result.mutant.module for result in results}):
        counts = Counter(result.status for result in results if result.mutant.module == module)
        rows.append(f"{module:32}" + "".join(f"{counts[status]:12}" for status in statuses))
    counts = Counter(result.status for result in results)
    rows.append(f"{'all':32}" + "".join(f"{counts[status]:12}" for status in statuses))
    survivors = [result for result in results if result.status == SURVIVED]
    rows += ["", f"{len(survivors)} survived:", *map(str, survivors)] if survivors else ["", "none survived"]
    return "\n".join([*rows, "", f"score {score(results):.1%} of {len(results) - counts[IS_EQUIVALENT]} mutants"])


def choose(options: argparse.Namespace, package: Path) -> list[Mutant]:
    """Return the mutants that the options select."""
    if not options.only:
        return sample(modules(package, tuple(options.modules)), options.count, options.seed)
    places = [place.rsplit(":", 1) for place in options.only]
    sources = modules(package, tuple(name for name, _ in places))
    chosen = [mutant for name, source in sources.items() for mutant in mutants(name, source)]
    return [mutant for mutant in chosen if [mutant.module, str(mutant.line)] in places]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of mutants (200)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the mutants (0)")
    parser.add_argument("--modules", nargs="+", default=CORE, metavar="GLOB", help="in place of the core modules")
    parser.add_argument(
        "--only", nargs="+", metavar="FILE:LINE", help="all mutants of these lines, as metrics/ood.py:31"
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, with its own source and tests")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that run at the same time (2)")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    package = options.tree / "src" / "densecal"
    for pattern in unmatched(package, tuple(options.modules)):
        print(f"note: no module is called {pattern}")
    if options.list:
        print(*choose(options, package), sep="\n")
        return 0
    CACHE.mkdir(exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        first = Checkout(options.tree, Path(folder) / "0")
        covering = load_record(first, CACHE)
        copies = [first, *(first.copy(Path(folder) / str(number)) for number in range(1, options.jobs))]
        results = _run(options, first, Runner(copies, covering))
        name = "only" if options.only else f"{first.digest}-count{options.count}-seed{options.seed}"
        path = CACHE / f"result-{name}.json"
        known = {"tree": str(options.tree), "digest": first.digest, "count": options.count, "seed": options.seed}
        figures = {"score": score(results), "seconds": round(time.monotonic() - start)}
        listed = [asdict(result) for result in results]
        path.write_text(json.dumps({**known, **figures, "mutants": listed}, indent=1))
    print(f"\n{summary(results)}\n{path}")
    return 0 if score(results) >= LOWEST_SCORE else 1


def _run(options: argparse.Namespace, checkout: Checkout, runner: Runner) -> list[Result]:
    known = equivalents(EQUIVALENT)
    chosen = choose(options, checkout.package)
    for line in stale(known, modules(checkout.package)):
        print(f"note: in {EQUIVALENT.name}, but no longer in the source: {line}")
    if runner.covering.failed:
        print(f"note: {len(runner.covering.failed)} tests fail without a mutant and are not used:", flush=True)
        print(*runner.covering.failed, sep="\n", flush=True)
    whys = {mutant: known.get((mutant.module, mutant.before, mutant.after)) for mutant in chosen}
    results = {mutant: Result(mutant, IS_EQUIVALENT, why) for mutant, why in whys.items() if why and not options.only}
    runner.compile()
    for result in runner.run_all([mutant for mutant in chosen if mutant not in results]):
        results[result.mutant] = result
        print(f"{len(results):4}/{len(chosen)} {result}", flush=True)
    flaky = runner.flaky(results.values())
    if flaky:
        print("note: these tests fail without a mutant too; what they killed runs again without them:", flush=True)
        print(*sorted(flaky), sep="\n", flush=True)
        for result in runner.run_all([mutant for mutant in chosen if results[mutant].by in flaky], flaky):
            results[result.mutant] = result
            print(result, flush=True)
    return [results[mutant] for mutant in chosen]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
