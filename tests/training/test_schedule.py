"""Learning rates equal the numbers of the specification."""

import math
from itertools import pairwise
from typing import get_args

import pytest

from densecal.training.config import load_config, recipes
from densecal.training.schedule import learning_rate, stage_position
from densecal.training.sections import OptimConfig


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


SCHEDULES = get_args(OptimConfig.model_fields["schedule"].annotation)


@pytest.mark.parametrize("warmup_steps", [0, 30])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_second_stage_has_the_rates_of_the_first(schedule, warmup_steps):
    optim = OptimConfig(schedule=schedule, lr=0.5, epochs=25, warmup_steps=warmup_steps)
    steps = 8
    rates = [learning_rate(optim, epoch + step / steps, steps) for epoch in range(50) for step in range(steps)]
    first, second = rates[: 25 * steps], rates[25 * steps :]
    assert second == pytest.approx(first, rel=1e-9)
    assert sum(second) == pytest.approx(sum(first), rel=1e-12)
    assert sum(first) > 0.2 * 0.5 * len(first)  # they train


@pytest.mark.filterwarnings("ignore:eta")
@pytest.mark.parametrize("recipe", [name for name in recipes() if load_config(name).two_stage])
def test_both_stages_of_a_recipe_have_the_same_summed_rate(recipe):
    config = load_config(recipe)
    rates = [learning_rate(config.optim, epoch) for epoch in range(config.total_epochs)]
    first, second = rates[: config.optim.epochs], rates[config.optim.epochs :]
    assert len(first) == len(second)
    assert sum(second) == pytest.approx(sum(first), rel=1e-12)
    assert sum(first) > 10 * config.optim.lr


def test_the_recipes_with_two_stages_are_those_of_the_paper():
    assert [name for name in recipes() if load_config(name).two_stage] == ["cod", "semantic", "smoke", "sod-paper"]


def test_a_second_stage_is_as_long_as_the_first_unless_told_otherwise():
    assert OptimConfig(epochs=7).second_length == 7
    assert OptimConfig(epochs=7, second_epochs=3).second_length == 3
    assert [stage_position(OptimConfig(epochs=7, second_epochs=3), epoch) for epoch in (0, 6.5, 7, 8.5)] == [
        (0, 7), (6.5, 7), (0, 3), (1.5, 3),
    ]  # fmt: skip


def test_cosine_falls_to_zero_and_starts_again_in_a_second_stage():
    optim = OptimConfig(schedule="cosine", lr=1.0, epochs=10, second_epochs=5)
    rates = [learning_rate(optim, e / 10) for e in range(100)]
    assert rates[0] == 1.0
    assert all(a > b for a, b in pairwise(rates))
    assert rates[-1] < 1e-3
    assert learning_rate(optim, 10) == 1.0
    assert learning_rate(optim, 14.99) < 1e-4


def test_poly_and_triangular_schedules_of_a_stage():
    poly = OptimConfig(schedule="poly", lr=2.0, epochs=10, second_epochs=5)
    assert [learning_rate(poly, e) for e in (0, 2.5, 9.9)] == pytest.approx([2.0, 2 * 0.75**0.9, 2 * 0.01**0.9])
    assert [learning_rate(poly, e) for e in (10, 12.5)] == pytest.approx([2.0, 2 * 0.5**0.9])
    icon = OptimConfig(schedule="triangular", lr=0.05, epochs=60)
    rates = [learning_rate(icon, e + 0.7) for e in range(60)]
    assert rates == pytest.approx([0.05 * (1 - abs(2 * (e + 1) / 61 - 1)) for e in range(60)], rel=1e-12)
    assert rates[0] == pytest.approx(0.05 * 2 / 61)
    assert rates == pytest.approx(rates[::-1])


def test_late_decay_loses_a_tenth_per_epoch_from_the_twentieth_on():
    optim = OptimConfig(schedule="late-decay", lr=1.0, epochs=50)
    rate, rates = 1.0, []
    for epoch in range(1, 51):  # like the authors' program: train, then multiply
        rates.append(rate)
        rate *= 0.9 ** (epoch // 20)
    assert [learning_rate(optim, e) for e in range(50)] == pytest.approx(rates, rel=1e-12)
    assert rates[19] == 1.0
    assert rates[29] == pytest.approx(0.9**10)


def test_a_warm_up_rises_from_a_hundredth_with_every_step():
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


def test_cosine_depends_on_the_share_of_the_stage_that_is_done():
    optim = OptimConfig(schedule="cosine", lr=2.0, epochs=10, second_epochs=5)
    for epoch in (0, 0.25, 2.5, 5, 7.3, 9.99):
        assert learning_rate(optim, epoch) == pytest.approx(2 * math.cos(math.pi * epoch / 20) ** 2, rel=1e-12)
    for epoch in (0, 0.25, 2.5, 4.99):
        assert learning_rate(optim, 10 + epoch) == pytest.approx(2 * math.cos(math.pi * epoch / 10) ** 2, rel=1e-12)


def test_triangular_rises_and_falls_over_a_second_stage_of_another_length():
    triangular = OptimConfig(schedule="triangular", lr=0.3, epochs=10, second_epochs=5)
    assert [learning_rate(triangular, 10 + e) for e in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("paper", lambda e: 0.9 if e >= 10 else 1.0),
        ("code", lambda e: 0.95 ** (e // 10)),
        ("late-decay", lambda e: 0.9 ** (e // 20)),
    ],
)
def test_schedules_by_epoch_start_again_in_a_second_stage(schedule, factor):
    optim = OptimConfig(schedule=schedule, lr=1.0, epochs=15, second_epochs=30)
    for first, length in ((0, 15), (15, 30)):
        rate = 1.0
        for done in range(length):
            assert learning_rate(optim, first + done) == pytest.approx(rate, rel=1e-12)
            assert learning_rate(optim, first + done + 0.999) == learning_rate(optim, first + done)
            rate *= factor(done + 1)


def test_a_warm_up_scales_whatever_the_schedule_says():
    optim, warmed = (OptimConfig(schedule="poly", lr=1.0, epochs=10, warmup_steps=steps) for steps in (0, 40))
    for epoch, share in ((0, 0.01), (0.5, 0.2575), (1, 0.505), (2, 1.0), (9, 1.0)):
        assert learning_rate(warmed, epoch, epoch_steps=20) == pytest.approx(share * learning_rate(optim, epoch))


def test_epochs_have_one_step_unless_told_otherwise():
    optim = OptimConfig(schedule="constant", lr=1.0, epochs=30, warmup_steps=10)
    assert [learning_rate(optim, epoch) for epoch in (0, 5, 10)] == pytest.approx([0.01, 0.505, 1.0])
