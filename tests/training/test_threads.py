"""Training on a CPU uses a thread for each core that other processes leave free, unless the user has chosen."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from densecal.training import threads as module
from densecal.training.loop import train
from densecal.training.threads import LOOKS, SECONDS_BETWEEN_LOOKS, Threads, choose_threads
from tests.training.common import log_lines, small_config

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _number_of_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def follow(most: int, looks: list[float]) -> list[int]:
    """Return the number of threads after each look at how many cores others have taken."""
    torch.set_num_threads(most)
    figures, seconds, numbers = iter(looks), 0.0, []
    threads = Threads(lambda: next(figures), lambda: seconds)
    for _ in looks:
        threads.follow()  # too early: takes no figure
        seconds += SECONDS_BETWEEN_LOOKS
        threads.follow()
        assert torch.get_num_threads() == threads.number
        numbers.append(threads.number)
    return numbers


@pytest.mark.filterwarnings("ignore:other processes")
@pytest.mark.parametrize(
    ("most", "looks", "expected"),
    [
        (2, [0.0, 0.05, 0.1, 0.0], [2, 2, 2, 2]),
        (2, [0.6, 0.65, 0.6, 1.0, 1.0], [2, 2, 1, 1, 1]),
        (2, [1.0, 1.0, 0.1, 1.0, 1.0, 0.3], [2] * 6),  # over in a few seconds
        (2, [1.0] * 3 + [0.1, 0.0, 0.1], [2, 2, 1, 1, 1, 2]),
        (2, [1.0] * 3 + [0.1, 0.5, 0.1, 0.3], [2, 2, 1, 1, 1, 1, 1]),  # not yet free again
        (2, [0.3] * 4, [2] * 4),
        (2, [1.0] * 3 + [0.3] * 4, [2, 2, 1, 1, 1, 1, 1]),  # between both shares nothing changes
        (2, [2.0] * 6, [2, 2, 1, 1, 1, 1]),  # one thread is left
        (16, [3.1, 3.3, 3.2, 1.0, 3.2, 3.2, 1.0, 0.9, 0.7], [16, 16, 13, 13, 13, 13, 13, 13, 15]),
        (16, [40.0] * 3 + [0.0] * 3, [16, 16, 1, 1, 1, 16]),
        (1, [1.0] * 4, [1] * 4),
    ],
)
def test_the_number_follows_what_three_looks_in_a_row_say(most, looks, expected):
    assert LOOKS == 3
    assert follow(most, looks) == expected


def test_a_run_says_once_that_it_has_fewer_threads_and_ends_with_all_of_them():
    torch.set_num_threads(2)
    seconds, looks = 0.0, [*[1.0] * 3, *[0.0] * 3, *[1.0] * 3]
    figures = iter(looks)
    with (
        warnings.catch_warnings(record=True, action="always") as caught,
        Threads(lambda: next(figures), lambda: seconds) as threads,
    ):
        for _ in looks:
            seconds += SECONDS_BETWEEN_LOOKS
            threads.follow()
        assert threads.history() == [2, 1, 2, 1]
        assert threads.history() == [1]
    assert torch.get_num_threads() == 2
    assert [str(warning.message) for warning in caught] == [
        "other processes use cores of this machine: training continues with 1 of 2 threads, and with more when they "
        "end (engine.threads=2 keeps 2)"
    ]


@pytest.mark.parametrize(
    ("settings", "variables", "device", "number", "follows"),
    [
        ([], {}, "cpu", 2, True),
        (["engine.threads=auto"], {}, "cpu", 2, True),
        (["engine.threads=3"], {}, "cpu", 3, False),
        (["engine.threads=1"], {"OMP_NUM_THREADS": "4"}, "cpu", 1, False),
        ([], {"OMP_NUM_THREADS": "4"}, "cpu", 4, False),
        (["engine.devices=2"], {}, "cpu", 1, False),
        (["engine.nodes=2"], {}, "cpu", 2, False),
        ([], {}, "cuda", 2, False),
    ],
)
def test_only_a_run_whose_threads_nobody_has_chosen_follows(monkeypatch, settings, variables, device, number, follows):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "cores", lambda: 2)
    torch.set_num_threads(4)
    threads = choose_threads(small_config(*settings).engine, torch.device(device))
    assert torch.get_num_threads() == threads.number == number
    assert (threads._busy_cores is not None) == follows


@pytest.fixture
def two_threads(monkeypatch):
    """A machine of two cores. Torch itself keeps one thread, since two that wait for each other take a core each."""
    number = [2]
    set_number, get_number = (lambda wanted: number.__setitem__(0, wanted)), (lambda: number[0])
    monkeypatch.setattr(module, "torch", SimpleNamespace(set_num_threads=set_number, get_num_threads=get_number))
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LOOKS", 0.0)
    return get_number


def test_a_run_logs_the_threads_of_each_epoch(two_threads, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "create_load_meter", lambda _: lambda: 1.0)
    sizes = ["data.scenes.train=8", "data.scenes.validation=2", "optim.epochs=2"]
    with pytest.warns(UserWarning, match="1 of 2 threads"):
        train(small_config(*sizes), tmp_path / "run")
    assert [line["threads"] for line in log_lines(tmp_path / "run")] == [[2, 1], [1]]
    assert two_threads() == 2


@pytest.mark.filterwarnings("ignore:other processes")
@pytest.mark.filterwarnings("ignore:method.warmup is 1")
def test_a_resumed_run_begins_with_the_threads_it_was_stopped_with(two_threads, monkeypatch, tmp_path):
    sizes, load = ["data.scenes.train=8", "data.scenes.validation=2"], [1.0]
    monkeypatch.setattr(module, "create_load_meter", lambda _: lambda: load[0])

    def resume(epochs, *settings):
        train(small_config(*sizes, f"optim.epochs={epochs}", *settings), tmp_path / "run", resume=True)
        return log_lines(tmp_path / "run")[-1]["threads"]

    assert resume(1) == [2, 1]
    assert resume(2) == [1]  # not 2 until it has looked three times
    load[0] = 0.0
    assert resume(3) == [1, 2]
    assert resume(4) == [2]
    load[0] = 1.0
    assert resume(5) == [2, 1]
    assert resume(6, "engine.threads=2") == [2]
    assert two_threads() == 2
