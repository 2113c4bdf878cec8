"""Names that a stranger chose: bytes that are not UTF-8, terminal sequences, formulas, markup, endless names."""

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from densecal.errors import InputError
from densecal.io.atomic import write_json
from densecal.io.csv_rows import csv_rows
from densecal.names import csv_cell, from_csv_cell, printable, storable
from densecal.report.runs import read_run, with_extremes
from densecal.report.tables import escape_latex, terminal_text
from densecal.training.loop import train
from tests.adversarial.common import assert_one_line, densecal, write_set
from tests.training.common import SMALL, log_lines, small_config

LATIN = os.fsdecode(b"caf\xe9")
TITLE = "\x1b]0;owned\x07"
"""Sets the title of a terminal's window."""
HOSTILE = {
    "not UTF-8": (LATIN, r"caf\xe9"),
    "terminal sequence": (f"a{TITLE}b", r"a\x1b]0;owned\x07b"),
    "colour of one byte": ("a\x9b31mb", r"a\x9b31mb"),
    "line break": ("a\nb\rc", r"a\x0ab\x0dc"),
    "direction of writing": ("a\u202egnp.exe", r"a\u202egnp.exe"),
    "markup": ("[red]a[bold]", "[red]a[bold]"),
    "page": ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
}
"""Names and their escapes."""
text = st.text(st.characters(codec=None, exclude_categories=[]))


def hostile_set(folder: Path, name: str) -> Path:
    """Write a set whose method folder and one of whose images have a name."""
    write_set(folder / "set")
    (folder / "methods").mkdir()
    shutil.move(folder / "set" / "maps", folder / "methods" / name)
    for part in (folder / "methods" / name, folder / "set" / "masks", folder / "set" / "photos"):
        os.rename(part / "0.png", part / f"{name}.png")
    return folder


@pytest.fixture(params=["not UTF-8", "terminal sequence", "line break", "markup"])
def hostile(request, tmp_path):
    """Return a folder with a hostile set, and the escape of its name."""
    name, shown = HOSTILE[request.param]
    return hostile_set(tmp_path, name), shown


# ------------------------------------------------------------------ the escape


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_name_is_shown_by_an_escape(kind):
    name, shown = HOSTILE[kind]
    assert printable(name) == shown
    assert printable(shown) == shown, "an escaped name stays as it is"


@given(text)
def test_an_escape_can_be_encoded_and_moves_no_cursor(name):
    shown = printable(name)
    shown.encode("utf-8")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert storable(name).encode("utf-8").decode("utf-8") == storable(name)


@pytest.mark.parametrize("name", ["photo-0001", "Straße 9", "写真", "\u0645\u06cc\u200c\u062e", "a\\b", "a\u00a0b"])
def test_ordinary_names_stay_as_they_are(name):
    assert printable(name) == storable(name) == name


@given(st.dictionaries(text, text | st.floats() | st.lists(text)))
def test_any_text_can_be_written_as_json(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "file.json"
    write_json(path, value)
    json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "=cmd|' /C calc'!A0", "-", "--", "=", "+a1"])
def test_no_cell_begins_like_a_formula(name):
    assert csv_cell(name) == f"'{name}"
    assert from_csv_cell(csv_cell(name)) == name


@pytest.mark.parametrize("number", ["-1", "+1", "-0.5", "1e-05", "-1.5e+300", "-inf", "nan", "0", "-.5"])
def test_numbers_stay_numbers(number):
    assert csv_cell(number) == number
    assert csv_rows([{"x": number, "y": float(number)}]).splitlines()[1].split(",")[0] == number


@given(text)
def test_a_cell_never_begins_like_a_formula(name):
    (cell,) = next(csv.reader(io.StringIO(csv_rows([{"x": name}]).removeprefix("x\n")))) or [""]
    assert not re.match(r"[=@\t\r]", cell)
    assert not re.match(r"[+-]", cell) or float(cell) is not None
    assert from_csv_cell(csv_cell(name)) == printable(name) or name.startswith("'")


