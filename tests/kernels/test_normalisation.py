"""Our CUDA kernels compute what PyTorch's do; they run in Triton's interpreter here."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.running import interpreted


def test_kernels_agree_with_pytorch_in_float64():
    found = interpreted(Path(__file__).with_name("normalisation_check.py"))
    for layer in found["layers"]:
        assert layer.pop("tracked") == 0
        assert max(layer.values()) < 2e-4, layer
    assert max(max(differences) for differences in found["networks"].values()) < 1e-3, found
    assert len(found["oddities"]) == 8
    assert all(found["oddities"].values()), found["oddities"]
    assert max(max(differences) for differences in found["upsamplings"]) < 1e-5, found["upsamplings"]


def test_where_kernels_do_not_work_pytorch_normalises():
    fused = pytest.importorskip("densecal.kernels.normalisation")
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    images = torch.rand(2, 3, 9, 9)
    said = network(images)
    fused._running_kernel_agrees.cache_clear()
    with pytest.warns(UserWarning, match="batch normalisation kernels .* on cpu: PyTorch's are used"):
        fused.replace_normalisation(network)
    assert torch.equal(network(images), said)
