"""The kernels that count on CUDA give the integers of PyTorch's path; they run in Triton's interpreter here."""

from tests.training.common import interpreted


def test_every_table_is_equal():
    found = interpreted("../metrics/counting_check.py")["found"]
    assert len(found) == 3 * (6 + 1 + 3)
    assert [table for table in found if not table["equal"]] == []
