"""Soft-binned ECE: its hand-written gradient."""

import pytest
import torch

from densecal.methods.soft_ece import soft_binned_ece


def by_autograd(c: torch.Tensor, a: torch.Tensor, shares: torch.Tensor, T: float, norm: float) -> torch.Tensor:
    """Compute the definition directly and leave the derivative to autograd."""
    anchors = (torch.arange(15, dtype=c.dtype) + 0.5) / 15
    u = torch.softmax(-((c[:, None] - anchors) ** 2) / T, dim=1)
    S = (shares[:, None] * u).sum(0)
    C, A = ((shares * x)[:, None].mul(u).sum(0) / S.clamp(min=1e-5) for x in (c, a))
    return (S / S.sum() * (C - A).abs() ** norm).sum() ** (1 / norm)


@pytest.mark.parametrize("T", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_value_and_gradient_equal_those_of_the_definition(T, norm):
    c = (0.4 + 0.6 * torch.rand(60, dtype=torch.float64)).requires_grad_()
    a, shares = (torch.rand(60) < 0.7).double(), torch.rand(60, dtype=torch.float64)
    actual, expected = soft_binned_ece(c, a, shares, 15, T, norm), by_autograd(c, a, shares, T, norm)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, c)[0] for value in (actual, expected)))
    assert torch.autograd.gradcheck(lambda c: soft_binned_ece(c, a, shares, 15, T, norm), (c,))
