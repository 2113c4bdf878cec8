"""Shared by all tests: the specification's test vectors, and how property tests choose examples."""

import atexit
import gc
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# the same examples in every run, so that a change is not blamed for what another search finds; `make soak` searches.
# No deadline: a busy machine is no fault of the code.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def vectors() -> dict[str, dict[str, Any]]:
    cases = json.loads((Path(__file__).parent / "vectors.json").read_text())
    return {case["name"]: case for case in cases}


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell starts jobs in the background with SIGINT ignored, and the tests may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and leave to it only what tests make.

    It would look through the objects of all modules again and again, which takes a third of the time. Tests import
    more, so it also looks less often than usual.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
        # the interpreter frees it all at its end, which packages in C++ check; pytest looks for garbage before that
        atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # not above: the process that only hands out the tests need not wait for it

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
