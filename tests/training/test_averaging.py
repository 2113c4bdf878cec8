"""The average of the weights, against closed forms in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from densecal.training.averaging import Average


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()


def floats(module):
    """All weights and statistics as one vector."""
    return torch.cat([v.flatten() for v in module.state_dict().values() if v.is_floating_point()]).clone()


def train_one_step(module):
    """Move every weight and every statistic, as a step of training does; returns them."""
    with torch.no_grad():
        for value in module.state_dict().values():
            value.add_(torch.randn_like(value) if value.is_floating_point() else 1)
    return floats(module)


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_at_first_a_step_counts_by_its_number_times_the_next(steps):
    trained = network()
    average = Average(trained, decay=0.999, start_share=0.0)
    weights = []
    for step in range(1, steps + 1):
        weights.append(train_one_step(trained))
        average.follow(step)
    # rates of 3 / (2 + t) leave step i of T the share 3 i (i + 1) / (T (T + 1) (T + 2)), and the start none
    shares = np.array([3 * i * (i + 1) / (steps * (steps + 1) * (steps + 2)) for i in range(1, steps + 1)])
    assert shares.sum() == pytest.approx(1)
    expected = sum(share * weight for share, weight in zip(shares, weights, strict=True))
    torch.testing.assert_close(floats(average.network), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("decay", "step", "kept"), [(0.9, 28, 0.9), (0.9, 29, 0.9), (0.9, 27, 26 / 29), (0.5, 4, 0.5)])
def test_later_a_step_leaves_the_average_as_much_as_the_decay_says(decay, step, kept):
    trained = network()
    average = Average(trained, decay, start_share=0.0)
    before, now = floats(average.network), train_one_step(trained)
    average.follow(step)
    torch.testing.assert_close(floats(average.network), kept * before + (1 - kept) * now, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.75])
def test_the_start_keeps_its_share_however_long_training_takes(share):
    trained = network()
    start = floats(trained)
    average = Average(trained, 0.9, share)
    now = train_one_step(trained)
    for step in (1, 2, 3, 50, 51):
        average.follow(step)
        torch.testing.assert_close(floats(average.network), share * start + (1 - share) * now, rtol=1e-12, atol=1e-12)
    # a step takes its rate of what it moves toward, of which the start is a part
    later = train_one_step(trained)
    average.follow(100)
    expected = share * start + (1 - share) * (0.9 * now + 0.1 * later)
    torch.testing.assert_close(floats(average.network), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_counters_are_copied_and_the_trained_network_is_left_alone(share):
    trained = network()
    average = Average(trained, 0.9, share)
    for step in range(1, 4):
        before = train_one_step(trained)
        average.follow(step)
        assert torch.equal(floats(trained), before)
        assert int(average.network[1].num_batches_tracked) == step
    assert not torch.equal(floats(average.network), before)
    assert not any(parameter.requires_grad for parameter in average.network.parameters())
    assert all(parameter.requires_grad for parameter in trained.parameters())
