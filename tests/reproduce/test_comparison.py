"""The table: the paper's numbers, ours and the difference, in four formats."""

import csv
import io
import math

from rich.console import Console

from densecal.reproduce.comparison import (
    FIGURES,
    Comparison,
    Heading,
    Value,
    csv_text,
    latex_text,
    markdown_text,
    terminal_table,
)
from densecal.reproduce.paper import PrintedNumber

COLUMNS = [Heading("A", FIGURES["ece_ew"]), Heading("A", FIGURES["f_max"]), Heading("validation", FIGURES["ece_ew"])]
TABLE = Comparison(
    "Table 9",
    ["scale cpu: small"],
    COLUMNS,
    {
        "both": [Value(0.0312345, PrintedNumber("3.0")), Value(0.9, PrintedNumber("0.850")), Value(0.02)],
        "theirs_1": [Value(math.nan, PrintedNumber("2.0")), Value(math.nan, PrintedNumber("0.8")), Value()],
        "wrong": [Value(0.01, PrintedNumber("-7.27", "a negative error")), Value(0.5, PrintedNumber("0.500")), Value()],
        "ours": [Value(0.04), Value(0.7), Value(0.05)],
        "range": [Value("0 - 3", PrintedNumber("0 - 5")), Value(), Value()],
    },
    ["B: not in data"],
)


def test_a_row_has_a_line_of_the_paper_one_of_ours_and_the_difference():
    assert TABLE.lines() == [
        ("both", "paper", ["3.0", "0.850", ""]),
        ("both", "ours", ["3.1", "0.900", "2.00"]),
        ("both", "difference", ["+0.1", "+0.050", ""]),
        ("theirs_1", "paper", ["2.0", "0.8", ""]),
        ("wrong", "paper", ["-7.27*", "0.500", ""]),
        ("wrong", "ours", ["1.0", "0.500", "-"]),
        ("wrong", "difference", ["", "+0.000", ""]),
        ("ours", "ours", ["4.0", "0.700", "5.00"]),
        ("range", "paper", ["0 - 5", "", ""]),
        ("range", "ours", ["0 - 3", "-", "-"]),
    ]


def test_every_format_has_the_same_numbers_the_scale_and_what_is_missing():
    markdown, latex = markdown_text([TABLE]), latex_text([TABLE])
    assert "| both | ours | 3.1 | 0.900 | 2.00 |" in markdown
    assert r"| wrong | paper | -7.27\* | 0.500 |  |" in markdown
    assert r"theirs\_1 & paper & 2.0 & 0.8 &  \\" in latex
    assert r" & difference & +0.1 & +0.050 &  \\" in latex
    assert r"\multicolumn{2}{c}{A} & \multicolumn{1}{c}{validation}" in latex
    for text in (markdown, latex):
        assert all(said in text for said in ("Table 9", "scale cpu: small", "B: not in data", "a negative error"))
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal_table(TABLE))
    shown = console.file.getvalue()
    assert all(text in shown for text in ("Table 9", "scale cpu: small", "-7.27*", "+0.050", "theirs_1"))
    assert [line.strip() for line in shown.splitlines()[:2]] == ["Table 9", "scale cpu: small"]


def test_the_csv_has_every_number_in_the_papers_units():
    lines = list(csv.DictReader(io.StringIO(csv_text([TABLE]))))
    assert len(lines) == 15
    assert [lines[0][key] for key in ("row", "data set", "figure", "paper", "ours")] == [
        "both", "A", "ECE", "3.0", "3.12345",
    ]  # fmt: skip
    assert math.isclose(float(lines[0]["difference"]), 0.12345)
    assert (lines[3]["ours"], lines[3]["difference"]) == ("", "")
    assert (lines[6]["difference"], lines[6]["misprint"]) == ("", "a negative error")
