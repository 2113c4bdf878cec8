"""The counting kernels give the same integers as PyTorch. Here they run in Triton's interpreter."""

from pathlib import Path

import pytest

from tests.running import interpreted


@pytest.fixture(scope="module")
def output():
    return interpreted(Path(__file__).with_name("counting_check.py"))


def test_every_table_is_equal(output):
    assert len(output["tables"]) == 3 * (6 + 1 + 3)
    assert [table for table in output["tables"] if not table["equal"]] == []


def test_wrong_kernels_are_not_trusted(output):
    assert output["trusted"]
    assert not output["wrong kernels are trusted"]
