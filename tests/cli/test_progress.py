"""Progress: the time left is shown on a terminal, written now and then to a file, and left out with --quiet."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from densecal.benchmark import Event
from densecal.cli import common
from densecal.cli.benchmark import progress_table
from densecal.cli.progress import SECONDS_BETWEEN_LINES, Bar, Lines


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when a test says so."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("densecal.cli.progress.time", clock)
    return clock


@pytest.fixture
def bar(clock):
    return Bar(Console(file=io.StringIO(), force_terminal=True, width=120), keep=False)


def shown(bar):
    console = Console(file=io.StringIO(), width=120)
    console.print(bar.shown.get_renderable())
    return console.file.getvalue()


def test_the_bar_says_how_long_it_takes_from_the_second_step_on(bar, clock):
    clock.now = 9
    assert "0:00:09 so far" in shown(bar)
    bar("Reading", 0, 4)  # what came before, such as imports, says nothing about these steps
    clock.now = 69  # one slow step is enough
    bar("Reading", 1, 4)
    assert "Reading" in shown(bar)
    assert "1/4 0:03:00 left" in shown(bar)
    clock.now = 79
    assert "0:02:50 left" in shown(bar)
    clock.now = 1000
    assert "0:00:00 left" in shown(bar)


@pytest.mark.parametrize("total", [4, 8])
def test_other_work_has_its_own_pace(bar, clock, total):
    for done in range(5):
        clock.now = 100 * done
        bar("Reading", done, 4)
    bar("Writing", 0, total)
    clock.now += 1
    assert "0:00:01 so far" in shown(bar)
    bar("Writing", 1, total)
    assert f"0:00:0{total - 1} left" in shown(bar)


def test_a_title_that_changes_in_the_middle_keeps_the_pace(bar, clock):
    bar("Running the network", 0, 3)
    clock.now = 2
    bar("Comparing", 1, 3)
    assert "0:00:04 left" in shown(bar)


def test_reports_without_a_new_step_do_not_change_the_pace(bar, clock):
    bar("Cells", 0, 3)
    clock.now = 60
    bar("Cells", 1, 3)
    clock.now = 80
    bar("Cells", 1, 3)
    assert "0:01:40 left" in shown(bar)


def test_what_was_done_by_an_earlier_call_does_not_count(bar, clock):
    bar("Cells", 90, 100)
    clock.now = 60
    bar("Cells", 91, 100)
    assert "0:09:00 left" in shown(bar)


def test_a_file_gets_a_line_every_half_minute(clock, capsys):
    lines = Lines(common.print_note)
    for step in range(1001):
        clock.now = step / 10
        lines("Predicting", step, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "Predicting: 300 of 1,000, 0:01:10 left",
        "Predicting: 600 of 1,000, 0:00:40 left",
        "Predicting: 900 of 1,000, 0:00:10 left",
    ]


def test_no_line_is_written_before_the_time_left_is_known(clock, capsys):
    lines = Lines(common.print_note)
    clock.now = 40  # imports on a busy machine
    lines("Predicting", 8, 250)
    assert capsys.readouterr().err == ""
    clock.now = 41
    lines("Predicting", 16, 250)
    assert capsys.readouterr().err == "Predicting: 16 of 250, 0:00:29 left\n"


def test_short_work_says_nothing_in_a_file(clock, capsys):
    lines = Lines(common.print_note)
    for step in range(10):
        clock.now = step * (SECONDS_BETWEEN_LINES - 1) / 9
        lines("Predicting", step, 9)
    assert capsys.readouterr().err == ""


def test_figures_are_a_line_at_once_and_put_off_the_next(clock, capsys):
    lines = Lines(common.print_note)
    clock.now = SECONDS_BETWEEN_LINES - 1
    lines("Epoch 1 of 9", 1, 1, loss=0.5)
    clock.now += 2
    lines("Epoch 2 of 9", 1, 9)
    assert capsys.readouterr().err == "Epoch 1 of 9: loss 0.5000\n"


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID"])
def test_of_several_processes_only_the_first_writes_lines(clock, capsys, monkeypatch, name):
    for number, count in (("0", 1), ("1", 0)):
        monkeypatch.setenv(name, number)
        lines = Lines(common.print_note)
        lines("Predicting", 0, 9)
        clock.now += SECONDS_BETWEEN_LINES
        lines("Predicting", 1, 9)
        assert len(capsys.readouterr().err.splitlines()) == count


def test_a_benchmark_says_how_long_its_other_tasks_take(clock, capsys):
    with progress_table() as report:
        for task in ("bce, seed 0", "aslp-mc, seed 0", "aslp-mc, seed 1"):
            report(Event(task, "waiting"))
        clock.now = 60
        report(Event("bce, seed 0", "finished", "60 s"))
        clock.now = 80
        report(Event("aslp-mc, seed 0", "running", "Epoch 1 of 2 (50 %)"))
        clock.now = 120
        report(Event("aslp-mc, seed 0", "failed", "no memory"))
        report(Event("aslp-mc, seed 1", "finished", "0 s"))
    assert capsys.readouterr().err.splitlines() == [
        "bce, seed 0: finished, 60 s (1 of 3, 0:02:00 left)",
        "aslp-mc, seed 0: failed, no memory (2 of 3, 0:01:00 left)",
        "aslp-mc, seed 1: finished, 0 s (3 of 3)",
    ]


def test_quiet_commands_show_no_progress(clock, capsys, monkeypatch):
    monkeypatch.setattr(common, "_quiet", True)
    for forced in ("0", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)  # rich then takes anything for a terminal
        with common.progress_bar() as report:
            clock.now += SECONDS_BETWEEN_LINES
            report("Epoch 1 of 9", 1, 9, loss=0.5)
    assert capsys.readouterr().err == ""
