"""docs/measures.md: its snippets print what the page says, and every figure that it names exists."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np

from densecal.metrics import calibration_errors

PAGE = (Path(__file__).parents[2] / "docs/measures.md").read_text(encoding="utf-8")


def test_snippets_print_what_the_page_says():
    found = re.findall(r"^```python\n(.*?)^```\n\nIt prints `([^`]*)`", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(found) == PAGE.count("It prints")
    for code, printed in found:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        assert out.getvalue().strip() == printed


def test_every_figure_of_the_chart_exists():
    result = calibration_errors(np.array([0.1, 0.9]), np.array([0, 1])).scalars()
    chart = re.search(r"^```text\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE).group(1)
    named = set(re.findall(r"\b(?:[a-z]+_)*(?:ece|oe|ue|ace|tace|sce|smece|brier|nll)(?:_[a-z]+)*\b", chart))
    assert len(named) > 12
    assert named <= result.keys()
