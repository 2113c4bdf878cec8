"""The tables of docs/results.md and README.md are those of the finished runs."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_hold_the_figures_of_the_result_files():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "tools" / "make_results.py")
    make_results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_results)
    texts = [path.read_text(encoding="utf-8") for path in make_results.PAGES]
    found = [match[2] for text in texts for match in make_results.BLOCK.finditer(text)]
    assert sorted(found) == sorted(make_results.blocks())
    assert [make_results.page(text) for text in texts] == texts
