"""The page as text: self-contained, with escaped names, and within its size limit."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densecal.errors import InputError
from densecal.evaluation.record import ClassCurve, RecordSettings
from densecal.names import printable
from densecal.report.chart_data import safe_json
from densecal.report.page import Page, page_text, write_page
from densecal.report.pictures import SIDE, Album, labels, mask, photo, unit_map
from densecal.report.sections import class_names
from tests.records import small_record
from tests.report.material import SURE, run, small_page, with_figures

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return small_page(tmp_path_factory.mktemp("page"))


def shown(value):
    """The value with text as the page shows it; keys are the page's own."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return printable(value) if isinstance(value, str) else value


@given(JSON)
def test_embedded_json_is_the_same_json_and_never_markup(value):
    text = safe_json(value)
    assert json.loads(text) == shown(value)
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_what_is_not_finite_becomes_null():
    assert safe_json({"a": [float("nan"), float("inf"), 1.5]}) == '{"a":[null,null,1.5]}'


def test_the_page_names_no_other_file_and_holds_one_script(page):
    text = page_text(page)
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "url(" not in text
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert text.count("<script") == 2  # the data and the program
    assert text.count("</script") == 2
    assert "default-src 'none'" in text
    assert SURE not in text


def test_every_section_is_there_and_in_the_menu(page):
    text = page_text(page)
    names = re.findall(r'<section id="([\w-]+)"', text)
    assert names == [
        "advice", "summary", "gallery", "methods", "reliability", "whatif", "regions", "cases", "joint", "threshold",
        "training", "alpha", "ood", "notes",
    ]  # fmt: skip
    assert re.findall(r'<li><a href="#([\w-]+)"', text) == names


def test_a_page_of_runs_alone_has_no_empty_sections():
    text = page_text(Page("runs", runs=[run("r")]))
    assert re.findall(r'<section id="([\w-]+)"', text) == ["training", "alpha"]


def test_the_best_of_a_data_set_is_marked_in_the_table(page):
    text = page_text(page)
    table = text[text.index('<table class="sortable">') :]
    table = table[: table.index("</table>")]
    column = re.findall(r'<button type="button">(.*?)</button>', table).index("ECE")
    values = []
    for row in re.findall(r"<tr>(<th scope=.row.*?)</tr>", table, re.DOTALL):
        cell = re.findall(r"<t[hd][^>]*>.*?</t[hd]>", row)[column]
        values.append((float(re.search(r'data-value="([^"]+)"', cell)[1]), "★" in cell))
    assert [value for value, _ in values] == [r.calibration["ece_ew"] for r in page.records]
    assert [marked for _, marked in values] == [value == min(values)[0] for value, _ in values]


def test_the_summary_marks_all_that_tie_as_shown(page):
    first, second = page.records
    tied = [
        with_figures(first, name="a", accuracy=0.90001, ece_ew=0.01),
        with_figures(second, name="b", accuracy=0.9, ece_ew=0.02),
    ]
    card = re.search(r'<div class="fact">.*?</dl>', page_text(Page("ties", records=tied)), re.DOTALL)[0]
    figures = dict(re.findall(r"<dt>(.*?)</dt>(.*?)</div>", card))
    assert re.findall(r"<dd>(★ \w)</dd><dd>([\d.]+ %)", figures["Acc."]) == [("★ a", "90.00 %"), ("★ b", "90.00 %")]
    assert re.findall(r"<dd>(★ \w)</dd><dd>([\d.]+ %)", figures["ECE"]) == [("★ a", "1.00 %")]


def test_the_size_written_is_the_size_of_the_file(page, tmp_path):
    size = write_page(page, tmp_path / "deep" / "report.html")
    assert (tmp_path / "deep" / "report.html").stat().st_size == size


def test_names_that_are_no_unicode_do_not_stop_the_page(tmp_path):
    write_page(Page("runs", runs=[run("caf\udce9")]), tmp_path / "report.html")
    assert r"caf\xe9" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_pictures_fit_the_budget_or_are_refused():
    rng = np.random.default_rng(0)
    album = Album()
    for _ in range(20):
        album.add(photo(rng.integers(0, 255, (200, 300, 3), dtype=np.uint8)))
    large = album.encode(10_000_000)
    small = album.encode(60_000)
    assert sum(map(len, small)) < 60_000 < sum(map(len, large))
    with pytest.raises(InputError, match="20 pictures"):
        album.encode(500)
    assert Album().encode(0) == []


def test_a_picture_is_kept_once():
    album = Album()
    grey = np.linspace(0, 1, 50 * 60).reshape(50, 60)
    assert album.add(unit_map("entropy", grey)) == album.add(unit_map("entropy", grey)) == 0
    assert album.add(unit_map("confidence", grey)) == 1
    assert len(album) == 2


def test_pictures_are_small_and_keep_their_shape():
    wide = photo(np.zeros((100, 400, 3), np.uint8)).pixels
    assert wide.shape == (SIDE // 4, SIDE, 3)
    assert photo(np.zeros((64, 64, 3), np.uint8), (300, 400)).pixels.shape == (120, SIDE, 3)
    assert mask(np.ones((3, 5), bool)).pixels.shape == (3, 5)
    void = np.zeros((4, 4), bool)
    void[0] = True
    shown = labels(np.arange(16).reshape(4, 4), void).pixels
    assert len({tuple(p) for p in shown[1:].reshape(-1, 3)}) == 12
    assert len({tuple(p) for p in shown[0]}) == 1


def test_classes_are_called_by_number_where_data_sets_name_them_differently():
    curves = (ClassCurve((1,), (0.5,), (0.5,), 0.1),) * 3
    record = small_record(reliability=replace(small_record().reliability, classes=curves))
    names = ("background", "road", "sky"), ("background", "liver", "spleen")
    roads, organs = (replace(record, settings=RecordSettings(10, 3, None, own)) for own in names)
    assert class_names([roads]) == list(names[0])
    assert class_names([roads, organs]) == ["background", "class 1", "class 2"]
    assert class_names([replace(record, settings=RecordSettings(10, None, None))]) == []