@given(text | st.text("[]/\\=#@ abred"))
@example("[red]a[bold]")
@example("[link=http://x]a[/]")
@example("\\[red]")
@example("a\\")
def test_the_terminal_shows_names_as_they_are_escaped(name):
    out = io.StringIO()
    Console(file=out, width=10_000, force_terminal=True, highlight=False).print(terminal_text(name), soft_wrap=True)
    # rich's escape may drop or double a backslash of the name, which does no harm
    assert out.getvalue().removesuffix("\n").replace("\\", "") == printable(name).replace("\\", "")


@given(text)
def test_latex_has_no_character_of_a_name_with_a_meaning(name):
    bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum)\{\}|\\[&%$#_{}]", "", escape_latex(name))
    assert not re.search(r"[\\&%$#_{}~^\x00-\x1f]", bare)


# ------------------------------------------------------------------ commands


def test_an_evaluation_is_written_whatever_the_names(hostile):
    folder, shown = hostile
    files = ["--json", "out.json", "--csv", "out.csv", "--latex", "out.tex"]
    code, out, errors = densecal(folder, "evaluate", "methods", "set/masks", "--metrics", "fast", *files)
    assert code == 0, errors
    assert f"{shown} on " in out
    assert "\x1b" not in out + errors
    name = json.loads((folder / "out.json").read_text(encoding="utf-8"))["name"]
    assert name in [storable(name) for name, _ in HOSTILE.values()], "JSON has its own escape of control characters"
    assert printable(name) == shown
    (row,) = csv.DictReader((folder / "out.csv").open(encoding="utf-8", newline=""))
    assert row["name"] == shown
    assert "\x1b" not in (folder / "out.tex").read_text(encoding="utf-8")


def test_figures_are_drawn_whatever_the_names(tmp_path):
    folder = hostile_set(tmp_path, f"{LATIN}\x1b$x$")
    code, _, errors = densecal(folder, "evaluate", "methods", "set/masks", "--figures", "figures")
    assert code == 0, errors
    assert (folder / "figures" / "reliability.png").exists()


def test_a_page_shows_the_escaped_name(hostile):
    folder, shown = hostile
    assert densecal(folder, "evaluate", "methods", "set/masks", "--json", "out.json")[0] == 0
    folders = ["--predictions", "methods", "--masks", "set/masks", "--images", "set/photos"]
    code, _, errors = densecal(folder, "report", "out.json", *folders, "--out", "page.html")
    assert code == 0, errors
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert shown.replace("\\", r"\\") in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ufffd]", page)


def test_a_bad_file_is_named_by_its_escape(hostile):
    folder, shown = hostile
    mask = next(path for path in (folder / "set" / "masks").iterdir() if not path.stem.isdigit())
    mask.write_bytes(b"no image")
    assert_one_line(densecal(folder, "evaluate", "methods", "set/masks"), f"densecal: set/masks/{shown}.png: ")
    code, _, errors = densecal(folder, "evaluate", "methods", "set/masks", "--skip-bad", "--json", "out.json")
    assert code == 0
    assert f"skipped: set/masks/{shown}.png" in errors
    assert "\x1b" not in errors
    (skipped,) = json.loads((folder / "out.json").read_text())["skipped"]
    assert skipped["file"] == f"set/masks/{shown}.png"


def test_a_data_check_names_files_by_their_escapes(hostile):
    folder, shown = hostile
    next(path for path in (folder / "set" / "masks").iterdir() if not path.stem.isdigit()).unlink()
    code, out, errors = densecal(folder, "data", "check", "set/photos", "set/masks", "--json", "out.json")
    assert code == 1, errors
    assert shown in out
    assert "\x1b" not in out


def test_maps_keep_the_bytes_of_the_names(tmp_path):
    folder = hostile_set(tmp_path, LATIN)
    code, _, errors = densecal(folder, "calibrate", "apply", "set/cal.json", f"methods/{LATIN}", "--out", "out")
    assert code == 0, errors
    assert b"caf\xe9.png" in os.listdir(os.fsencode(folder / "out"))


