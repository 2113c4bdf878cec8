"""Learning rates against the specification's numbers."""

from itertools import pairwise

import pytest

from densecal.training.config import OptimConfig
from densecal.training.schedule import learning_rate


def test_paper_and_code_schedules(vectors):
    expected = vectors["lr_schedule"]["expected"]
    paper = OptimConfig(schedule="paper")
    assert [learning_rate(paper, e - 1) for e in (1, 11, 20, 30)] == pytest.approx(
        expected["paper_epochs_1_11_20_30"], rel=1e-12
    )
    code = OptimConfig(schedule="code")
    assert [learning_rate(code, e - 1) for e in (1, 11, 20, 21, 30)] == pytest.approx(
        expected["code_default0.95_1_11_20_21_30"], rel=1e-12
    )


def test_cosine_falls_to_zero_and_starts_again_lower_in_a_second_stage():
    optim = OptimConfig(schedule="cosine", lr=1.0, epochs=10, second_epochs=5)
    rates = [learning_rate(optim, e / 10) for e in range(100)]
    assert rates[0] == 1.0
    assert all(a > b for a, b in pairwise(rates))
    assert rates[-1] < 1e-3
    assert learning_rate(optim, 10) == pytest.approx(0.1)
    assert learning_rate(optim, 14.99) < 1e-5
