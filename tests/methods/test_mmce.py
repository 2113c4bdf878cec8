"""MMCE: the vectors, the kernel form against its matrix, and which pixels are drawn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.methods import create
from densecal.methods.mmce import draw_pixels, kernel_form, safe_sqrt, weighted_mmce_squared
from tests.methods.common import batch


def make(classes: int = 1, **options):
    return create("mmce", **{"num_samples": 9, "num_classes": classes, **options})


def matrix_form(c: torch.Tensor, u: torch.Tensor, width: float) -> torch.Tensor:
    return u @ torch.exp(-(c[:, None] - c[None, :]).abs() / width) @ u


def brute_force(z: np.ndarray, y: np.ndarray) -> float:
    """Compute CE + 0.5 MMCE_w of (n, K) logits from its definition, pair by pair in float64."""
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    c, right = p.max(1), p.argmax(1) == y
    k = np.exp(-np.abs(c[:, None] - c) / 0.4)
    pp, mm = k[np.ix_(right, right)], k[np.ix_(~right, ~right)]
    pm = k[np.ix_(right, ~right)]
    squared = (
        ((1 - c[right])[:, None] * (1 - c[right]) * pp).sum() / right.sum() ** 2
        + (c[~right][:, None] * c[~right] * mm).sum() / (~right).sum() ** 2
        - 2 * ((1 - c[right])[:, None] * c[~right] * pm).sum() / (right.sum() * (~right).sum())
    )
    return float(-np.log(p[np.arange(len(y)), y]).mean() + 0.5 * math.sqrt(squared))


@pytest.fixture
def vector(vectors):
    return vectors["mmce"]["inputs"], vectors["mmce"]["expected"]


def test_vectors(vector):
    inputs, expected = vector
    c, a = torch.tensor(inputs["conf"], dtype=torch.float64), torch.tensor(inputs["correct"]) > 0.5
    assert (a.sum(), (~a).sum()) == (expected["n_correct"], expected["n_incorrect"])
    plain, weighted = kernel_form(c, (a.double() - c) / c.numel()), weighted_mmce_squared(c, a, torch.ones_like(c))
    assert plain.item() == pytest.approx(expected["mmce_m_squared"], abs=1e-12)
    assert safe_sqrt(plain).item() == pytest.approx(expected["mmce_m"], abs=1e-9)
    assert weighted.item() == pytest.approx(expected["mmce_w_squared_paper_norm"], abs=1e-12)
    assert safe_sqrt(weighted).item() == pytest.approx(expected["mmce_w_paper_norm"], abs=1e-9)


def test_the_loss_contains_the_term_of_the_vector(vector):
    inputs, expected = vector
    z, y = (torch.tensor(inputs[key]).view(2, 1, 4, 4) for key in "zy")
    term = make().loss(z, y) - create("bce", num_samples=9).loss(z, y)
    assert term.item() == pytest.approx(0.5 * expected["mmce_w_paper_norm"], abs=1e-5)


def test_dividing_twice_as_public_codes_do_makes_the_term_vanish(vector):
    inputs, expected = vector
    c, a = torch.tensor(inputs["conf"], dtype=torch.float64), torch.tensor(inputs["correct"], dtype=torch.float64)
    n = torch.where(a > 0.5, a.sum(), (1 - a).sum())
    doubly = kernel_form(c, (a - c) / n**2).sqrt().item()
    # The public codes add 1e-5 to their second denominators.
    assert doubly == pytest.approx(expected["mmce_w_public_code_double_norm"], abs=1e-8)
    assert doubly < expected["mmce_w_paper_norm"] / 6  # with 8 wrong pixels; with thousands it is negligible


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=40),
    st.sampled_from([0.01, 0.1, 0.4, 3.0]),
)
def test_the_kernel_form_equals_that_of_the_matrix(pairs, width):
    c, u = torch.tensor(pairs, dtype=torch.float64).T
    torch.testing.assert_close(kernel_form(c, u, width), matrix_form(c, u, width), rtol=1e-9, atol=1e-12)


def test_the_gradient_of_the_kernel_form_equals_that_of_the_matrix():
    c = torch.rand(30, dtype=torch.float64, requires_grad=True)
    u = torch.randn(30, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c, u: kernel_form(c, u, 0.4), (c, u))
    fast = torch.autograd.grad(kernel_form(c, u, 0.4), (c, u))
    slow = torch.autograd.grad(matrix_form(c, u, 0.4), (c, u))
    torch.testing.assert_close(fast, slow)


def test_the_gradient_flows_through_the_confidence():
    c = (0.5 + torch.rand(20, dtype=torch.float64) / 2).requires_grad_()
    a, shares = torch.rand(20) > 0.4, torch.rand(20, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda c: safe_sqrt(weighted_mmce_squared(c, a, shares)), (c,))


def test_four_classes_agree_with_the_definition():
    z, y = batch(4)
    loss = make(4).loss(z, y).item()
    flat = z.permute(0, 2, 3, 1).reshape(-1, 4).double().numpy()
    assert loss == pytest.approx(brute_force(flat, y.flatten().numpy()), abs=1e-5)


def test_a_draw_takes_half_of_each_stratum_or_all_there_is():
    keys, correct = torch.rand(3, 1000), torch.rand(3, 1000) < 0.99
    allowed = torch.rand(3, 1000) < 0.9
    wrong = int((~correct & allowed).sum())
    positions, is_pixel = draw_pixels(keys, correct, allowed, 200)
    assert positions.shape == is_pixel.shape == (200,)
    kept = positions[is_pixel]
    assert len(kept) == len(set(kept.tolist())) == 100 + wrong < 200
    assert allowed.flatten()[kept].all()
    assert correct.flatten()[kept].sum() == 100
    lowest = keys.flatten()[kept][correct.flatten()[kept]].min()
    assert (keys[correct & allowed] > lowest).sum() == 99


def test_draws_are_a_function_of_seed_epoch_and_index():
    def drawn(method, epoch, index):
        method.start_epoch(epoch)
        z, y = torch.randn(3, 1, 40, 40, generator=torch.Generator().manual_seed(5)), torch.zeros(3, 1, 40, 40)
        z.requires_grad_()
        bce = create("bce", num_samples=9).loss(z, y)
        loss = method.loss(z, method.prepare(z, y, torch.tensor(index))[1])
        return torch.autograd.grad(loss - bce, z)[0].abs() > 1e-7

    first = drawn(make(pixels=100), 3, [4, 7, 1])
    assert 90 < first.sum() <= 100
    assert torch.equal(first, drawn(make(pixels=100), 3, [4, 7, 1]))
    assert not torch.equal(first, drawn(make(pixels=100), 4, [4, 7, 1]))
    assert not torch.equal(first, drawn(make(pixels=100, seed=1), 3, [4, 7, 1]))
    assert not torch.equal(first, drawn(make(pixels=100), 3, [4, 7, 2]))


def test_drawn_pixels_estimate_the_term_of_all_pixels():
    z = 2 * torch.randn(4, 1, 40, 40)
    y = (torch.rand_like(z) < (1.5 * z).sigmoid()).float()
    every = make(pixels=4 * 1600 * 2).loss(z, y).item()
    method = make(pixels=1024)
    actual = []
    for epoch in range(40):
        method.start_epoch(epoch)
        actual.append(method.loss(z, method.prepare(z, y, torch.arange(4))[1]).item())
    error = np.std(actual) / math.sqrt(40)
    assert error > 0
    assert abs(np.mean(actual) - every) < 4 * error + 0.003  # the bias of the pairs i = j and of the root
