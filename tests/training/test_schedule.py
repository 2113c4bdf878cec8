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


def test_poly_and_triangular_schedules_of_a_stage():
    poly = OptimConfig(schedule="poly", lr=2.0, epochs=10, second_epochs=5)
    assert [learning_rate(poly, e) for e in (0, 2.5, 9.9)] == pytest.approx([2.0, 2 * 0.75**0.9, 2 * 0.01**0.9])
    assert [learning_rate(poly, e) for e in (10, 12.5)] == pytest.approx([0.2, 0.2 * 0.5**0.9])
    icon = OptimConfig(schedule="triangular", lr=0.05, epochs=60)
    rates = [learning_rate(icon, e + 0.7) for e in range(60)]
    assert rates == pytest.approx([0.05 * (1 - abs(2 * (e + 1) / 61 - 1)) for e in range(60)], rel=1e-12)
    assert rates[0] == pytest.approx(0.05 * 2 / 61)
    assert rates == pytest.approx(rates[::-1])


def test_late_decay_is_a_tenth_less_an_epoch_from_the_twentieth_on():
    optim = OptimConfig(schedule="late-decay", lr=1.0, epochs=50)
    rate, rates = 1.0, []
    for epoch in range(1, 51):  # as the program does it: train, then multiply
        rates.append(rate)
        rate *= 0.9 ** (epoch // 20)
    assert [learning_rate(optim, e) for e in range(50)] == pytest.approx(rates, rel=1e-12)
    assert rates[19] == 1.0
    assert rates[29] == pytest.approx(0.9**10)


def test_a_warm_up_climbs_from_a_hundredth_by_the_step():
    optim = OptimConfig(schedule="constant", lr=1.0, epochs=10, warmup_steps=200)
    rates = [learning_rate(optim, step / 80, epoch_steps=80) for step in range(400)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[100] == pytest.approx(0.505)
    assert rates[200:] == [1.0] * 200
    assert all(a < b for a, b in pairwise(rates[:201]))


def test_the_last_step_of_a_stage_has_the_smallest_rate():
    optim = OptimConfig(schedule="cosine", lr=1.0, epochs=3)
    rates = [learning_rate(optim, epoch + step / 4) for epoch in range(3) for step in range(4)]
    assert all(a > b for a, b in pairwise(rates))
