"""Draws are a function of (seed, epoch, index, stream) alone, and look uniform and independent."""

import numpy as np
import pytest
import torch
from scipy import stats

from densecal.rng import Stream, normal, uniform

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    """Apply SplitMix64's finaliser to an unsigned Python integer."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference(seed: int, epoch: int, index: int, stream: int, count: int) -> list[float]:
    key, golden = 0, 0x9E3779B97F4A7C15
    for part in (seed, epoch, stream):
        key = ((key ^ part) * golden + 0x632BE59BD9B4E019) & MASK
        key ^= key >> 29
    sample = splitmix((index * golden + key) & MASK)
    return [(splitmix((sample + i * golden) & MASK) >> 40) * 2.0**-24 for i in range(1, count + 1)]


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, 0), (7, 3, 1), (123456789, 29, 11), (2**40, 1000, 2)])
def test_draws_follow_splitmix_on_unsigned_integers(seed, epoch, stream):
    index = torch.tensor([0, 1, 9552, 2**33, -1])
    actual = uniform(seed, epoch, index, stream, count=5)
    expected = [reference(seed, epoch, i, stream, 5) for i in index.tolist()]
    assert actual.tolist() == expected


def test_draws_do_not_depend_on_the_batch():
    whole = uniform(3, 8, torch.arange(100), stream=2, count=4)
    some = torch.tensor([70, 3, 99])
    assert torch.equal(uniform(3, 8, some, stream=2, count=4), whole[some])


def test_asking_for_more_numbers_keeps_the_first_ones():
    index = torch.arange(10)
    assert torch.equal(uniform(0, 0, index, count=64)[:, :7], uniform(0, 0, index, count=7))


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_seed_epoch_and_stream_each_give_independent_draws(other):
    index = torch.arange(20000)
    a = uniform(0, 0, index)[:, 0].numpy()
    seed, epoch, stream = other
    b = uniform(seed, epoch, index, stream)[:, 0].numpy()
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


@pytest.mark.parametrize("draws", [uniform(0, 0, torch.arange(20000)), uniform(5, 2, torch.tensor([17]), count=20000)])
def test_draws_are_uniform_across_samples_and_within_one(draws):
    values = draws.flatten().numpy()
    assert values.min() >= 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_streams_keep_their_numbers_so_that_a_run_of_an_older_version_resumes_with_the_same_draws():
    numbers = {"LABEL": 10, "MODERATION_NOISE": 11, "MMCE_PIXEL": 20, "MIXUP": 21, "AUGMENT": 201, "SIZE": 301}
    numbers |= {"COLOUR": 302, "MASK_NOISE": 303, "EBM_TRAINING": 310, "EBM_PREDICTION": 311}
    numbers |= {f"INFORMATIONLESS_{name}": 401 + i for i, name in enumerate(("KIND", "PHASE", "PATCH", "CROP"))}
    assert numbers.items() <= {stream.name: stream.value for stream in Stream}.items()


def test_by_default_one_number_of_stream_0_is_drawn():
    index = torch.arange(10)
    assert torch.equal(uniform(3, 1, index), uniform(3, 1, index, stream=0, count=1))
    assert torch.equal(normal(3, 1, index), normal(3, 1, index, stream=0, count=1))


def test_draws_are_float32_multiples_of_two_to_minus_24():
    draws = uniform(0, 0, torch.arange(1000))
    assert draws.dtype == torch.float32
    assert torch.equal(draws * 2**24, (draws * 2**24).round())


def test_normals_are_normal_and_a_function_of_the_sample():
    draws = normal(3, 1, torch.arange(400), stream=310, count=500)
    assert draws.dtype == torch.float32
    assert stats.kstest(draws.flatten().numpy(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.15
    assert torch.equal(normal(3, 1, torch.tensor([7]), stream=310, count=500)[0], draws[7])
    assert not torch.equal(normal(3, 2, torch.tensor([7]), stream=310, count=500)[0], draws[7])


def test_a_normal_is_the_quantile_of_the_uniform_of_its_seed_epoch_and_stream():
    index = torch.tensor([0, 5, 9552])
    for seed, epoch, stream in ((0, 0, 0), (3, 1, 310), (4, 2, 7)):
        u = uniform(seed, epoch, index, stream, count=50).double().numpy()
        expected = stats.norm.ppf(u + 2.0**-25)
        np.testing.assert_allclose(normal(seed, epoch, index, stream, count=50), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_an_index_of_a_smaller_type_gives_the_same_draws(dtype):
    index = torch.arange(200)
    assert torch.equal(uniform(3, 1, index.to(dtype), count=3), uniform(3, 1, index, count=3))


def test_the_smallest_and_the_largest_uniform_give_finite_normals(monkeypatch):
    ends = torch.tensor([[0.0, 1 - 2.0**-24]])
    monkeypatch.setattr("densecal.rng.uniform", lambda *a: ends)
    low, high = normal(0, 0, torch.tensor([0]), count=2)[0].tolist()
    assert low == pytest.approx(stats.norm.ppf(2.0**-25), rel=1e-5)
    assert high == pytest.approx(-low, rel=1e-5)
