"""The kernels that count on CUDA give the integers of PyTorch's path; they run in Triton's interpreter here."""

from pathlib import Path

import pytest

from tests.running import interpreted


@pytest.fixture(scope="module")
def checked():
    return interpreted(Path(__file__).with_name("counting_check.py"))


def test_every_table_is_equal(checked):
    assert len(checked["found"]) == 3 * (6 + 1 + 3)
    assert [table for table in checked["found"] if not table["equal"]] == []


def test_wrong_kernels_are_not_trusted(checked):
    assert checked["trusted"]
    assert not checked["wrong are trusted"]
