"""Every test that SECURITY.md names as the guard of a promise exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_promises_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")]
    assert missing == []


def test_every_promise_names_a_test():
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    promises = [line for line in lines if line.startswith("| ") and line != "| promise | test |"]
    assert len(promises) > 30
    assert [line for line in promises if not re.search(r"\| `tests/[^|]+::\w+` \|$", line)] == []
