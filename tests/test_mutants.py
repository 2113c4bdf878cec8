"""The tool behind `make mutants`."""

import ast
import contextlib
import subprocess
from dataclasses import replace
from textwrap import dedent

import pytest

from tests.mutants import __main__ as tool
from tests.mutants.changes import Mutant, mutants
from tests.mutants.checkout import Outcome
from tests.mutants.covering import FOR_A_MODULE, Covering
from tests.mutants.selection import CORE, modules, quotas, sample, unmatched

SOURCE = dedent('''
    """A module: 1 + 1."""

    from __future__ import annotations

    import functools
    from typing import TYPE_CHECKING, Literal

    __all__ = ["first"] + ["second"]
    LIMIT = 10
    Number = int | float

    if TYPE_CHECKING:
        SIZE = 3


    def first(values: list[Literal[1, 2]], start: int = 1, *, strict: bool = False) -> float | None:
        """Return 1."""
        total = 0.5  # é moves what follows by a byte: "é"
        for i, value in enumerate(values):
            if value < 0 and not (value == -7
                                  or i not in (2, 3)):
                continue
            total += value ** 2
        if "é" in "é" and total >= 1e-3 * LIMIT:
            raise ValueError("too large", 4)
        values.append(
            min(values)
        )
        return max(all(values), sum(values[1:]) / len(values[: -start]))


    @functools.cache
    def second(unit="m" + "s", message=f"{1 + 1}"):
        return isinstance(unit, int | str) is True


    if __name__ == "__main__":
        print(1)
''')

EXPECTED = """
9 constant: 10 -> 11
16 default argument: 1 -> 0
16 default argument: False -> True
18 constant: 0.5 -> 0.6
20 comparison: < -> <=
20 constant: 0 -> 1
20 and/or: and -> or
20 not removed: not  ->
20 comparison: == -> !=
20 constant: 7 -> 8
21 and/or: or -> and
21 comparison: not in -> in
21 constant: 2 -> 3
21 constant: 3 -> 4
22 loop: continue -> break
23 dropped statement: total += value ** 2 -> pass
23 arithmetic: ** -> *
23 constant: 2 -> 3
24 comparison: in -> not in
24 and/or: and -> or
24 comparison: >= -> >
24 constant: 1e-3 -> 0.002
24 arithmetic: * -> /
26 dropped statement: values.append(...) -> pass
27 any/all, min/max: min -> max
29 any/all, min/max: max -> min
29 any/all, min/max: all -> any
29 slice bound: 1 ->
29 arithmetic: / -> *
29 slice bound: -start ->
34 comparison: is -> is not
34 constant: True -> False
"""


def shown(mutant: Mutant) -> str:
    old = mutant.old.split("(")[0] + "(...)" if "\n" in mutant.old else mutant.old
    return f"{mutant.line - 1} {mutant.operator}: {old.lstrip()} -> {mutant.new}".rstrip()


def test_every_operator_makes_its_mutants_and_texts_are_left_alone():
    assert sorted(map(shown, mutants("m.py", SOURCE))) == sorted(EXPECTED.strip().splitlines())


def test_a_mutant_parses_and_differs_in_one_place():
    for mutant in mutants("m.py", SOURCE):
        changed = mutant.apply_to(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE)), mutant
        assert SOURCE[mutant.start : mutant.end] == mutant.old
        assert changed == SOURCE[: mutant.start] + mutant.new + SOURCE[mutant.end :]
        assert mutant.before in SOURCE.splitlines()[mutant.line - 1]
        assert mutant.after in changed.splitlines()[mutant.line - 1]


