"""The tables of the pages with results and of README.md are those of the finished runs."""

import importlib.util
import re
from pathlib import Path

import pytest

from densecal.benchmark.packed import unpack

ROOT = Path(__file__).parents[2]
MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def make_results():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "tools" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_hold_the_figures_of_the_result_files(make_results):
    texts = [path.read_text(encoding="utf-8") for path in make_results.PAGES]
    found = [match[2] for text in texts for match in make_results.BLOCK.finditer(text)]
    assert set(found) == set(make_results.blocks())
    assert [make_results.page(text) for text in texts] == texts


def test_the_figures_of_the_studies_come_from_the_result_files(make_results):
    shown = (ROOT / "docs" / "results-appendix.md").read_text(encoding="utf-8")
    drawn = make_results.study_figures()
    assert drawn.keys() == {"sweep-slp-alpha", "sweep-aslp-mc-eta", "sweep-aslp-mc-lam"}
    assert all(f"(images/{name}.png)" in shown for name in drawn)


def test_the_result_files_stay_small(make_results):
    files = [path for path in make_results.RESULTS.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


def test_no_result_file_names_the_gpu_that_it_ran_on(make_results):
    texts = [path.read_text(encoding="utf-8") for path in make_results.RESULTS.glob("*.jsonl")]
    assert set(re.findall(r'"device":"([^"]*)"', "".join(texts))) == {"cpu", "a CUDA GPU"}


def test_packing_leaves_out_the_name_of_the_gpu(make_results, tmp_path, monkeypatch):
    benchmark = tmp_path / "small"
    unpack(make_results.RESULTS / "dice.jsonl", benchmark)
    for path in benchmark.rglob("result.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("a CUDA GPU", "Some GPU"), encoding="utf-8")
    monkeypatch.setattr(make_results, "RESULTS", tmp_path)
    monkeypatch.setattr(make_results, "PAGES", [])
    for name in ("save", "scatter", "trajectory"):
        monkeypatch.setattr(make_results, name, lambda *given, **more: None)
    monkeypatch.setattr(make_results, "study_figures", dict)
    monkeypatch.setattr(make_results.paper_results, "figures", dict)
    make_results.main()
    assert (tmp_path / "small.jsonl").read_text(encoding="utf-8").count('"device":"a CUDA GPU"') == 18
    assert "Some GPU" not in (tmp_path / "small.jsonl").read_text(encoding="utf-8")


def test_the_figures_of_the_paper_come_from_the_kept_cells(make_results):
    shown = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    drawn = set(make_results.paper_results.figures())
    assert set(re.findall(r"\(images/(paper-[\w-]+)\.png\)", shown)) <= drawn
    assert all((ROOT / "docs" / "images" / f"{name}.png").is_file() for name in drawn)