def test_a_terminal_gets_no_sequence_of_a_name(tmp_path):
    folder = hostile_set(tmp_path, f"[red]{TITLE}")
    command = [sys.executable, "-m", "densecal.cli", "evaluate", "methods", "set/masks", "--workers", "1"]
    leader, follower = pty.openpty()
    with subprocess.Popen(command, cwd=folder, stdout=follower, stderr=follower, env={**os.environ, "COLUMNS": "200"}):
        os.close(follower)
        shown = b""
        while True:
            try:
                shown += os.read(leader, 4096)
            except OSError:  # the command has ended
                break
    os.close(leader)
    assert rb"[red]\x1b]0;owned\x07 on" in shown
    assert TITLE.encode() not in shown


# ------------------------------------------------------------------ training


@pytest.fixture
def strange_images(tmp_path):
    """Write images and masks with strange names, as a folder of a data set."""
    write_set(tmp_path, 12)
    os.rename(tmp_path / "photos", tmp_path / "images")
    names = [LATIN, "=1+1", "-7", "a\x1b[31m"]
    for i, name in enumerate(names):
        for kind in ("images", "masks"):
            os.rename(tmp_path / kind / f"{i}.png", tmp_path / kind / f"{name}.png")
    return tmp_path


def test_training_loses_no_epoch_to_a_name(strange_images):
    given = [f"data.images={strange_images / 'images'}", f"data.masks={strange_images / 'masks'}", "data.validation=2"]
    settings = [s for s in SMALL if not s.startswith("data.scenes")]
    own = ["data.scenes=null", f"data.cache={strange_images / 'cache'}", "engine.loggers=[]", "optim.epochs=1"]
    run = strange_images / "run"
    assert densecal(strange_images, "train", "demo", *settings, *given, *own, "--out", run)[0] == 0
    assert len(log_lines(run)) == 1
    table = (run / "alpha.csv").read_text(encoding="utf-8")
    names = [row["name"] for row in csv.DictReader(io.StringIO(table, newline=""))]
    assert set(names) & {r"caf\xe9", "'=1+1", "-7", r"a\x1b[31m"}
    shown = with_extremes(read_run(run, "run"))
    assert set(shown.extremes) == {*shown.highest, *shown.lowest}, "every name of alpha.csv leads to its image"


def test_a_run_in_a_folder_that_is_not_utf_8_can_be_resumed(tmp_path):
    out = tmp_path / LATIN / "run"
    config = small_config("optim.epochs=2", "engine.loggers=[]")
    train(config, out)
    shutil.rmtree(out / "checkpoints" / "last")
    train(config, out, resume=True)
    assert len(log_lines(out)) == 2


# ------------------------------------------------------------------ long names


def test_names_that_no_file_can_have_are_one_line(tmp_path):
    write_set(tmp_path)
    long = "x" * 300
    assert_one_line(densecal(tmp_path, "evaluate", long, "masks"), "File name too long")
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks", "--json", f"{long}.json"), "File name too long")
    assert_one_line(densecal(tmp_path, "calibrate", "apply", "cal.json", "maps", "--out", long), "File name too long")
    assert_one_line(densecal(tmp_path, "data", "scenes", long), "File name too long")
    assert_one_line(densecal(tmp_path, "report", f"{long}.json", "--out", "page.html"), "File name too long")
    assert_one_line(densecal(tmp_path, "train", f"{long}.yaml", "--out", "run"), "File name too long")


def test_a_map_whose_name_would_be_too_long_is_refused_before_the_work(tmp_path):
    write_set(tmp_path)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for i in (1, 2):
            archive.write(tmp_path / "photos" / f"{i}.png", f"images/{str(i) * 260}.png")
    train(small_config("optim.epochs=1", "method.name=bce", "engine.loggers=[]"), tmp_path / "run")
    assert_one_line(densecal(tmp_path, "predict", "run", "set.zip", "--out", "out"), "File name too long")
    assert not (tmp_path / "out").exists()


def test_errors_escape_the_names_they_carry():
    error = InputError(f"{TITLE}{LATIN}", f"a name\nwith {TITLE}", f"another{TITLE}")
    shown = r"\x1b]0;owned\x07"
    assert str(error) == rf"{shown}caf\xe9: a name with {shown}; expected another{shown}"
