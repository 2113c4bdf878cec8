"""Every test that SECURITY.md names as the guard of a promise exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_promises_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")]
    assert missing == []
