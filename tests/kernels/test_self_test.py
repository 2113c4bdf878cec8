"""Our kernels are tested against PyTorch on the CPU before they are used."""

import pytest
import torch

from densecal.kernels.self_test import agree

X, G = torch.randn(3, generator=torch.Generator().manual_seed(0)), torch.ones(3)
CPU = torch.device("cpu")


def test_equal_operations_agree_also_in_inference_mode():
    assert agree("our", torch.sin, torch.sin, [X], G, CPU)
    with torch.inference_mode():
        assert agree("our", torch.sin, torch.sin, [X], G, CPU)


def test_a_wrong_output_or_gradient_is_warned_of():
    with pytest.warns(UserWarning, match="our kernels disagree with PyTorch on cpu"):
        assert not agree("our", torch.cos, torch.sin, [X], G, CPU)
    with pytest.warns(UserWarning, match="our kernels disagree"):
        assert not agree("our", lambda x: x + (x - x.detach()), lambda x: 1 * x, [X], G, CPU)


def test_kernels_that_fail_are_not_used():
    def broken(_):
        raise RuntimeError("no compiler")

    with pytest.warns(UserWarning, match=r"our kernels fail \(no compiler\) on cpu"):
        assert not agree("our", broken, torch.sin, [X], G, CPU)
