"""The paper's numbers in the package are those of its LaTeX, and every table and figure of it is an item."""

import re

import pytest

from densecal.reproduce.items import load_items, read_data
from densecal.reproduce.paper import paper_numbers
from tests.reproduce.latex import FOLDER, labels, paper_text, rows_of

TABLES = [name for name, item in load_items().items() if any("tab:" in label for label in item.paper)]
DRAWINGS = {"fig:ASLP_ECE_overview"}
"""Figures with nothing to measure: the overview of the method."""


@pytest.fixture(scope="module")
def latex() -> str:
    text = paper_text()
    if text is None:
        pytest.skip(f"NOT CHECKED: the paper's LaTeX is not in {FOLDER} (DENSECAL_PAPER names another folder)")
    return text


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_are_those_of_the_latex_to_the_digit(name, latex):
    (label,) = load_items()[name].paper
    numbers = paper_numbers(name)
    rows = rows_of(latex, label)
    assert len(rows) == len(numbers)
    for (title, printed), (row, ours) in zip(rows, numbers.items(), strict=True):
        texts = [number.text for number in ours]
        assert [text.replace("%", "") for text in printed[-len(texts) :]] == texts, (title, row)


def test_rows_have_the_names_of_the_latex(latex):
    for name in ("table-1", "equal-mass", "sweep", "debias"):
        (label,) = load_items()[name].paper
        titles = [title for title, _ in rows_of(latex, label)]
        for title, row in zip(titles, paper_numbers(name), strict=True):
            known = {"TS": "Temperature scaling", "LS": "Label smoothing", r"$\text{F}^{3}\text{Met}$": "F3Net"}
            aslp = {r"$\text{ASLP}_{\text{ECE}}$": "ASLP_MC"}
            plain = re.sub(r"\\text\{(\w+)\}|[${}]", r"\1", {**known, **aslp}.get(title, title))
            assert plain.lower() == row.lower()


def test_every_table_and_figure_of_the_latex_is_an_item(latex):
    wanted = {label for label in labels(latex) if not label.startswith("sub_fig")} - DRAWINGS
    assert wanted == {label for item in load_items().values() for label in item.paper}


def test_the_times_are_those_of_the_text(latex):
    sentence = latex[latex.index(r"\section{Training and Inference Time}") :][:600]
    found = re.findall(r"(\d\.\d) hours?\b", sentence)
    assert [number.text for number in paper_numbers("time")["ASLP"]] == [found[0], "53.40"]
    assert [number.text for number in paper_numbers("time")["Base model"]] == [found[-1], "53.40"]
    assert "53.40 samples per second" in sentence


def test_a_misprint_is_where_the_file_says():
    for entry in read_data("paper.yaml")["misprints"]:
        number = paper_numbers(entry["table"])[entry["row"]][entry["column"]]
        assert (number.text, number.misprint, number.value) == (entry["printed"], entry["why"], None)


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_columns_are_the_papers(name):
    item = load_items()[name]
    assert list(item.rows) == list(paper_numbers(name))
    assert {len(numbers) for numbers in paper_numbers(name).values()} == {len(item.data) * len(item.figures)}