def test_the_lines_a_test_must_run():
    found = {shown(mutant): (mutant.first - 1, mutant.last - 1, mutant.once) for mutant in mutants("m.py", SOURCE)}
    whole = (0, len(SOURCE.splitlines()) - 1, True)
    assert found["9 constant: 10 -> 11"] == whole, "run at import"
    assert found["16 default argument: 1 -> 0"] == (17, 29, False), "matters to whoever calls the function"
    assert found["21 constant: 2 -> 3"] == (20, 21, False), "the head of the statement"
    assert found["27 any/all, min/max: min -> max"] == (26, 28, False), "the statement"
    assert found["34 constant: True -> False"] == whole, "cached: seen to run by the first test alone"


def test_the_sample_depends_on_seed_and_count_alone():
    sources = {"a.py": SOURCE, "b.py": SOURCE.replace("10", "20")}
    chosen = sample(sources, 20, seed=0)
    assert chosen == sample(sources, 20, seed=0)
    assert chosen != sample(sources, 20, seed=1)
    assert len(set(chosen)) == 20
    assert {mutant.module for mutant in chosen} == {"a.py", "b.py"}
    own = [mutant for mutant in chosen if mutant.module == "a.py"]
    assert own == [m for m in sample({**sources, "b.py": SOURCE}, 20, seed=0) if m.module == "a.py"]


def test_no_module_dominates():
    assert quotas({"large": 1000, "b": 100, "c": 50, "empty": 0}, 40) == {"large": 20, "b": 14, "c": 6, "empty": 0}
    assert quotas({"large": 1000, "small": 1, "empty": 0}, 40) == {"large": 39, "small": 1, "empty": 0}
    assert quotas({"few": 3}, 40) == {"few": 3}


def test_core_modules_are_there():
    package = tool.ROOT / "src" / "densecal"
    assert unmatched(package, CORE) == []
    assert unmatched(package, ("labels.py", "nowhere/*.py")) == ["nowhere/*.py"]
    assert "metrics/counting.py" not in modules(package)


def covering(tests: dict[str, tuple[float, list[int]]], module: str = "a/m.py", **others) -> Covering:
    lines: dict[int, list[str]] = {}
    for test, (_, run) in tests.items():
        for line in run:
            lines.setdefault(line, []).append(test)
    seconds = {test: taken for test, (taken, _) in tests.items()}
    values = {"uses": {test: [] for test in tests}, "fixtures": {}, "failed": [], **others}
    return Covering(seconds=seconds, lines={module: lines}, **values)


def mutant_at(first: int, last: int, once: bool = False) -> Mutant:
    return replace(mutants("a/m.py", "x = 1\n")[0], first=first, last=last, once=once)


def test_a_mutant_gets_the_tests_that_run_its_lines_fastest_first():
    tests = {"t::slow": (5.0, [3, 4]), "t::fast": (1.0, [4]), "t::other": (0.1, [9]), "t::fixture": (0.0, [4])}
    uses = {test: ["shared"] if test == "t::fixture" else [] for test in tests}
    found = covering(tests, uses=uses, fixtures={"shared": 3.0})
    assert found.tests_for(mutant_at(3, 4)) == ["t::fast", "t::fixture", "t::slow"]
    assert found.duration(["t::fast", "t::fixture", "t::fixture"]) == 4.0


def test_a_line_that_runs_once_gets_tests_of_its_module():
    own = {f"tests/a/test_m.py::test_{i}": (1.0, []) for i in range(5)}
    users = {f"tests/test_n.py::test_{i}": (1.0, list(range(i % 3 + 1))) for i in range(2 * FOR_A_MODULE)}
    found = covering({**own, **users, "tests/test_else.py::test": (0.0, [])})
    chosen = found.tests_for(mutant_at(1, 99, once=True))
    assert len(chosen) == FOR_A_MODULE
    assert set(own) < set(chosen)
    assert sum(test in chosen for test, (_, run) in users.items() if len(run) == 3) == 100
    assert found.tests_for(mutant_at(50, 50)) == chosen, "a line that no test was seen to run"


def result(status: str) -> tool.Result:
    return tool.Result(mutant_at(1, 1), status, "")


