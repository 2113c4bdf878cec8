"""Our figures against those of other packages: equal where conventions agree, and the table of docs/measures.md."""

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

from densecal.metrics.smooth import smooth_error
from tests.metrics.test_smooth import RELPLOT, atoms_of, make

ROOT = Path(__file__).parents[2]
PEERS = ("relplot", "mapie", "probmetrics", "torch_uncertainty", "fiducio", "monai")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in PEERS), reason="pip install 'densecal[oracles]'"
    ),
]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "docs/tools/compare_measures.py"))


@pytest.fixture(scope="module")
def rows(tool):
    return tool["rows"]()


def test_figures_that_are_the_same_agree(tool, rows):
    same = [row for row in rows if row.reason == tool["SAME"]]
    assert len(same) >= 25
    for row in same:
        assert row.difference == pytest.approx(0, abs=2e-6), row
    others = [row for row in rows if row.reason != tool["SAME"]]
    assert all(row.reason for row in others)
    stopped = [row for row in rows if row.reason == tool["STOPS"]]
    assert len(stopped) == 3
    assert all(row.difference > 0 for row in stopped)  # theirs is not at its minimum, so ours is lower


def test_the_table_of_the_page_is_what_the_tool_prints(tool, rows):
    def plain(text):
        return [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]

    page = (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    for line in plain(tool["table"](rows))[2:]:
        figure, ours, package, theirs = line[1:5]
        (printed,) = [other for other in plain(page) if len(other) == 8 and other[1:4:2] == [figure, package]
                      and other[6] == line[6]]  # fmt: skip
        assert [float(printed[2]), float(printed[4])] == pytest.approx([float(ours), float(theirs)], abs=2e-6)


@pytest.mark.parametrize("spread", [1.0, 4.0, 12.0])
@pytest.mark.parametrize("levels", [None, 255, 65535])
def test_smece_equals_relplot(spread, levels):
    import relplot

    p, y = make(11, 0.7, 5000, spread)
    p = np.round(p * levels) / levels if levels else p
    assert smooth_error(atoms_of(p, y))[0] == pytest.approx(float(relplot.smECE(p, y)), abs=1e-4)


def test_the_numbers_kept_in_the_quick_tests_are_relplots():
    import relplot

    for case, (arguments, expected) in enumerate(RELPLOT):
        p, y = make(*arguments)
        p = np.round(p * 255) / 255 if case == 4 else p
        assert float(relplot.smECE(p, y)) == pytest.approx(expected[0], abs=1e-7)
