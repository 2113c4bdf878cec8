"""Ctrl-C and SIGTERM: every command says how to go on and exits with 130 or 143."""

import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from densecal.__main__ import main
from tests import running

pytestmark = pytest.mark.usefixtures("heeds_ctrl_c")
COMMANDS = {
    "evaluate": ("densecal.data.pairs.find_comparisons", ("evaluate", "maps", "masks")),
    "data": ("densecal.data.check.check", ("data", "check", "images")),
    "predict": ("densecal.prediction.ensembles.load_ensemble", ("predict", "run", "images", "--out", "maps")),
    "benchmark": ("densecal.benchmark.load_matrix", ("benchmark", "matrix.yaml", "--out", "out")),
    "cache": ("densecal.data.caches.list_caches", ("cache", "show")),
}


def test_an_error_that_ctrl_c_causes_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def half_imported() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 5)
        except KeyboardInterrupt:
            raise RuntimeError("CPU dispatcher tracer already initialized") from None  # as NumPy does

    monkeypatch.setattr("densecal.data.caches.list_caches", half_imported)
    before = signal.getsignal(signal.SIGINT)
    assert running.run("cache", "show")[::2] == (130, "densecal: cache: stopped; the same command starts again\n")
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_stopped_says_how_to_go_on(
    name: str, number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 5)  # until the signal arrives

    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "images" / "a.png")
    target, arguments = COMMANDS[name]
    monkeypatch.setattr(target, interrupted)
    before = signal.getsignal(signal.SIGTERM)
    status, _, err = running.run(*arguments)
    assert status == code
    continues = "the same command continues, and finished cells are kept"
    assert (
        err == f"densecal: {name}: stopped; {continues if name == 'benchmark' else 'the same command starts again'}\n"
    )
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_before_a_command_begins_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class HalfImported(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "densecal.cli", HalfImported("densecal.cli"))
    monkeypatch.setattr(sys, "argv", ["densecal", "evaluate", "maps", "masks"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "densecal: stopped; the same command starts again\n"


def test_ctrl_c_while_the_arguments_are_read_is_told(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.make_context", interrupted)
    assert running.run("evaluate", "maps", "masks")[::2] == (130, "densecal: stopped; the same command starts again\n")
