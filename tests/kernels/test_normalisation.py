"""Our normalisation and upsampling kernels compute the same as PyTorch's. Here they run in Triton's interpreter."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.running import interpreted


def test_kernels_agree_with_pytorch_in_float64():
    output = interpreted(Path(__file__).with_name("normalisation_check.py"))
    for layer in output["layers"]:
        assert layer.pop("tracked") == 0
        assert max(layer.values()) < 2e-4, layer
    assert len(output["oddities"]) == 8
    assert all(output["oddities"].values()), output["oddities"]
    assert max(max(differences) for differences in output["upsamplings"]) < 1e-5, output["upsamplings"]


@pytest.mark.slow
def test_networks_with_the_kernels_have_the_gradients_and_outputs_of_pytorch():
    output = interpreted(Path(__file__).with_name("normalisation_check.py"), "networks")
    assert max(max(differences) for differences in output.values()) < 1e-3, output


def test_pytorch_normalises_where_kernels_do_not_work():
    normalisation = pytest.importorskip("densecal.kernels.normalisation")
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    images = torch.rand(2, 3, 9, 9)
    expected = network(images)
    normalisation._running_kernel_agrees.cache_clear()
    with pytest.warns(UserWarning, match="batch normalisation kernels .* on cpu: PyTorch's are used"):
        normalisation.replace_normalisation(network)
    assert torch.equal(network(images), expected)