def test_equivalent_mutants_are_not_counted():
    statuses = [*["killed"] * 8, "timeout", "survived", *["equivalent"] * 5]
    results = [result(status) for status in statuses]
    assert tool.score(results) == 0.9
    assert "score 90.0% of 10 mutants" in tool.summary(results)


def test_equivalents_are_known_by_their_text(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text('[[mutant]]\nmodule = "a/m.py"\nline = "x = 1"\nbecomes = "x = 0"\nwhy = "x is unused."\n')
    known = tool.equivalents(path)
    assert known == {("a/m.py", "x = 1", "x = 0"): "x is unused."}
    assert tool.stale(known, {"a/m.py": "if y:\n    x = 1\n", "b.py": ""}) == []
    assert tool.stale(known, {"a/m.py": "x = 2\n"}) == ["a/m.py: x = 1"]


def test_the_list_of_equivalents_is_complete_and_says_why():
    known = tool.equivalents(tool.EQUIVALENT)
    sources = modules(tool.ROOT / "src" / "densecal")
    assert tool.stale(known, sources) == []
    assert all(why.endswith(".") and module in sources for (module, _, _), why in known.items())


class Answers:
    """A checkout whose tests end as told."""

    def __init__(self, *answers: Outcome) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def apply(self, mutant: Mutant):
        return contextlib.nullcontext()

    def run(self, tests: list[str], timeout: float) -> Outcome:
        self.asked.append(tests)
        return self.answers.pop(0)


PASSED, STOPPED = Outcome(0, "1 passed"), Outcome(None, "")
FAILED = Outcome(1, "= short test summary info =\nFAILED t::test[1] - assert 1 == 2\n1 failed")


@pytest.mark.parametrize(
    ("answers", "status", "by"),
    [
        ([PASSED, PASSED], "survived", ""),
        ([FAILED], "killed", "t::test[1]"),
        ([PASSED, FAILED], "killed", "t::test[1]"),
        ([STOPPED], "timeout", "more than 360 s"),
        ([Outcome(-11, "Fatal Python error")], "killed", "pytest ended with code -11"),
        ([Outcome(4, "ERROR: not found: t::test[0]"), PASSED, PASSED], "survived", ""),
    ],
)
def test_what_becomes_of_a_mutant(answers, status, by):
    copy = Answers(*answers)
    tests = {f"t::test[{i}]": (1.0 + i * 1e-6, [1]) for i in range(70)}
    found = tool.Runner([copy], covering(tests)).run(mutant_at(1, 1))
    assert (found.status, found.by, found.tests) == (status, by, 70)
    assert copy.asked[0] == [f"t::test[{i}]" for i in range(60)]
    assert not copy.answers
    if len(answers) == 3:
        assert copy.asked[1] == ["t::test"], "with whatever parameters it has now"


@pytest.fixture
def tree(tmp_path):
    """A checkout with one module, where `double` is tested through a fixture that two tests share, `half` is not."""
    root = tmp_path / "checkout"
    files = {
        "src/densecal/__init__.py": "",
        "src/densecal/labels.py": "def double(x):\n    return x + x\n\n\ndef none(x):\n    return x - x\n",
        "tests/__init__.py": "",
        "tests/test_labels.py": """
            import pytest
            from densecal import labels

            @pytest.fixture(scope="module")
            def doubled():
                return labels.double(2)

            def test_nothing(doubled): labels.none(0)
            def test_it_doubles(doubled): assert doubled == 4
        """,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def test_a_run(tree, tmp_path, monkeypatch, capsys):
    def files():
        return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts}

    monkeypatch.setattr(tool, "CACHE", tmp_path / "cache")
    before = files()
    assert tool.main(["--tree", str(tree), "--modules", "labels.py", "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert "killed     labels.py:2 arithmetic: return x + x -> return x - x  [tests/test_labels.py::test_it_d" in output
    assert "survived   labels.py:6 arithmetic: return x - x -> return x + x" in output
    assert "score 50.0% of 2 mutants" in output
    assert files() == before
