"""Ctrl-C: the first saves between two steps, the second ends at once, and both say how to continue."""

import signal
import threading

import pytest

from densecal.errors import Preempted
from densecal.training.loop import train
from densecal.training.preemption import stop_on_signal
from tests import running
from tests.training.common import end_state, small_config


@pytest.fixture(autouse=True)
def listening():
    """Handle SIGINT even in a shell's background process, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_between_steps_and_resumes_to_the_bit(tmp_path):
    def press(title, done, *_, **__):
        if (title, done) == ("Epoch 2 of 3", 2):
            signal.raise_signal(signal.SIGINT)

    config = small_config()
    train(config, tmp_path / "whole")
    with pytest.raises(Preempted, match="stopped after step 2 of epoch 2; --resume continues from there"):
        train(config, tmp_path / "stopped", progress=press)
    train(config, tmp_path / "stopped", resume=True)
    assert end_state(tmp_path / "stopped") == end_state(tmp_path / "whole")


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    with stop_on_signal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_knows_which_signal_asked(number):
    def stopped():
        with stop_on_signal():
            signal.raise_signal(number)
            raise Preempted("stopped")

    with pytest.raises(Preempted) as caught:
        stopped()
    assert caught.value.number == number


def test_a_stop_without_a_signal_is_passed_on():
    with pytest.raises(Preempted), stop_on_signal():
        raise Preempted("stopped")


def test_a_process_that_ignores_ctrl_c_keeps_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_on_signal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop.is_set()


def test_the_command_says_how_to_continue_after_an_interruption(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("densecal.calibrate.runs.train_and_calibrate", interrupted)
    code, _, err = running.run("train", "demo", "--out", tmp_path / "run")
    assert code == 130
    assert err == f"densecal: {tmp_path / 'run'}: stopped; --resume continues after the last finished epoch\n"


def test_the_command_exits_with_the_signal_that_asked(tmp_path, monkeypatch):
    def stopped(*_):
        with stop_on_signal():
            signal.raise_signal(signal.SIGINT)
            raise Preempted("stopped after step 3 of epoch 1; --resume continues from there")

    monkeypatch.setattr("densecal.calibrate.runs.train_and_calibrate", stopped)
    code, _, err = running.run("train", "demo", "--out", tmp_path / "run")
    assert code == 130
    assert err == "densecal: stopped after step 3 of epoch 1; --resume continues from there\n"


def test_a_stopped_demonstration_starts_from_the_beginning(tmp_path, monkeypatch):
    def stopped(*_):
        raise Preempted("stopped after step 3 of epoch 1; --resume continues from there")

    monkeypatch.setattr("densecal.demo.run_demo", stopped)
    code, _, err = running.run("demo", "--out", tmp_path / "demo")
    assert code == 143
    assert "--resume" not in err
    assert "the same command starts from the beginning" in err


def test_signals_are_left_alone_by_other_threads():
    handlers = []

    def enter():
        with stop_on_signal():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
