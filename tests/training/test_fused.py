"""Our CUDA kernels compute what PyTorch's do; they run in Triton's interpreter here."""

from pathlib import Path

from tests.running import interpreted


def test_kernels_agree_with_pytorch_in_float64():
    found = interpreted(Path(__file__).with_name("fused_check.py"))
    for layer in found["layers"]:
        assert layer.pop("tracked") == 0
        assert max(layer.values()) < 2e-4, layer
    assert max(found["networks"].values()) < 1e-3, found
    assert max(max(differences) for differences in found["doublings"]) < 1e-5, found["doublings"]
