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


def test_every_figure_of_the_table_exists():
    result = calibration_errors(np.array([0.1, 0.9]), np.array([0, 1])).scalars()
    table = PAGE.split("| what do you want to know? | figure |")[1].split("\n\n")[0]
    named = set(re.findall(r"`((?:[a-z]+_)*(?:ece|oe|ue|ace|tace|sce|smece|brier|nll)(?:_[a-z]+)*)`", table))
    assert len(named) > 12
    assert named <= result.keys()
